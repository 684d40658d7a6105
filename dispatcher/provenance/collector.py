"""Recording what attempts ran from, in a thread beside the loop: it never delays a start, and its failures cost none.

Attempts that start together share one look at the code, which begins after the last of them was started. The next look
comes after a pause, which is the longer the slower the look was, so that short jobs and large repositories cost little.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.messages import is_utf8, readable
from dispatcher.errors import StorageError
from dispatcher.provenance.blobs import Blobs, replace_shared
from dispatcher.provenance.code import Code, CodeReader
from dispatcher.provenance.interpreters import Interpreters, python_of
from dispatcher.provenance.origin import Origin
from dispatcher.provenance.programs import Deadline, ProgramError, TooSlowError
from dispatcher.provenance.record import HostFacts, Interpreter, Provenance
from dispatcher.workspace import Layout

# For all programs of a look: those of git, and those that are asked for packages.
DEADLINE_S: Final = 10.0
PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
# A look may take up to this part of the time.
_SHARE: Final = 0.05
# Where git was too slow, it is not asked again so soon.
_REST_S: Final = 300.0
# Attempts that wait to be recorded; there are more only when the storage hangs.
_MOST_WAITING: Final = 10_000


class _Python(msgspec.Struct, frozen=True):
    """The Python that attempts run, the digest of the list of its packages, and what could not be found out."""

    python: Interpreter | None = None
    packages: str | None = None
    problems: tuple[str, ...] = ()


class Collector:
    """Records the provenance of one pod's attempts."""

    def __init__(self, layout: Layout, *, deadline_s: float = DEADLINE_S, pause_s: float = PAUSE_S) -> None:
        self._layout = layout
        self._deadline_s = deadline_s
        self._pause_s = pause_s
        self._code = CodeReader(layout)
        self._interpreters = Interpreters()
        self._blobs = Blobs(layout)
        self._condition = threading.Condition()
        self._waiting: list[Origin] = []
        self._is_closing = False
        self._thread: threading.Thread | None = None
        # Until when git is not asked, and why.
        self._rests_until_s = 0.0
        self._slow = ""

    def note(self, origins: Iterable[Origin]) -> None:
        """Record these attempts, which were started just now. Returns at once and never raises."""
        with self._condition:
            room = _MOST_WAITING - len(self._waiting)
            self._waiting += list(origins)[: max(0, room)]
            self._condition.notify()
        if self._waiting and (self._thread is None or not self._thread.is_alive()):
            # It does not keep the pod from ending: what it hangs on may never answer.
            thread = threading.Thread(target=self._run, name="recording provenance", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # This user may have no more processes: these attempts are not recorded.
                return
            self._thread = thread

    def close(self, patience_s: float) -> None:
        """Record what waits, without further pauses; what takes longer than `patience_s` is not recorded."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(patience_s)

    def _run(self) -> None:
        next_s = 0.0
        while True:
            with self._condition:
                while not (self._is_closing or (self._waiting and time.monotonic() >= next_s)):
                    self._condition.wait(max(0.0, next_s - time.monotonic()) if self._waiting else None)
                origins, self._waiting = self._waiting, []
            if not origins:
                return
            begun_s = time.monotonic()
            self._record(origins)
            took_s = time.monotonic() - begun_s
            next_s = time.monotonic() + min(max(self._pause_s, took_s / _SHARE), _LONGEST_PAUSE_S)

    def _record(self, origins: Sequence[Origin]) -> None:
        collected_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        asks_git = any(origin.git is None and origin.runs_workspace for origin in origins)
        code = self._look_at_code() if asks_git else Code(None)
        deadline = Deadline(self._deadline_s)
        try:
            mode = 0o666 & ~files.umask_of(self._layout.root)
        except StorageError:
            return
        pythons: dict[tuple[object, ...], _Python] = {}
        for origin in origins:
            key = (*origin.command[:1], origin.path, origin.cwd, origin.hides_python, origin.host is None)
            if key not in pythons:
                pythons[key] = self._python(origin, deadline)
            found = _provenance(origin, collected_at, code, pythons[key])
            path = Path(origin.directory, contract.PROVENANCE_FILE)
            try:
                replace_shared(path, _encoded(found) + b"\n", mode)
            except OSError:
                # A full disk, or the attempt's directory is gone: readers say "not recorded".
                continue

    def _look_at_code(self) -> Code:
        if time.monotonic() < self._rests_until_s:
            return Code(None, (self._slow,))
        try:
            return self._code.read(self._deadline_s)
        except TooSlowError as error:
            self._rests_until_s = time.monotonic() + _REST_S
            self._slow = str(error)
            return Code(None, (self._slow,))
        except OSError as error:
            return Code(None, (f"git: {error}",))

    def _python(self, origin: Origin, deadline: Deadline) -> _Python:
        """The Python that the command runs; nothing when it runs none, or that is unknown."""
        if origin.host is None or origin.hides_python:
            return _Python()
        directory = Path(self._layout.root, origin.cwd)
        try:
            python = python_of(origin.command, origin.path, directory)
            if python is None:
                return _Python()
            found = self._interpreters.look_at(python, directory, deadline)
        except (ProgramError, OSError) as error:
            return _Python(problems=(f"python: {error}",))
        try:
            return _Python(found.python, self._blobs.add_packages(found.packages))
        except (OSError, StorageError) as error:
            return _Python(found.python, problems=(f"the list of packages cannot be kept: {error}",))


def _provenance(origin: Origin, collected_at: str, code: Code, python: _Python) -> Provenance:
    asks_git = origin.git is None and origin.runs_workspace
    there = origin.host or HostFacts()
    return Provenance(
        collected_at=collected_at,
        command=origin.command,
        template=origin.template,
        script_sha256=origin.script_sha256,
        git=code.state if asks_git else origin.git,
        python=python.python,
        packages=python.packages,
        host=there.host,
        driver=there.driver,
        gpus=there.gpus,
        environment=origin.environment,
        env_names=origin.env_names,
        problems=(*there.problems, *(code.problems if asks_git else origin.problems), *python.problems),
    )


def _encoded(found: Provenance) -> bytes:
    """As JSON; bytes that are no UTF-8, as paths and addresses may have them, as `\\xff`."""
    try:
        return msgspec.json.encode(found)
    except UnicodeEncodeError:
        return msgspec.json.encode(_readable(msgspec.to_builtins(found)))


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value if is_utf8(value) else readable(value)
    if isinstance(value, dict):
        return {_readable(key): _readable(inner) for key, inner in value.items()}
    return [_readable(inner) for inner in value] if isinstance(value, (list, tuple)) else value
