"""When a target is told: after a delay that bundles, outside of quiet time, and not too often. Pure; times in seconds.

Times in the journal are of the host that wrote them. One that is in the future is of a clock that is ahead, and does
not count: it would delay notices until that time.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from dispatcher.base.times import parse_time
from dispatcher.notify_config import Quiet, Target
from dispatcher.run_state.facets.notices import Notice, Notices, TargetState
from dispatcher.run_state.liveness import CLOCKS_DIFFER_S
from dispatcher.topics import Topic

HOUR_S: Final = 3600.0
# A notice that failed is tried again after these times; then it has failed for good.
RETRIES_S: Final = (60.0, 300.0, 1800.0)
# What may happen again and again in an hour, and is told each time.
_ALWAYS_NEWS: Final = frozenset({Topic.MATRIX_DONE, Topic.NOTHING_RUNNING, Topic.METHOD_PAUSED})


class Due(msgspec.Struct, frozen=True):
    """A target is to be told at `at_s`; `notice`: by another try of that one. `why`: what it waits for, if it does."""

    at_s: float
    why: str = ""
    notice: Notice | None = None


def due(notices: Notices, target: Target, zone: tzinfo | None, now_s: float, *, at_once: bool = False) -> Due | None:
    """When a target is told what; None when nothing is to be told, or while a notice to it is being sent.

    `at_once`: without the delay that bundles, because there may be no pod later.
    """
    state = notices.targets.get(target.name)
    if state is None:
        return None
    open_ones = notices.open_to(target.name)
    if any(notice.retry_at is None for notice in open_ones):
        return None
    if open_ones:
        at_s = _past(open_ones[0].retry_at, now_s + RETRIES_S[-1]) or now_s
        return _when_allowed(at_s, "the last try failed", target, state, zone, now_s, open_ones[0])
    if not state.pending:
        return None
    at_s, why = min(_wanted(state, target, now_s, at_once=at_once))
    return _when_allowed(at_s, why, target, state, zone, now_s)


def _wanted(state: TargetState, target: Target, now_s: float, *, at_once: bool) -> Iterable[tuple[float, str]]:
    """When each cause would be told, if it were for it alone."""
    for key, cause in state.pending.items():
        first_s = parse_time(cause.first_at) or now_s
        if first_s > now_s:
            first_s = now_s - target.after_s
        told_s = None if cause.topic in _ALWAYS_NEWS else _past(state.told_at(key), now_s)
        if told_s is not None and now_s - told_s < HOUR_S:
            yield max(told_s + HOUR_S, first_s + target.after_s), "told within the hour"
        else:
            yield first_s + (0.0 if at_once else target.after_s), ""


def _when_allowed(
    at_s: float,
    why: str,
    target: Target,
    state: TargetState,
    zone: tzinfo | None,
    now_s: float,
    notice: Notice | None = None,
) -> Due:
    at_s = max(at_s, now_s)
    last = [past_s for at in state.claimed_at if (past_s := _past(at, now_s)) is not None][-target.per_hour :]
    if len(last) >= target.per_hour and last[0] + HOUR_S > at_s:
        at_s, why = last[0] + HOUR_S, f"{target.per_hour} in the last hour"
    if target.quiet is not None:
        end_s = quiet_until(target.quiet, zone, at_s)
        if end_s is not None:
            at_s, why = end_s, "quiet time"
    return Due(at_s, why if at_s > now_s else "", notice)


def quiet_until(quiet: Quiet, zone: tzinfo | None, at_s: float) -> float | None:
    """When the quiet time ends in which `at_s` is; None when it is in none. `zone` None: that of this host."""
    moment = datetime.fromtimestamp(at_s, zone)
    minute = 60 * moment.hour + moment.minute
    begin, end = quiet.begin, quiet.end
    is_quiet = begin <= minute < end if begin < end else minute >= begin or minute < end
    if not is_quiet:
        return None
    day = moment.date() + timedelta(days=1 if minute >= end else 0)
    # Where the clocks are changed, an end that does not exist is the moment at which they are.
    ends = datetime(day.year, day.month, day.day, end // 60, end % 60, tzinfo=zone)
    # In the night in which they are put back, an end may come twice: the first one is over.
    return (ends if ends.timestamp() > at_s else ends.replace(fold=1)).timestamp()


def zone_of(name: str | None) -> tzinfo | None:
    return None if name is None else ZoneInfo(name)


def retry_at_s(tries: int, now_s: float) -> float | None:
    """When a notice is tried again that has failed so many times; None: never."""
    return now_s + RETRIES_S[tries - 1] if tries <= len(RETRIES_S) else None


def _past(at: str | None, latest_s: float) -> float | None:
    """A time of the journal, at most this one; None where there is none, or it is much later than it can be."""
    seconds = parse_time(at)
    return None if seconds is None or seconds > latest_s + CLOCKS_DIFFER_S else min(seconds, latest_s)
