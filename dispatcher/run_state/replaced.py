"""Status files that were replaced while a program may have had them open: it still saves into them.

Where names can be exchanged, the file that was replaced keeps a name beside the new one for as long as it is watched:

    .matrix_status.json.AT-SIZE-MTIME.HOST.NAMESPACE.PID.RANDOM.tmp     a process watches it, or has died
    .matrix_status.json.AT-SIZE-MTIME.RANDOM.replaced                   its process has ended: the next one takes it

AT is the time of the replacement (ms), SIZE and MTIME (ns) are those of the content whose edits the journal has. So a
file that is taken over is read only if it was saved after that, and an edit is not applied a second time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.file_identity import Identity, identity_of

# Where it cannot be known whether a program has the file open for writing, programs are done in this time.
_LINGER_S: Final = 10.0
# A program that goes on writing does so in this time.
PAUSE_S: Final = 10.0
# A program that was opening the file in the moment of the exchange has it open by then.
GRACE_S: Final = 1.0
_STAMP: Final = re.compile(r"\.(\d+)-(\d+)-(\d+)\.")
_HANDED_OVER: Final = ".replaced"
_UNKNOWN: Final[Identity] = (0, 0, 0)


class Replaced:
    """A replaced status file. `identity` is the content that was examined last, `path` its name if it has one.

    `half_written`: that content cannot be parsed. `kept` is content that has a copy in rejected/.
    """

    def __init__(
        self, fd: int, identity: Identity, path: Path | None, clock: Callable[[], float], age_s: float = 0.0
    ) -> None:
        self.fd = fd
        self._clock = clock
        self.identity = identity
        self.path = path
        self.half_written = False
        self.kept: bytes | None = None
        self._begun_s = self._changed_s = clock() - age_s

    @property
    def is_being_written(self) -> bool:
        """Whether the rest of its content is likely to come at once: a program may pause for hours."""
        return self.half_written and self._clock() - self._changed_s < PAUSE_S

    def note_examined(self, identity: Identity, status_file: Path) -> None:
        """Its content is `identity` now, and the journal has its edits, unless it is half written."""
        self.identity, self._changed_s = identity, self._clock()
        if self.path is not None:
            self.path = _renamed(self.path, _own_name(status_file, self._stamp()))

    def may_be_saved(self, *, network: bool, in_a_hurry: bool = False) -> bool:
        """Whether a program may still save into it. `in_a_hurry`: this process ends."""
        age_s = self._clock() - self._begun_s
        if age_s < GRACE_S and not in_a_hurry:
            return True
        has_writer = self.has_writer(network=network)
        return age_s < _LINGER_S if has_writer is None else has_writer

    def has_writer(self, *, network: bool) -> bool | None:
        """Whether a program has it open for writing; None where that cannot be known."""
        return None if network else _has_writer(self.fd)

    def hand_over(self, status_file: Path) -> None:
        """Leave it to the next process that opens the workspace."""
        if self.path is not None:
            name = f".{status_file.name}.{self._stamp()}.{os.urandom(4).hex()}{_HANDED_OVER}"
            _renamed(self.path, status_file.with_name(name))
        self._close()

    def drop(self) -> None:
        """Nobody saves into it any more."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        self._close()

    def _stamp(self) -> str:
        at_s = time.time() - (self._clock() - self._begun_s)
        return _stamp(at_s, _UNKNOWN if self.half_written else self.identity)

    def _close(self) -> None:
        # A file server may have forgotten the replaced file.
        with contextlib.suppress(OSError):
            os.close(self.fd)


def name_of(status_file: Path, examined: Identity) -> Path:
    """A name for the status file when it is replaced now, by this process."""
    return _own_name(status_file, _stamp(time.time(), examined))


def keep(path: Path, examined: Identity, clock: Callable[[], float]) -> Replaced:
    """Watch the file that was replaced, which has such a name."""
    return Replaced(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), examined, path, clock)


def take_over(path: Path, status_file: Path, clock: Callable[[], float]) -> Replaced | None:
    """Watch a file that another process has left; None when it was taken meanwhile, or this user may not read it."""
    stamp = _stamp_of(path, status_file)
    if stamp is None:
        return None
    at_ms, size, mtime_ns = stamp
    mine = _own_name(status_file, _stamp(at_ms / 1000, (0, size, mtime_ns)))
    try:
        fd = files.open_at_once(os.fspath(path), os.O_RDONLY)
    except OSError:
        return None
    try:
        os.rename(path, mine)
    except OSError:
        os.close(fd)
        return None
    # The clock may have been set back: then it is watched from now on.
    age_s = max(0.0, time.time() - at_ms / 1000)
    return Replaced(fd, (os.fstat(fd).st_ino, size, mtime_ns), mine, clock, age_s)


def was_in_place(path: Path, status_file: Path) -> bool:
    """Whether `path` has a name of a replaced status file."""
    return _stamp_of(path, status_file) is not None


def left_behind(status_file: Path) -> Iterator[Path]:
    """The files that no process watches: handed over, or of a process of this host that was killed."""
    with contextlib.suppress(FileNotFoundError):
        paths = [status_file.parent / name for name in os.listdir(status_file.parent) if name.endswith(_HANDED_OVER)]
        for path in (*paths, *files.leftovers(status_file.parent)):
            if was_in_place(path, status_file):
                yield path


def saved_late(status_file: Path) -> Iterator[bytes]:
    """The contents of such files that no process has examined yet."""
    for path in left_behind(status_file):
        with contextlib.suppress(OSError), open(path, "rb", buffering=0, opener=files.open_at_once) as file:
            _, size, mtime_ns = identity_of(os.fstat(file.fileno()))
            stamp = _stamp_of(path, status_file)
            if stamp is not None and (size, mtime_ns) != stamp[1:]:
                yield files.read_fd(file.fileno())


def _stamp_of(path: Path, status_file: Path) -> tuple[int, int, int] | None:
    """When a file was replaced (ms), and size and mtime of what was examined of it; None of any other file."""
    begin = f".{status_file.name}"
    found = _STAMP.match(path.name, len(begin)) if path.name.startswith(begin) else None
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def _stamp(at_s: float, examined: Identity) -> str:
    _, size, mtime_ns = examined
    return f"{at_s * 1000:.0f}-{size}-{mtime_ns}"


def _own_name(status_file: Path, stamp: str) -> Path:
    return files.temporary_name(status_file.with_name(f"{status_file.name}.{stamp}"))


def _renamed(path: Path, new: Path) -> Path:
    try:
        os.rename(path, new)
    except OSError:
        # It keeps the name that it has: at worst, it is read once more.
        return path
    return new


def _has_writer(fd: int) -> bool | None:
    """Whether a process of this host has the file open for writing; None when the kernel does not tell.

    A lease for reading is granted only without one, and only to the file's owner. It is given back at once.
    """
    try:
        # A process that opens the file now breaks the lease. The signal that tells this one so must not end it.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
