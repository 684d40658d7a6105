"""Times and durations as people read them; files and JSON have ISO 8601 in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from datetime import time as time_of_day
from typing import Final

import msgspec

from dispatcher.base.values import BadValueError, parse_duration

_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86400
# With units, and a time of day: `01:30` alone is that, not a duration.
_AGO: Final = re.compile(r"[\d.\s]+[dhms].*")
_TIME_OF_DAY: Final = re.compile(r"\d\d?:")
_SINCE_EXPECTED: Final = (
    "expected how long ago, such as 2h or 3d, a time such as 14:30, or a date such as 2026-06-17 or '2026-06-17 14:30'"
)


class Clock(msgspec.Struct, frozen=True):
    """Writes times as people read them: `14:03:05`, and `2026-06-17 14:03:05` where that is not today.

    In local time, or in UTC with a Z at the end. `now_s`: seconds since 1970.
    """

    now_s: float
    utc: bool = False

    @property
    def zone(self) -> tzinfo | None:
        """None is the local zone."""
        return UTC if self.utc else None

    def __call__(self, time: str | float | None) -> str:
        """A time as the journal writes it, or in seconds since 1970. One that cannot be parsed is given as it is."""
        seconds = parse_time(time) if isinstance(time, str) else time
        if seconds is None:
            return str(time or "")
        try:
            moment = datetime.fromtimestamp(seconds, self.zone)
            now = datetime.fromtimestamp(self.now_s, self.zone)
        except (ValueError, OverflowError, OSError):
            return str(time)
        shown = "%H:%M:%S" if moment.date() == now.date() else "%Y-%m-%d %H:%M:%S"
        return moment.strftime(shown) + ("Z" if self.utc else "")


def parse_time(text: str | None) -> float | None:
    """Seconds since 1970 from an ISO 8601 time (UTC when it has no zone); None when it cannot be parsed.

    Labs have status files with an hour 26: such times are shown as unknown.
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_since(text: str, clock: Clock) -> float:
    """Seconds since 1970 from a moment as people write it, in the clock's zone unless it names one.

    `2h` and `1d12h` are that long ago; `14:30` is the last time that it was half past two; dates and ISO 8601 times.
    Raises BadValueError.
    """
    text = text.strip()
    try:
        if _AGO.fullmatch(text):
            return clock.now_s - parse_duration(text)
        if _TIME_OF_DAY.match(text):
            return _last(time_of_day.fromisoformat(text), clock)
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=clock.zone)).timestamp()
    except (ValueError, OverflowError):
        raise BadValueError(_SINCE_EXPECTED) from None


def days_between(since_s: float, until_s: float, clock: Clock) -> list[tuple[float, str]]:
    """The days that lie in a window, in the clock's zone: from when on each does, and its date (`2026-06-17`)."""
    date = datetime.fromtimestamp(since_s, clock.zone).date()
    days = []
    begun_s = since_s
    while begun_s < until_s:
        days.append((begun_s, date.isoformat()))
        date += timedelta(days=1)
        # Not a day's seconds later: some days have an hour more or less.
        begun_s = datetime.combine(date, time_of_day(), clock.zone).timestamp()
    return days


def _last(time: time_of_day, clock: Clock) -> float:
    zone = time.tzinfo or clock.zone
    moment = datetime.combine(datetime.fromtimestamp(clock.now_s, zone), time.replace(tzinfo=zone))
    return (moment if moment.timestamp() <= clock.now_s else moment - timedelta(days=1)).timestamp()


def duration_text(seconds: float | None) -> str:
    """`45s`, `12m05s`, `3h07m`, `2d04h`; `?` when unknown."""
    if seconds is None:
        return "?"
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m{whole % _MINUTE_S:02d}s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h{whole % _HOUR_S // _MINUTE_S:02d}m"
    return f"{whole // _DAY_S}d{whole % _DAY_S // _HOUR_S:02d}h"


def ago(seconds: float | None) -> str:
    """`12 s ago`, `3 min ago`, `2 h ago`, `5 d ago`; `?` when unknown."""
    if seconds is None:
        return "?"
    for unit, unit_s in (("d", _DAY_S), ("h", _HOUR_S), ("min", _MINUTE_S)):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {unit} ago"
    return f"{max(0, int(seconds))} s ago"
