"""When a target is told: clocks are passed in, and the journal's lines are those of a real fold."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dispatcher.notify.schedule import RETRIES_S, Due, due, quiet_until, retry_at_s, zone_of
from dispatcher.notify_config import Quiet, Target, parse_notify
from dispatcher.run_state.events import Event, Note
from dispatcher.run_state.facets.notices import Began, Incident, NoticeClaimed, NoticeEnded, Notifying, incident_key
from dispatcher.run_state.facets.pauses import Paused, Unpaused
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.journal import Line, now_text
from dispatcher.topics import Topic

BERLIN = ZoneInfo("Europe/Berlin")
# A Monday, noon in Berlin.
NOON_S = datetime(2026, 6, 15, 12, tzinfo=BERLIN).timestamp()


class Lab:
    """A fold, and lines at given times."""

    def __init__(self, at_s: float = NOON_S, **keys: Any) -> None:
        self.fold = Fold()
        self.target = parse_notify({"targets": {"t": {"command": ["cat"], **keys}}}).targets["t"]
        self.note(Notifying(targets={"t": tuple(self.target.topics)}), at_s)

    def note(self, note: Note, at_s: float) -> None:
        data = note.as_json()
        self.fold.extend([Line(seq=self.fold.seq + 1, at=now_text(at_s), by="pod", event=note.event, data=data)])

    def fail(self, job: str, at_s: float, reason: str = "exit 1") -> None:
        line = Line(seq=self.fold.seq + 1, at=now_text(at_s), by="pod", event=Event.FAILED, job=job,
                    set={"state": "failed", "reason": reason})  # fmt: skip
        self.fold.extend([line])

    def claim(self, at_s: float, notice: int | None = None) -> int:
        """Somebody sends what is pending; the number of the notice."""
        self.note(NoticeClaimed(target="t", sender="h b 0 1 2", limit_s=30, notice=notice), at_s)
        return self.fold.seq if notice is None else notice

    def end(self, number: int, at_s: float, state: str = "sent", retry_at_s: float | None = None) -> None:
        retry = None if retry_at_s is None else now_text(retry_at_s)
        self.note(NoticeEnded(notice=number, state=state, why="x", retry_at=retry), at_s)

    def due(self, now_s: float, *, at_once: bool = False) -> Due | None:
        return due(self.fold.notices, self.target, BERLIN, now_s, at_once=at_once)

    def due_s(self, now_s: float) -> float | None:
        """Seconds from now until something is told."""
        found = self.due(now_s)
        return None if found is None else found.at_s - now_s


def test_nothing_is_due_when_nothing_has_happened() -> None:
    lab = Lab()
    assert lab.due(NOON_S) is None
    lab.fail("a", NOON_S)
    assert lab.due_s(NOON_S) == 60 and lab.due_s(NOON_S + 40) == 20 and lab.due_s(NOON_S + 100) == 0
    found = lab.due(NOON_S, at_once=True)
    assert found is not None and found.at_s == NOON_S


def test_the_delay_runs_from_the_first_of_them() -> None:
    lab = Lab()
    for number in range(50):
        lab.fail(f"a{number}", NOON_S + number)
    assert lab.due_s(NOON_S + 49) == 11
    [cause] = lab.fold.notices.targets["t"].pending.values()
    assert (cause.count, cause.jobs) == (50, ("a0", "a1", "a2", "a3", "a4"))


def test_while_a_notice_is_under_way_the_next_one_waits() -> None:
    lab = Lab()
    lab.fail("a", NOON_S)
    number = lab.claim(NOON_S + 60)
    lab.fail("b", NOON_S + 61, "exit 2")
    assert lab.due(NOON_S + 200) is None
    lab.end(number, NOON_S + 201)
    assert lab.due_s(NOON_S + 202) == 0


def test_the_same_cause_is_told_again_after_an_hour_and_another_one_soon() -> None:
    lab = Lab()
    lab.fail("a", NOON_S)
    lab.end(lab.claim(NOON_S + 60), NOON_S + 61)
    lab.fail("b", NOON_S + 70)
    found = lab.due(NOON_S + 200)
    assert found is not None and found.at_s == NOON_S + 60 + 3600 and found.why == "told within the hour"
    # It takes the first along.
    lab.fail("c", NOON_S + 300, "exit 2")
    assert lab.due_s(NOON_S + 300) == 60
    lab.claim(NOON_S + 360)
    assert [cause.count for cause in lab.fold.notices.sent[-1].causes.values()] == [1, 1]
    assert not lab.fold.notices.targets["t"].pending


def test_a_scope_that_is_paused_once_more_is_told_as_soon_and_one_that_goes_on_is_not() -> None:
    lab = Lab()
    lab.note(Paused(scope="fft", why="5 jobs failed alike"), NOON_S)
    lab.end(lab.claim(NOON_S + 60), NOON_S + 61)
    lab.note(Unpaused(scope="fft"), NOON_S + 100)
    lab.note(Paused(scope="fft", why="5 other jobs failed alike"), NOON_S + 200)
    assert lab.due_s(NOON_S + 200) == 60
    lab.note(Unpaused(scope="fft", why="a has succeeded"), NOON_S + 210)
    assert lab.due(NOON_S + 210) is None


def test_another_job_that_stalls_is_news_and_the_same_one_is_not() -> None:
    lab = Lab()

    def stall(job: str, at_s: float) -> None:
        key = incident_key(Topic.JOB_STALLED, f"{job}/1")
        lab.note(Incident(topic=Topic.JOB_STALLED, over=(key,)), at_s)
        lab.note(Incident(topic=Topic.JOB_STALLED, began={key: Began("no progress", "", job)}), at_s)

    stall("a", NOON_S)
    lab.end(lab.claim(NOON_S + 60), NOON_S + 61)
    stall("a", NOON_S + 100)
    found = lab.due(NOON_S + 200)
    assert found is not None and (found.at_s, found.why) == (NOON_S + 60 + 3600, "told within the hour")
    stall("b", NOON_S + 300)
    assert lab.due_s(NOON_S + 300) == 0, "its delay runs from the first of what is told together"
    lab.end(lab.claim(NOON_S + 300), NOON_S + 301)
    assert [cause.jobs for cause in lab.fold.notices.sent[-1].causes.values()] == [("a", "b")]
    stall("b", NOON_S + 400)
    found = lab.due(NOON_S + 500)
    assert found is not None and found.at_s == NOON_S + 300 + 3600


def test_a_storm_makes_few_notices() -> None:
    """2,700 failures of 40 causes in half an hour."""
    lab = Lab(per_hour=6)
    notices, told = [], 0
    for second in range(0, 7200, 2):
        now_s = NOON_S + second
        if second < 1800 and second % 2 == 0:
            for more in range(3):
                lab.fail(f"job-{second}-{more}", now_s, f"exit {(second // 2) % 40}")
        if lab.due_s(now_s) == 0:
            number = lab.claim(now_s)
            lab.end(number, now_s + 1)
            notices.append(now_s)
            told += sum(cause.count for cause in lab.fold.notices.sent[-1].causes.values())
    # All are told, and never more than six within an hour.
    assert told == 2700
    assert all(sum(start <= at < start + 3600 for at in notices) <= 6 for start in notices)
    assert len(notices) <= 8


def test_the_cap_holds_back_until_the_hour_is_over() -> None:
    lab = Lab(per_hour=2)
    for minute in (0, 10):
        lab.fail("a", NOON_S + 60 * minute, f"exit {minute}")
        lab.end(lab.claim(NOON_S + 60 * minute + 60), NOON_S + 60 * minute + 61)
    lab.fail("b", NOON_S + 1200, "exit 99")
    found = lab.due(NOON_S + 1300)
    assert found is not None and found.at_s == NOON_S + 60 + 3600 and found.why == "2 in the last hour"
    lab.end(lab.claim(found.at_s), found.at_s + 1)
    lab.fail("c", found.at_s + 2, "exit 98")
    found = lab.due(found.at_s + 100)
    assert found is not None and found.at_s == NOON_S + 660 + 3600, "of the last two, not of all there were"


def test_what_happens_in_quiet_time_is_told_at_its_end() -> None:
    night_s = datetime(2026, 6, 15, 23, 30, tzinfo=BERLIN).timestamp()
    lab = Lab(night_s, quiet="22:00-07:00")
    for number in range(300):
        lab.fail(f"a{number}", night_s + 60 * number, f"exit {number % 3}")
    found = lab.due(night_s + 100)
    morning_s = datetime(2026, 6, 16, 7, tzinfo=BERLIN).timestamp()
    assert found is not None and (found.at_s, found.why) == (morning_s, "quiet time")
    assert lab.due_s(morning_s) == 0
    lab.claim(morning_s)
    assert sorted(cause.count for cause in lab.fold.notices.sent[-1].causes.values()) == [100, 100, 100]
    # Nothing is told early because nobody may be there later.
    lab.fail("b", night_s, "exit 9")
    late = due(lab.fold.notices, lab.target, BERLIN, night_s + 86400, at_once=True)
    assert late is None or late.why == "quiet time"


@pytest.mark.parametrize(
    ("begin", "end", "hour", "until"),
    [(22, 7, 23, 7 + 24), (22, 7, 3, 7), (22, 7, 7, None), (22, 7, 21, None), (12, 14, 13, 14), (12, 14, 14, None),
     (22, 0, 23, 24), (0, 7, 0, 7)],
)  # fmt: skip
def test_quiet_time_may_go_past_midnight(begin: int, end: int, hour: int, until: int | None) -> None:
    at = datetime(2026, 6, 15, hour, 0, tzinfo=BERLIN)
    found = quiet_until(Quiet(60 * begin, 60 * end), BERLIN, at.timestamp())
    midnight_s = datetime(2026, 6, 15, tzinfo=BERLIN).timestamp()
    assert found == (None if until is None else midnight_s + 3600 * until)


def test_quiet_time_ends_when_the_clock_says_so_also_when_it_is_changed() -> None:
    night = datetime(2026, 10, 24, 23, 0, tzinfo=BERLIN)
    found = quiet_until(Quiet(22 * 60, 7 * 60), BERLIN, night.timestamp())
    assert found == datetime(2026, 10, 25, 7, 0, tzinfo=BERLIN).timestamp() == night.timestamp() + 9 * 3600
    # Half past two does not exist in that night.
    spring = datetime(2026, 3, 29, 1, 0, tzinfo=BERLIN)
    end_s = quiet_until(Quiet(22 * 60, 150), BERLIN, spring.timestamp())
    assert end_s is not None and 0 < end_s - spring.timestamp() <= 2 * 3600
    assert quiet_until(Quiet(22 * 60, 150), BERLIN, end_s + 1) is None
    # And this one comes twice.
    autumn_s = datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=BERLIN).timestamp()
    assert quiet_until(Quiet(22 * 60, 150), BERLIN, autumn_s) == autumn_s + 15 * 60


def test_a_zone_is_looked_up_by_its_name() -> None:
    assert zone_of(None) is None and zone_of("Europe/Berlin") == BERLIN


def test_a_notice_that_failed_is_tried_again_a_few_times_before_the_next_one() -> None:
    lab = Lab(per_hour=100)
    lab.fail("a", NOON_S)
    now_s = NOON_S + 60
    number = lab.claim(now_s)
    for tries, wait_s in enumerate(RETRIES_S, 1):
        lab.end(number, now_s, "failed", retry_at_s(tries, now_s))
        lab.fail("b", now_s, f"exit {tries}")
        found = lab.due(now_s)
        assert found is not None and found.notice is not None
        assert found.notice.number == number and found.at_s == now_s + wait_s and not found.notice.wants_attention
        now_s += wait_s
        lab.claim(now_s, number)
    lab.end(number, now_s, "failed", retry_at_s(len(RETRIES_S) + 1, now_s))
    [notice] = lab.fold.notices.sent
    assert notice.wants_attention and notice.tries == len(RETRIES_S) + 1 and "exit 1" in str(notice.causes)
    found = lab.due(now_s + 60)
    assert found is not None and found.notice is None and len(lab.fold.notices.targets["t"].pending) == 3


def test_times_of_a_clock_that_is_ahead_count_as_now() -> None:
    lab = Lab()
    lab.fail("a", NOON_S + 7200)
    assert lab.due_s(NOON_S) == 0
    lab.end(lab.claim(NOON_S + 7200), NOON_S + 7200, "failed", NOON_S + 86400)
    found = lab.due_s(NOON_S)
    assert found is not None and found <= RETRIES_S[-1]


def test_nothing_waits_for_the_clock_of_a_host_that_is_ahead() -> None:
    """Six hours, say: looked at again and again, `at the latest in an hour from now` would never come."""
    ahead_s = NOON_S + 6 * 3600
    lab = Lab(per_hour=1, after="1m")
    lab.fail("a", ahead_s)
    lab.end(lab.claim(ahead_s), ahead_s)
    lab.fail("a", NOON_S + 60)
    assert lab.due_s(NOON_S + 120) == 0, "neither told within the hour nor one in the last hour"
    number = lab.claim(ahead_s)
    lab.end(number, ahead_s, "failed", ahead_s + RETRIES_S[0])
    assert lab.due_s(NOON_S + 180) == 0, "the next try of one that failed"


def test_limits_of_a_target_come_before_those_of_all() -> None:
    document = {"after": "5m", "per_hour": 3, "targets": {"a": {"command": ["x"]}, "b": {"command": ["x"], "after": 2}}}
    targets: dict[str, Target] = dict(parse_notify(document).targets)
    assert (targets["a"].after_s, targets["a"].per_hour) == (300, 3)
    assert (targets["b"].after_s, targets["b"].per_hour) == (2, 3)
