"""The Python that a command runs, and the packages that it has, read without importing anything of them."""

from __future__ import annotations

import os
import re
import shlex
import site
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from dispatcher.provenance.programs import Deadline, ProgramError, output
from dispatcher.provenance.record import Interpreter
from dispatcher.provenance.untracked import Stamp, stamp_of

_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*t?")
_FIRST_BYTES: Final = 1024
# Without -S it would run what .pth files of the environment say. Prints the version, its path, then directories.
_PROGRAM: Final = """
import os, site, sys
prefix, base = os.path.dirname(os.path.dirname(sys.executable)), sys.base_prefix
settings = os.path.join(prefix, "pyvenv.cfg")
prefixes, has_user_site = [base], sys.argv[1] != "no user site"
if os.path.exists(settings):
    with open(settings) as file:
        words = [[word.strip().lower() for word in line.partition("=")[::2]] for line in file]
    has_system_site = ["include-system-site-packages", "true"] in words
    prefixes = [prefix, base] if has_system_site else [prefix]
    has_user_site &= has_system_site
    sys.prefix = prefix
print(sys.version.split()[0], sys.executable, *site.getsitepackages(prefixes), sep="\\n")
if has_user_site:
    print(site.getusersitepackages())
"""
_MOST_OUTPUT: Final = 1 << 16
_MOST_BYTES: Final = 1 << 16
_INFO: Final = re.compile(r"(.+?)-([^-]+?)(?:-py[0-9.]+)?\.(?:dist-info|egg-info)")


class Environment(msgspec.Struct, frozen=True):
    """An interpreter with its packages, such as `numpy==2.1.0`, sorted; None: unknown."""

    python: Interpreter
    packages: tuple[str, ...] | None = None


class _Known(msgspec.Struct, frozen=True):
    environment: Environment
    stamps: Mapping[str, Stamp]


def python_of(command: Sequence[str], path: str, directory: Path) -> str | None:
    """The Python that a command line runs in `directory`; None when it runs another program, or none is found.

    That is its first word, or what the first line of that script names. `path` is the PATH that the command has.
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


def _found(word: str, path: str, directory: Path) -> str | None:
    places = [""] if "/" in word else path.split(os.pathsep)
    for place in places:
        candidate = os.path.join(directory, place, word)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


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
        is_ours = executable == sys.executable
        version, itself, *places = _own() if is_ours else _ask(executable, directory, deadline)
        places = list(dict.fromkeys(filter(os.path.isdir, places)))
        settings = os.path.join(os.path.dirname(os.path.dirname(itself)), "pyvenv.cfg")
        stamps = {place: stamp_of(place) for place in (executable, os.path.realpath(itself), settings, *places)}
        try:
            packages = tuple(sorted({line for place in places for line in _packages(place, deadline)}))
        except OSError as error:
            raise ProgramError(f"the packages of {executable} cannot be listed: {error}") from None
        environment = Environment(Interpreter(executable=itself, version=version), packages)
        # What a script runs (a shim of pyenv) may depend on anything.
        if not _is_script(executable):
            self._known[executable] = _Known(environment, stamps)
        return environment


def _own() -> list[str]:
    """What `_ask` would answer of the interpreter that runs this."""
    places = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [sys.version.split()[0], sys.executable, *places]


def _is_script(path: str) -> bool:
    return next(_interpreters(path), None) is not None


def _ask(executable: str, directory: Path, deadline: Deadline) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [executable, "-I", "-S", "-c", _PROGRAM, "no user site" if os.environ.get("PYTHONNOUSERSITE") else ""]
    try:
        printed = output(words, cwd=directory, environment=environment, deadline=deadline, most_bytes=_MOST_OUTPUT)
    except ProgramError as error:
        raise type(error)(f"{executable} does not tell what it has: {error}") from None
    lines = os.fsdecode(printed).splitlines()
    if len(lines) < 2:
        raise ProgramError(f"{executable} does not tell what it has")
    return lines


def _packages(place: str, deadline: Deadline) -> Iterator[str]:
    """The lines of the packages in one directory."""
    for name in os.listdir(place):
        found = _INFO.fullmatch(name)
        if found is None:
            continue
        deadline.check("the list of packages")
        origin = _origin(os.path.join(place, name, "direct_url.json"))
        yield f"{re.sub('[-_.]+', '-', found[1]).lower()}=={found[2]}{origin}"


def _origin(path: str) -> str:
    """Where a package comes from that was installed from a directory or a commit."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            document = msgspec.json.decode(os.read(fd, _MOST_BYTES))
        finally:
            os.close(fd)
        if document.get("dir_info", {}).get("editable"):
            # Of a file's address the path alone, which has no user information.
            return f" (editable: {unquote(urlsplit(document['url']).path)})"
        if "vcs_info" in document:
            return f" ({document['vcs_info']['vcs']} {document['vcs_info']['commit_id']})"
    except (OSError, msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError):
        pass
    return ""
