"""The Python that a command runs, and the packages that it has, read without importing anything of them."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base.file_identity import SERVER_TICK_S, ExactIdentity
from dispatcher.provenance import host_report
from dispatcher.provenance.programs import Deadline, ProgramError, output
from dispatcher.provenance.record import Interpreter
from dispatcher.provenance.untracked import stamp_of

_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*t?")
_FIRST_BYTES: Final = 1024
_MOST_OUTPUT: Final = 4 << 20


class Environment(msgspec.Struct, frozen=True):
    """An interpreter with its packages, such as `numpy==2.1.0`, sorted."""

    python: Interpreter
    packages: tuple[str, ...]


class _Answer(msgspec.Struct, frozen=True):
    python: Interpreter
    settings: str
    places: tuple[str, ...]
    package_lines: tuple[str, ...]


class _Known(msgspec.Struct, frozen=True):
    environment: Environment
    stamps: Mapping[str, ExactIdentity | None]


def python_of(command: Sequence[str], path: str | None, directory: Path) -> str | None:
    """The Python that a command line runs in `directory`; None when it runs another program, or none is found.

    That is its first word, or what the first line of that script names. `path` is the PATH that the command has, None
    where that is unknown.
    """
    if not command:
        return None
    program = _found(command[0], path, directory)
    if program is None or _PYTHON.fullmatch(os.path.basename(command[0])):
        return program
    for line in _interpreters(program):
        is_env = os.path.basename(line[0]) == "env"
        words = [word for word in line[1:] if word != "-S"] if is_env else line
        if words and _PYTHON.fullmatch(os.path.basename(words[0])):
            return _found(words[0], path, directory)
    return None


def _interpreters(program: str) -> Iterator[list[str]]:
    """The words of the line that names a script's interpreter; pip's way around long lines counts too."""
    try:
        fd = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            lines = os.fsdecode(os.read(fd, _FIRST_BYTES)).split("\n")
        finally:
            os.close(fd)
    except OSError:
        return
    if not lines[0].startswith("#!"):
        return
    yield lines[0][2:].split() or [""]
    if len(lines) > 1 and lines[1].startswith("'''exec'"):
        try:
            yield shlex.split(lines[1])[1:] or [""]
        except ValueError:
            return


def _found(word: str, path: str | None, directory: Path) -> str | None:
    places = [""] if "/" in word else path.split(os.pathsep) if path is not None else []
    for place in places:
        candidate = os.path.join(directory, place, word)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


@functools.cache
def host_report_source() -> str:
    """The program that another Python runs, as text."""
    return Path(host_report.__file__).read_text(encoding="utf-8")


class Interpreters:
    """Asks interpreters; one whose packages have not changed costs no call."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def look_at(self, executable: str, directory: Path, deadline: Deadline) -> Environment:
        """The interpreter with its packages, as run in `directory`; raises ProgramError when it does not answer."""
        known = self._known.get(executable)
        if known is not None and all(stamp_of(place) == stamp for place, stamp in known.stamps.items()):
            return known.environment
        self._known.pop(executable, None)
        answer = _own() if executable == sys.executable else _ask(executable, directory, deadline)
        itself = answer.python.executable
        # What its packages are changes with these.
        places = (executable, os.path.realpath(itself), answer.settings, *answer.places)
        environment = Environment(answer.python, answer.package_lines)
        stamps = {place: stamp_of(place) for place in places}
        youngest_s = max((stamp[3] / 1e9 for stamp in stamps.values() if stamp is not None), default=0.0)
        # What a script runs (a shim of pyenv) may depend on anything; an installation changes directories many times.
        if not _is_script(executable) and youngest_s < time.time() - SERVER_TICK_S:
            self._known[executable] = _Known(environment, stamps)
        return environment


def _is_script(path: str) -> bool:
    return next(_interpreters(path), None) is not None


def _own() -> _Answer:
    """What `_ask` would answer of the interpreter that runs this."""
    try:
        return msgspec.convert(host_report.interpreter(os.environ.get("PYTHONNOUSERSITE", "")), type=_Answer)
    except OSError as error:
        raise ProgramError(f"the packages of {sys.executable} cannot be listed: {error}") from None


def _ask(executable: str, directory: Path, deadline: Deadline) -> _Answer:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [executable, "-I", "-S", "-c", host_report_source(), "interpreter", os.environ.get("PYTHONNOUSERSITE", "")]
    try:
        printed = output(words, cwd=directory, environment=environment, deadline=deadline, most_bytes=_MOST_OUTPUT)
        return msgspec.json.decode(printed, type=_Answer)
    except ProgramError as error:
        raise type(error)(f"{executable} does not tell what it has: {error}") from None
    except msgspec.DecodeError as error:
        raise ProgramError(f"{executable} does not tell what it has: {error}") from None
