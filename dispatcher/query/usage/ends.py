"""Ends of attempts that the journal does not have: only those of dead pods, of which there are few."""

from __future__ import annotations

from collections.abc import Collection

from dispatcher.base.times import parse_time
from dispatcher.contract import EXIT_PREEMPTED
from dispatcher.errors import StorageError
from dispatcher.outlets.base import PREEMPTED, SUPERSEDED, Ended
from dispatcher.outlets.kinds import DEFAULT
from dispatcher.outlets.wrapper import read_exit
from dispatcher.pod.recover import last_sign
from dispatcher.query.usage.history import Attempt, History, SlotUse
from dispatcher.run_state import liveness
from dispatcher.run_state.journal import now_text
from dispatcher.workspace import Layout


def find_ends(layout: Layout, history: History, alive: Collection[str]) -> None:
    """Look for the ends of attempts in flight whose pod is not alive, and of those with an unknown end.

    One that was superseded may have ended by itself long after its job was taken away from it.
    """
    for attempt in history.in_flight.values():
        if attempt.outlet == DEFAULT and attempt.pod not in alive:
            _find_end(layout, attempt)
    for attempt in history.attempts:
        if attempt.kind is SlotUse.UNKNOWN_END and attempt.outlet == DEFAULT:
            _read_end(layout, attempt)


def _find_end(layout: Layout, attempt: Attempt) -> None:
    """The end of an attempt that no pod has recorded yet."""
    paths = layout.attempt(attempt.job, attempt.number)
    try:
        # Where locks do not work, it may live.
        may_live = liveness.is_held(paths.alive) is not False
    except StorageError:
        may_live = True
    if may_live or _read_end(layout, attempt):
        return
    attempt.kind = SlotUse.UNKNOWN_END
    begun_s = attempt.begun_s or attempt.claimed_s
    attempt.ended_s = max(begun_s, parse_time(last_sign(paths, now_text(begun_s))) or 0.0)


def _read_end(layout: Layout, attempt: Attempt) -> bool:
    """Take the end from the attempt's own exit status; whether there is one."""
    status = read_exit(layout.attempt(attempt.job, attempt.number).directory)
    ended_s = parse_time(status.ended_at) if isinstance(status, Ended) else None
    if not isinstance(status, Ended) or ended_s is None:
        return False
    attempt.ended_s = max(attempt.begun_s or attempt.claimed_s, ended_s)
    attempt.kind = _kind(status)
    return True


def _kind(status: Ended) -> SlotUse:
    if status.exit_reason == SUPERSEDED:
        return SlotUse.SUPERSEDED
    if status.exit_reason == PREEMPTED or status.exit_code == EXIT_PREEMPTED:
        return SlotUse.PREEMPTED
    return SlotUse.USEFUL if status.is_done else SlotUse.FAILED
