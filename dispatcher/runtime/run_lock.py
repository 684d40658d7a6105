"""One run per name at a time, for jobs that run outside a dispatcher.

The lock is flock on a file beside the results, which the kernel releases however the process ends. The file is never
removed: otherwise two later runs could each lock a different file. Attempts of a dispatcher take no lock: the fence
before a commit decides between them, and a hanging attempt must not block the next one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dispatcher import contract
from dispatcher.base.kernel_locks import try_flock
from dispatcher.errors import UsageError
from dispatcher.runtime import collectives
from dispatcher.runtime.execution import ExecutionSpec

_LOCK_FILE: Final = ".lock"

# Locks of this process: a job that runs inside another one of the same name shares its lock.
_held: dict[Path, int] = {}

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def only_run(spec: ExecutionSpec) -> Iterator[None]:
    """Hold the lock of `spec` in the block; UsageError on all processes when another run holds it."""
    path = spec.result_path(_LOCK_FILE)
    taken = collectives.broadcast_result(
        lambda: contract.attempt_dir() is None and path not in _held and _take(path, spec)
    )
    try:
        yield
    finally:
        # A forked child has already closed it.
        if taken and path in _held:
            os.close(_held.pop(path))


def _take(path: Path, spec: ExecutionSpec) -> bool:
    """Take the lock; False where files cannot be written or locked, which must not stop the job."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        _log.debug("%s: a second run of this name cannot be detected: %s", path, error)
        return False
    try:
        is_free = try_flock(fd)
    except OSError as error:
        os.close(fd)
        _log.warning("%s: cannot be locked, a second run of this name cannot be detected: %s", path, error)
        return False
    if not is_free:
        holder = _holder(fd)
        os.close(fd)
        raise UsageError(
            f"{spec.relative_path} is already running: {holder} holds {path}: two at once would "
            f"replace each other's checkpoints and results in {path.parent}. Wait until it has ended, or choose "
            "another name"
        )
    # On a full disk the file stays empty, but the lock holds.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    _held[path] = fd
    return True


def _holder(fd: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        if holder := os.pread(fd, 300, 0).decode().strip():
            return holder
    return "another process"


def _forget() -> None:
    """In a forked child: close the shared lock, which would otherwise outlive the parent."""
    while _held:
        os.close(_held.popitem()[1])


os.register_at_fork(after_in_child=_forget)
