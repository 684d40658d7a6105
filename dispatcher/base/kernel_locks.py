"""Kernel locks on open files. No other module calls flock or locks byte ranges.

flock goes through portalocker's FlockLocker, which takes descriptors and tells contention from failure. To lock and
unlock takes 4.3 us of processor time with it and 0.9 us without, less than 1 % of a claim (0.4 ms and more).
portalocker has no open-file-description (OFD) locks, so these are fcntl calls. Unlike lockf's, they belong to the open
file: another descriptor of the same process is refused, and closing an unrelated one does not release them.

All functions take the descriptor of an open file. A lock is released when the last duplicate of the descriptor is
closed, those that children have inherited included. A lock that is held through another open file is a return value.
Every other failure is an OSError with the kernel's errno; CANNOT_LOCK lists those with which locks may not work here.
A file server in trouble gives some of them too, so they are no proof: see `flock_fault`.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from portalocker import LockException, LockFlags
    from portalocker.portalocker import FlockLocker

CANNOT_LOCK: Final = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO, errno.EINVAL})
# Those of them that come and go with the state of a file server.
PASSING_ERRORS: Final = frozenset({errno.ENOLCK, errno.EIO})
_BUSY: Final = frozenset({errno.EAGAIN, errno.EACCES})
# Pauses between the tries of `flock_fault`.
_PROOF_PAUSES_S: Final = (0.0, 0.1, 0.4, 1.5)


def try_flock(fd: int) -> bool:
    """Take an exclusive flock without waiting; False when the file is locked through another open file."""
    import portalocker

    try:
        _flock_locker().lock(fd, _exclusive_without_waiting())
    except portalocker.AlreadyLocked:
        return False
    except portalocker.LockException as error:
        raise _kernel_error(error) from None
    return True


def wait_for_flock(fd: int) -> None:
    """Take an exclusive flock, waiting until it is free."""
    import portalocker

    try:
        _flock_locker().lock(fd, portalocker.LOCK_EX)
    except portalocker.LockException as error:
        raise _kernel_error(error) from None


def release_flock(fd: int) -> None:
    import portalocker

    try:
        _flock_locker().unlock(fd)
    except portalocker.LockException as error:
        raise _kernel_error(error) from None


def is_flocked(fd: int) -> bool:
    """Whether an exclusive flock is held through another open file; if not, `fd` has a shared one afterwards.

    Not through portalocker: `dispatcher status` does this for every pod. It takes 0.1 s, and importing portalocker,
    which looks up its own version in the metadata of the environment, would add 0.03 s.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return True
        raise
    return False


def flock_fault(path: Path) -> str:
    """Why flock does not exclude on the filesystem of `path`, a new file that is removed again; empty when it does.

    It is tried for two seconds, and must fail each time. Errors other than those of CANNOT_LOCK are raised.
    """
    fault = ""
    with open(path, "xb"):
        try:
            for pause_s in _PROOF_PAUSES_S:
                time.sleep(pause_s)
                fault = _fault_of(path)
                if not fault:
                    break
        finally:
            path.unlink()
    return fault


def _fault_of(path: Path) -> str:
    with open(path, "rb+") as first, open(path, "rb+") as second:
        try:
            excludes = try_flock(first.fileno()) and not try_flock(second.fileno())
        except OSError as error:
            if error.errno not in CANNOT_LOCK:
                raise
            return f"flock fails with {errno.errorcode.get(error.errno, error.errno)} ({error.strerror})"
    return "" if excludes else "flock does not exclude"


def flock_holder(fd: int) -> int | None:
    """The pid of a process of this host that holds a flock on the file; None when there is none or it is not known."""
    inode = str(os.fstat(fd).st_ino)
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        fields = line.split()
        # OFD locks belong to an open file, not to a process: they have no pid.
        if fields[1] == "FLOCK" and fields[5].rsplit(":", 1)[1] == inode:
            pid = int(fields[4])
            # The kernel shows 0 for a process of another PID namespace.
            return pid if pid > 0 else None
    return None


def try_range(fd: int, start: int = 0, length: int = 0) -> bool:
    """Take an exclusive OFD lock on `length` bytes from `start` (0: to the end, however large the file becomes)."""
    try:
        _set_range(fd, fcntl.F_WRLCK, start, length)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def wait_for_range(fd: int, start: int = 0, length: int = 0) -> None:
    """As `try_range`, waiting until the bytes are free, in the order in which processes of this host began to wait."""
    _set_range(fd, fcntl.F_WRLCK, start, length, fcntl.F_OFD_SETLKW)


def release_range(fd: int, start: int = 0, length: int = 0) -> None:
    _set_range(fd, fcntl.F_UNLCK, start, length)


def _set_range(fd: int, kind: int, start: int, length: int, command: int = fcntl.F_OFD_SETLK) -> None:
    fcntl.fcntl(fd, command, struct.pack("hhqqi", kind, os.SEEK_SET, start, length, 0))


@functools.cache
def _flock_locker() -> FlockLocker:
    from portalocker.portalocker import FlockLocker

    return FlockLocker()


@functools.cache
def _exclusive_without_waiting() -> LockFlags:
    # To combine the members of an enum takes longer than the system call.
    from portalocker import LockFlags

    return LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING


def _kernel_error(error: LockException) -> OSError:
    """The error of the system call, which portalocker keeps as the cause."""
    cause = error.__cause__
    return cause if isinstance(cause, OSError) else OSError(errno.EIO, str(error))
