"""One run of a name at a time, where nobody else sees to it: for jobs that are started by hand.

The lock is flock on a file beside the results, so that the kernel gives it back however the process ends. The file
stays: to remove it would let two of those that come after hold a lock each. Attempts of a dispatcher take none: the
fence before a commit decides between them, and one that hangs must not hold up the one that follows it.
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

LOCK_FILE: Final = ".lock"

# What this process holds: a job that runs inside of another of that name is no second run.
_held: dict[Path, int] = {}

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def only_run(spec: ExecutionSpec) -> Iterator[None]:
    """Keep others from running `spec` while the block lasts; UsageError, on all processes, when one does already."""
    path = spec.result_path(LOCK_FILE)
    taken = collectives.broadcast_result(
        lambda: contract.attempt_dir() is None and path not in _held and _take(path, spec)
    )
    try:
        yield
    finally:
        # Not so in a forked child that comes here.
        if taken and path in _held:
            os.close(_held.pop(path))


def _take(path: Path, spec: ExecutionSpec) -> bool:
    """Whether the lock is held now; not where files cannot be written or locked, which is no reason to stop."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        _log.debug("%s: a second run of this name would not be noticed: %s", path, error)
        return False
    try:
        is_free = try_flock(fd)
    except OSError as error:
        os.close(fd)
        _log.warning("%s: cannot be locked, a second run of this name would not be noticed: %s", path, error)
        return False
    if not is_free:
        holder = _holder(fd)
        os.close(fd)
        raise UsageError(
            f"{spec.relative_path} is being run already, by {holder}, which holds {path}: two at once would "
            f"replace each other's checkpoints and results in {path.parent}. Wait until it has ended, or choose "
            "another name"
        )
    # On a full disk it says nothing, and locks all the same.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    _held[path] = fd
    return True


def _holder(fd: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        if said := os.pread(fd, 300, 0).decode().strip():
            return said
    return "another process"


def _forget() -> None:
    """In a forked child: it shares the lock, and would keep it when its parent is gone."""
    while _held:
        os.close(_held.popitem()[1])


os.register_at_fork(after_in_child=_forget)
