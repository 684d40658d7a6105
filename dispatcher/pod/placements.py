"""Where attempts run: what outlets tell, and what of it a record does not have yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatcher.outlets.base import CANNOT_START, Ended, Placement, Running, Status
from dispatcher.run_state.change import Change
from dispatcher.run_state.states import Record, State

# What a record no longer tells of the attempt before, once it is claimed.
CLAIM_UNSETS: Final = Change(
    handle=None, finished_at=None, exit_code=None, reason=None, error=None, retry_at=None, desired=None, inputs_at=None,
    has_result=None,
)  # fmt: skip


def placement_of(record: Record) -> Placement:
    """Where the attempt in flight of a record was placed."""
    return Placement(handle=record.handle, host=record.host, pid=record.pid, gpus=record.gpu_indices, code=record.code)


def placement_change(placement: Placement, record: Record) -> Change:
    """What of a placement the record does not have yet; a placement never removes a field."""
    change = Change()
    if placement.pid not in (None, record.pid):
        change |= Change(pid=placement.pid)
    if placement.host not in (None, record.host):
        change |= Change(host=placement.host)
    if placement.handle not in (None, record.handle):
        change |= Change(handle=placement.handle)
    if placement.code not in (None, record.code):
        change |= Change(code=placement.code)
    if placement.gpus not in ((), record.gpu_indices):
        change |= Change(gpu=gpu_field(placement.gpus))
    return change


def begun_change(placement: Placement, record: Record, *, has_begun: bool) -> Change:
    """As `placement_change`; an attempt that was only submitted and has begun is running now."""
    change = placement_change(placement, record)
    if has_begun and record.state is State.SUBMITTED:
        change |= Change(state=State.RUNNING)
    return change


def differs(placement: Placement, record: Record) -> bool:
    """Whether the record lacks something of a placement."""
    return placement_change(placement, record) != Change()


def has_run(status: Status, placement: Placement | None) -> bool:
    """Whether an attempt of which this is reported runs or has run.

    Short attempts end between two looks. The host alone proves nothing: ssh knows it before a start.
    """
    if isinstance(status, Ended):
        return status.exit_reason != CANNOT_START and placement is not None and placement.host is not None
    return isinstance(status, Running)


def gpu_field(gpus: Sequence[int]) -> int | tuple[int, ...] | None:
    """A slot's GPUs as a record has them."""
    return None if not gpus else gpus[0] if len(gpus) == 1 else tuple(gpus)
