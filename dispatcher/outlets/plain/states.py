"""What the check of an attempt on its host means, where the agent has started it. Pure."""

from __future__ import annotations

import msgspec

from dispatcher.outlets.base import CANNOT_START
from dispatcher.outlets.batch.scheduler import JobState, Phase
from dispatcher.outlets.remote.operations import Checked


def state_of(one: Checked) -> JobState:
    """The state of an attempt that was launched."""
    handle = handle_of(one.host, one.pid)
    if one.is_alive:
        return JobState(phase=Phase.RUNNING, handle=handle, host=one.host or None, pid=one.pid, gpus=one.gpus)
    if one.is_alive is None:
        return JobState(phase=Phase.UNKNOWN, handle=handle, host=one.host or None, why=one.error)
    state = JobState(phase=Phase.ENDED, handle=handle, host=one.host or None, pid=one.pid, gpus=one.gpus)
    if one.has_exit:
        return state
    if one.was_rebooted:
        return msgspec.structs.replace(state, why=f"{one.host} was restarted while it ran")
    if not one.was_taken:
        return msgspec.structs.replace(state, why="its wrapper ended before it began", reason=CANNOT_START)
    return msgspec.structs.replace(state, why=f"its processes on {one.host} are gone, and it left no exit status")


def handle_of(host: str, pid: int | None) -> str:
    """What an attempt is called there: a hint for people."""
    return f"{host}:{pid}" if pid else host
