"""Tries each kind of lock on a file of one directory: whether it excludes, and how long it takes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dispatcher.base import files, host
from dispatcher.base.kernel_locks import try_flock, try_range
from dispatcher.config import LockKind
from dispatcher.errors import DispatcherError
from dispatcher.run_state import hardlink_lock
from dispatcher.run_state.hardlink_lock import HardLinkLock
from dispatcher.run_state.lock import KINDS

LOCK_NAMES: Final = {kind: "hard-link lock" if kind == LockKind.HARDLINK else kind for kind in KINDS}


class LockTest:
    """Locks a new file of `directory`, and removes it afterwards."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"test-{host.process_name()}"

    def failure(self, kind: str) -> str | None:
        """Why a lock of this kind does not exclude even on this host; None when it does."""
        with self._clean_up():
            try:
                with held(kind, self._path):
                    return f"{LOCK_NAMES[kind]} is granted twice" if can_lock(kind, self._path) else None
            except (OSError, DispatcherError) as error:
                return f"{LOCK_NAMES[kind]} fails with {reason(error)}"

    def lock_and_unlock(self) -> None:
        with self._clean_up(), held(LockKind.FLOCK, self._path):
            pass

    def append_and_sync(self) -> None:
        with self._clean_up():
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                os.write(fd, b"a line of the journal\n")
                os.fsync(fd)
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def _clean_up(self) -> Iterator[None]:
        try:
            yield
        finally:
            hardlink_lock.remove_files(self._path)


@contextlib.contextmanager
def held(kind: str, path: Path) -> Iterator[None]:
    """Hold a lock. Raises BlockingIOError when it is not free, OSError or LockError when it fails."""
    if kind == LockKind.HARDLINK:
        lock = HardLinkLock(path)
        is_taken = lock.try_acquire()
        try:
            _refuse_unless(is_taken)
            yield
        finally:
            if is_taken:
                lock.release()
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _refuse_unless(try_flock(fd) if kind == LockKind.FLOCK else try_range(fd))
        yield
    finally:
        os.close(fd)


def _refuse_unless(is_taken: bool) -> None:
    if not is_taken:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def can_lock(kind: str, path: Path) -> bool:
    """Whether the lock could be taken (and released) just now; False when it is held."""
    try:
        with held(kind, path):
            return True
    except BlockingIOError:
        return False


def reason(error: Exception) -> str:
    """Why a lock failed, for a finding that names the mount itself."""
    if isinstance(error, OSError):
        return f"{files.error_name(error)} ({error.strerror})"
    return str(error.__cause__ or error)
