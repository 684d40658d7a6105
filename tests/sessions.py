"""Killing what a wrapper and its job leave no time to end well, as a host that is switched off does."""

from __future__ import annotations

import contextlib
import os
import signal


def kill_session(leader: int) -> None:
    """Kill a process that leads a session, and all others in it: a job has a process group of its own."""
    for pid in (leader, *(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != leader)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
