"""Children that this process has inherited from attempts: found, and collected when they have ended."""

from __future__ import annotations

import contextlib
import os

from dispatcher.base import programs
from dispatcher.outlets.local import processes


def orphans(own: set[int], since_s: float = 0.0) -> set[int]:
    """The children besides `own` that this process has inherited and that live; those that have ended are collected.

    Those are left out that were started before `since_s`, by `processes.boot_time_s`: neither they nor their
    descendants are of an attempt that began then. Such is the shared connection that ssh leaves behind.
    """
    while True:
        inherited = {
            pid for pid in (processes.children() - own).difference(programs.in_sessions()) if not _is_helper(pid)
        }
        alive = {pid for pid in inherited if not _reap(pid)}
        # One that had ended may have left us a child of its own after the list was read.
        if alive == inherited:
            return {pid for pid in alive if _begun_s(pid) >= since_s}


def _is_helper(pid: int) -> bool:
    """Whether a child is in this process's own session: every wrapper begins a new one, which none can leave for it."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == os.getsid(0)
    return False


def _begun_s(pid: int) -> float:
    """When it was started, at the latest: the kernel counts ticks."""
    begun_s = processes.begun_s(pid)
    return float("inf") if begun_s is None else begun_s + 1 / os.sysconf("SC_CLK_TCK")


def _reap(pid: int) -> bool:
    """Whether this child has ended, and is collected now."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    return True
