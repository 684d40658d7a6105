"""How an attempt ended, from its own exit status and from what the scheduler tells. Pure.

The attempt's own exit status counts before the scheduler's word: a scheduler calls a training COMPLETED that saved a
checkpoint and left because it was told to make room, and it forgets jobs. Where there is no exit status, only what the
scheduler says in as many words is believed; an attempt of which nothing is known has not ended. What a signal has
stopped, and no dispatcher, was preempted, unless the scheduler knows better. What was killed without a warning is the
job's own affair, unless the scheduler knows better: a limit of memory is enforced so.
"""

from __future__ import annotations

import signal
from typing import Final

import msgspec

from dispatcher.outlets.base import CANCELLED, CANNOT_START, LOST, NOT_REACHED, PREEMPTED, SUPERSEDED, Ended
from dispatcher.outlets.batch.scheduler import JobState, Phase
from dispatcher.outlets.wrapper import DID_NOT_BEGIN, DOES_NOT_KNOW, did_not_begin

_KILLED: Final = 128 + signal.SIGKILL


def needs_detail(own: Ended) -> bool:
    """Whether the scheduler is to be asked how the attempt ended, which it need not know for most."""
    is_unexplained = not own.exit_reason and (bool(own.told_by_signal) or own.exit_code == _KILLED)
    return own.exit_code is None or is_unexplained


def why_superseded(own: Ended, told: JobState | None) -> Ended:
    """An exit status with what the scheduler has told of the attempt when it was superseded."""
    if own.exit_reason != SUPERSEDED or told is None or told.phase is not Phase.ENDED:
        return own
    return msgspec.structs.replace(own, error=told.why or own.error)


def end_of(
    own: Ended, told: JobState | None, tail: str = "", *, has_begun: bool, is_packed: bool = False
) -> Ended | None:
    """The end of an attempt that left the exit status `own` (`exit_code` None: none); None: it cannot be told.

    `told` is what the scheduler knows, None when nothing. `tail` is the end of the batch script's own output.
    `has_begun`: a wrapper has taken the attempt. `is_packed`: its job was to run others too.
    """
    if own.exit_code is not None:
        return _explained(own, told)
    if told is None or told.phase is not Phase.ENDED:
        return None
    if told.exit_code == DID_NOT_BEGIN:
        return did_not_begin(tail)
    if told.exit_code == DOES_NOT_KNOW:
        told = msgspec.structs.replace(told, exit_code=None)
    error = "; ".join(filter(None, (told.why, tail))) or own.error
    reason = PREEMPTED if told.was_preempted else told.reason
    if is_packed and not has_begun and reason not in ("", PREEMPTED, CANCELLED, CANNOT_START):
        # The time or the memory was used up by others of its pack.
        reason = NOT_REACHED
    elif not (reason or has_begun):
        # Its batch script failed before the attempt, or did not come to it. One that had the job to itself is lost.
        reason = CANNOT_START if told.exit_code else NOT_REACHED if is_packed else ""
    if not (reason or told.exit_code):
        # That it completed is not believed: only an exit status of its own says that the command ran.
        return Ended(None, own.exit_reason, error=error)
    # A job that was cancelled before it began may have a status all the same; it is not the command's.
    has_status = reason != NOT_REACHED and (has_begun or reason != CANCELLED)
    code = told.exit_code or None if has_status else None
    return Ended(code, reason, error=error, blames_host=reason == CANNOT_START, by_scheduler=True)


def _explained(own: Ended, told: JobState | None) -> Ended:
    """An exit status with what the scheduler knows of why the attempt was told to stop, or killed."""
    if not needs_detail(own):
        return own
    known = told if told is not None and told.phase is Phase.ENDED else None
    reason = "" if known is None else PREEMPTED if known.was_preempted else known.reason
    if known is not None and reason:
        return msgspec.structs.replace(own, exit_reason=reason, error=known.why or own.error, by_scheduler=True)
    if not own.told_by_signal:
        return own
    if known is None:
        # A scheduler that forgets its jobs has preempted it. A training that saves and leaves with 0 is not done.
        return msgspec.structs.replace(own, exit_reason=PREEMPTED, by_scheduler=True)
    if known.may_still_run:
        error = f"stopped by {own.told_by_signal} on a node that was lost: {known.why}"
        return msgspec.structs.replace(own, exit_reason=LOST, error=error, by_scheduler=True)
    return own
