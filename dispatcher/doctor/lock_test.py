"""Trying each kind of lock on files of a directory: whether it excludes here, and what it costs."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import SoftFileLockProtocolError, StrictSoftFileLock, Timeout

from dispatcher.base import files, host
from dispatcher.base.kernel_locks import try_flock, try_range

LOCK_NAMES = {"flock": "flock", "lockf": "lockf", "hardlink": "hard-link lock"}
BUSY = frozenset({errno.EAGAIN, errno.EACCES})


class LockTest:
    """Locks on files of `directory`, which it leaves as it found it."""

    def __init__(self, directory: Path, name: str = "") -> None:
        self._directory = directory
        self._name = name or f"test-{host.process_name()}"

    def why_not(self, kind: str) -> str | None:
        """Why a lock of this kind does not exclude even on this host; None when it does."""
        with self._clean_up():
            try:
                with held(kind, self._path):
                    return f"{LOCK_NAMES[kind]} is granted to everybody" if try_lock(kind, self._path) else None
            except SoftFileLockProtocolError as error:
                return str(error)
            except OSError as error:
                return f"{LOCK_NAMES[kind]} fails with {files.error_name(error)} ({error.strerror})"

    def time_lock(self) -> None:
        with self._clean_up(), held("flock", self._path):
            pass

    def time_sync(self) -> None:
        with self._clean_up():
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                os.write(fd, b"a line of the journal\n")
                os.fsync(fd)
            finally:
                os.close(fd)

    @property
    def _path(self) -> Path:
        return self._directory / self._name

    @contextlib.contextmanager
    def _clean_up(self) -> Iterator[None]:
        try:
            yield
        finally:
            clean_up(self._path)


@contextlib.contextmanager
def held(kind: str, path: Path) -> Iterator[None]:
    """Hold a lock that is free; OSError (EAGAIN) when it is not, or where locks do not work."""
    if kind == "hardlink":
        lock = StrictSoftFileLock(path, timeout=0, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
        try:
            yield
        finally:
            lock.release()
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not (try_flock(fd) if kind == "flock" else try_range(fd)):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        yield
    finally:
        os.close(fd)


def try_lock(kind: str, path: Path) -> bool:
    """Whether the lock is granted, for a moment; False when somebody holds it."""
    try:
        with held(kind, path):
            return True
    except OSError as error:
        if error.errno in BUSY:
            return False
        raise


def clean_up(path: Path) -> None:
    """Remove what locks at `path` have left."""
    folder = path.with_name(f"{path.name}.filelock")
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder / "claims")
        os.rmdir(folder)
