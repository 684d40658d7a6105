"""Children that this process has inherited from attempts: found, and collected when they have ended."""

from __future__ import annotations

import contextlib
import os

from dispatcher.outlets.local import processes


def orphans(own: set[int]) -> set[int]:
    """The children besides `own` that this process has inherited and that live; those that have ended are collected."""
    while True:
        inherited = {pid for pid in processes.children() - own if not _is_helper(pid)}
        alive = {pid for pid in inherited if not _reap(pid)}
        # One that had ended may have left us a child of its own after the list was read.
        if alive == inherited:
            return alive


def _is_helper(pid: int) -> bool:
    """Whether a child is in this process's own session: every wrapper begins a new one, which none can leave for it."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == os.getsid(0)
    return False


def _reap(pid: int) -> bool:
    """Whether this child has ended, and is collected now."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    return True
