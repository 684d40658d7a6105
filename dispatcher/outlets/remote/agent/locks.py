"""Kernel locks: taking them, and seeing whether a process holds one."""

import errno
import fcntl
import os
import time
from typing import Optional, Tuple

_CANNOT_LOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO, errno.EINVAL)
_BUSY = (errno.EAGAIN, errno.EACCES)


def try_lock(fd: int) -> Optional[bool]:
    """Whether the exclusive lock was taken; None where locks do not work."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno in _CANNOT_LOCK:
            return None
        raise
    return True


def is_locked(path: str) -> Optional[bool]:
    """Whether a process holds the lock; None where locks do not work."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # A shared lock for a moment, so that tests do not disturb each other.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return True
        if error.errno in _CANNOT_LOCK:
            return None
        raise
    finally:
        os.close(fd)
    return False


def lock_patiently(path: str, tries: int = 20, pause_s: float = 0.05) -> Tuple[int, Optional[bool]]:
    """The descriptor of the locked file, and whether it is locked: a test of the lock takes it for a moment."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    return fd, try_lock_patiently(fd, tries, pause_s)


def try_lock_patiently(fd: int, tries: int = 20, pause_s: float = 0.05) -> Optional[bool]:
    for number in range(tries):
        locked = try_lock(fd)
        if locked is not False:
            return locked
        if number + 1 < tries:
            time.sleep(pause_s)
    return False
