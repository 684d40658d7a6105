"""What the loop is told of an attempt that has not ended. Pure."""

from __future__ import annotations

from dispatcher.outlets.base import GpuUse, Pending, Running, Status, Unknown
from dispatcher.outlets.batch.scheduler import Phase
from dispatcher.outlets.batch.tracked import Tracked


def status_of(one: Tracked, problem: str, why_unsent: str | None, use: GpuUse | None = None) -> Status:
    """`problem` is why it cannot be told how attempts are now, empty when it can.

    `why_unsent` is why its submission waits, None when nothing is left to be submitted. `use` is that of its
    GPUs, None where it is unknown.
    """
    state = one.state
    if problem and (one.is_known or why_unsent is None):
        return Unknown(problem)
    if one.is_superseded and one.marked_s is None:
        return Unknown("superseded, which could not be marked on its host yet")
    if state is None or one.absent_since_s is not None:
        return _absent(one, why_unsent or problem or "not named by the scheduler yet")
    if state.phase in (Phase.PENDING, Phase.UNKNOWN):
        return Pending(state.why) if state.phase is Phase.PENDING else Unknown(state.why)
    if one.is_packed and not one.was_taken:
        return Pending("others of its pack run first")
    return Running("", use) if state.phase is Phase.RUNNING else Running("it has ended")


def _absent(one: Tracked, why: str) -> Status:
    """The status of an attempt that the scheduler does not name."""
    if not one.is_known:
        return Pending(why)
    if one.state is None:
        return Pending("accepted, not named by the scheduler yet")
    return Unknown("the scheduler does not name it any more, and it left no exit status")
