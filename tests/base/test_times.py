from __future__ import annotations

import time
from datetime import datetime

import pytest

from dispatcher.base.times import Clock, ago, days_between, duration_text, parse_since, parse_time
from dispatcher.base.values import BadValueError

# Noon of 17 June 2026 in UTC.
NOON_S = parse_time("2026-06-17T12:00:00Z")


@pytest.fixture
def in_athens(monkeypatch):
    """The local time of these tests is three hours ahead of UTC."""
    monkeypatch.setenv("TZ", "EEST-3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("written", "local", "utc"),
    [
        ("2026-06-17T11:03:05.987Z", "14:03:05", "11:03:05Z"),
        ("2026-06-17T14:03:05+03:00", "14:03:05", "11:03:05Z"),
        (NOON_S, "15:00:00", "12:00:00Z"),
        ("2026-06-16T20:00:00Z", "2026-06-16 23:00:00", "2026-06-16 20:00:00Z"),
        # Another day in one of the two.
        ("2026-06-16T22:30:00Z", "01:30:00", "2026-06-16 22:30:00Z"),
        ("2026-06-17T22:30:00Z", "2026-06-18 01:30:00", "22:30:00Z"),
        ("2026-06-17T26:12:00Z", "2026-06-17T26:12:00Z", "2026-06-17T26:12:00Z"),
        (1e300, "1e+300", "1e+300"),
        (None, "", ""),
    ],
)
def test_times_are_local_or_utc_and_have_a_date_where_it_is_not_today(in_athens, written, local, utc):
    assert Clock(NOON_S)(written) == local
    assert Clock(NOON_S, utc=True)(written) == utc


@pytest.mark.parametrize(
    ("typed", "local", "utc"),
    [
        ("2h", "2026-06-17T10:00:00Z", "2026-06-17T10:00:00Z"),
        ("1d12h", "2026-06-16T00:00:00Z", "2026-06-16T00:00:00Z"),
        (" 90 m", "2026-06-17T10:30:00Z", "2026-06-17T10:30:00Z"),
        # It is three o'clock in the afternoon here: half past two was today, four o'clock was yesterday.
        ("14:30", "2026-06-17T11:30:00Z", "2026-06-16T14:30:00Z"),
        ("16:00:05", "2026-06-16T13:00:05Z", "2026-06-16T16:00:05Z"),
        # As `--utc` prints them.
        ("11:30:00Z", "2026-06-17T11:30:00Z", "2026-06-17T11:30:00Z"),
        ("2026-06-16 20:00:00Z", "2026-06-16T20:00:00Z", "2026-06-16T20:00:00Z"),
        ("2026-06-17", "2026-06-16T21:00:00Z", "2026-06-17T00:00:00Z"),
        ("2026-06-16 14:30", "2026-06-16T11:30:00Z", "2026-06-16T14:30:00Z"),
        ("2026-06-16T14:30+02:00", "2026-06-16T12:30:00Z", "2026-06-16T12:30:00Z"),
    ],
)
def test_moments_that_people_type(in_athens, typed, local, utc):
    assert parse_since(typed, Clock(NOON_S)) == parse_time(local)
    assert parse_since(typed, Clock(NOON_S, utc=True)) == parse_time(utc)


@pytest.mark.parametrize("typed", ["", "2x", "90", "25:00", "2026-13-01", "yesterday", "2h ago", "-2h", "99999999d"])
def test_what_is_no_moment(typed):
    with pytest.raises(BadValueError, match="such as 2h or 3d"):
        parse_since(typed, Clock(NOON_S))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T00:01:00.250Z", 60.25),
        ("1970-01-01T01:01:00+01:00", 60.0),
        ("1970-01-01T00:01:00", 60.0),
        ("2026-06-17T26:12:00Z", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_times_in_files(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.9, "0s"), (59, "59s"), (725, "12m05s"), (11220, "3h07m"), (187200, "2d04h")],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (-3.0, "0 s ago"),
        (12.7, "12 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (7199, "1 h ago"),
        (7200, "2 h ago"),
        (5 * 86400, "5 d ago"),
    ],
)
def test_how_long_ago(seconds, text):
    assert ago(seconds) == text


def test_days_of_a_window_begin_at_midnight_also_where_one_has_an_hour_more(in_athens, monkeypatch):
    monkeypatch.setenv("TZ", "EET-2EEST,M3.5.0/3,M10.5.0/4")
    time.tzset()
    noon_s = datetime(2026, 10, 24, 12).timestamp()
    days = days_between(noon_s, noon_s + 2 * 86400, Clock(noon_s))
    assert [date for _, date in days] == ["2026-10-24", "2026-10-25", "2026-10-26"]
    assert [begun_s - noon_s for begun_s, _ in days] == [0, 12 * 3600, 37 * 3600]
    assert days_between(noon_s, noon_s, Clock(noon_s)) == []
