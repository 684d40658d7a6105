"""How long attempts wait in a queue: by the record at first, then by this process's own clock."""

from __future__ import annotations

from clocks import Clock
from fleet import Fleet
from participants import backlog_of, shared_of

from dispatcher.config import load_config
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Key, Slot
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.offers import Offer
from dispatcher.pod.participants.queue_limits import QueueLimits
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.states import Record, State

NOON_S, HOURS_S = 1_780_000_000.0, 6 * 3600.0


def test_a_clock_that_is_set_takes_nothing_back(fleet: Fleet) -> None:
    config, clock = CurrentConfig(load_config(fleet.layout), print), Clock()
    shared = shared_of(config=config, observer=Observer(fleet.layout, 60.0, lambda: True), outlets={})
    limits = QueueLimits(shared, backlog_of(offer=lambda: Offer(pod="pod")), clock)
    attempt = RunningAttempt(Key("a", 1), "far", Slot(), fleet.attempt("a"))
    attempt.is_pending = True
    entries = {"a": Entry(job_id="a", method="m", queue_limit_s=600.0)}

    def is_late(now_s: float, claimed_s: float = NOON_S) -> bool:
        records = {"a": Record(state=State.SUBMITTED, attempt=1, started_at=now_text(claimed_s))}
        limits.over([attempt], entries, records, now_s)
        return bool(limits.notes())

    assert not is_late(NOON_S + 10)
    clock.now_s += 60
    assert not is_late(NOON_S + HOURS_S), "the clock was set forward"
    clock.now_s += 500
    assert not is_late(NOON_S - HOURS_S)
    clock.now_s += 100
    assert is_late(NOON_S - HOURS_S), "the clock was set back, and it has waited for 11 minutes"
    limits.over([], entries, {}, NOON_S)
    assert is_late(NOON_S + 700), "a dispatcher that was restarted goes by the record"
