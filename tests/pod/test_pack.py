"""Jobs of one claim that share a slot, one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from submissions import Submissions

from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import (
    NOT_REACHED,
    QUEUE_LIMIT,
    Ended,
    Key,
    Pending,
    Placement,
    Report,
    Request,
    Running,
)
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.pod import outcome
from dispatcher.pod.claim import Choice, ClaimQueue
from dispatcher.pod.offers import Offer, offers_of
from dispatcher.pod.outcome import Policy
from dispatcher.pod.pack import Pack
from dispatcher.pod.running_attempts import RunningAttempts
from dispatcher.pod.waiting import Facts
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout

NOW = "2026-06-17T23:00:00.000Z"
QUEUED = Record(state=State.QUEUED)
SIZES = {"small": 3, "big": 1}


def queue_of(capacities: dict[str, Any], *entries: Entry) -> ClaimQueue:
    listed = {entry.job_id: entry for entry in entries}
    offer = Offer(pod="pod", outlets=offers_of(capacities))
    facts = Facts(
        records=dict.fromkeys(listed, QUEUED),
        entries=listed,
        now="",
        request_of=lambda entry: Request(entry.gpus),
        offers=(offer,),
    )
    queue = ClaimQueue(facts, capacities, lambda entry: SIZES[entry.method])
    for job in listed:
        queue.update(job)
    return queue


def jobs(names: str, method: str = "small", **fields: Any) -> list[Entry]:
    return [Entry(job_id=name, method=method, order=ord(name), **fields) for name in names]


def packs(choices: list[Choice]) -> list[str]:
    """The jobs of each slot, in their order."""
    found: dict[int, str] = {}
    for number, choice in enumerate(choices):
        key = number if choice.pack is None else id(choice.pack)
        found[key] = found.get(key, "") + choice.entry.job_id
    return list(found.values())


def test_jobs_of_one_method_share_a_slot() -> None:
    batch = Submissions(3, packs=True)
    queue = queue_of({"batch": batch}, *jobs("abcde"), *jobs("x", "big"), *jobs("yz", "big"))
    assert packs(queue.choose(NOW)) == ["abc", "de", "x"]
    assert batch.in_flight == 3
    assert not queue.choose(NOW) and queue.has_ready(NOW)


def test_only_what_asks_for_the_same_is_packed() -> None:
    batch = Submissions(9, packs=True)
    queue = queue_of({"batch": batch}, *jobs("ac", gpus=1), *jobs("bd", gpus=2), *jobs("e", gpus=1, priority=5))
    assert packs(queue.choose(NOW)) == ["eac", "bd"]


def test_an_outlet_that_runs_them_one_by_one_has_no_packs() -> None:
    queue = queue_of({"local": LocalCapacity([], 2)}, *jobs("abc"))
    assert packs(queue.choose(NOW)) == ["a", "b"]


def test_a_limit_of_claims_counts_jobs() -> None:
    queue = queue_of({"batch": Submissions(9, packs=True)}, *jobs("abcdefg"))
    assert packs(queue.choose(NOW, 4)) == ["abc", "d"]
    assert packs(queue.choose(NOW, 0)) == []
    assert packs(queue.choose(NOW, 2)) == ["ef"]
    assert packs(queue.choose(NOW)) == ["g"]


def test_what_cannot_be_started_is_left_out() -> None:
    entries = jobs("abcd")
    offer = Offer(pod="pod", outlets=offers_of({"batch": Submissions(9, packs=True)}))
    facts = Facts(
        records={entry.job_id: QUEUED for entry in entries},
        entries={entry.job_id: entry for entry in entries},
        now="",
        request_of=lambda entry: Request(entry.gpus),
        fault_of=lambda entry: "broken" if entry.job_id == "b" else "",
        offers=(offer,),
    )
    queue = ClaimQueue(facts, {"batch": Submissions(9, packs=True)}, lambda entry: 3)
    for entry in entries:
        queue.update(entry.job_id)
    assert packs(queue.choose(NOW)) == ["acd"]


class Outlet:
    """An outlet that is told what to say."""

    def __init__(self) -> None:
        self.capacity = Submissions(2, packs=True)
        self.reports: dict[Key, Report] = {}

    def poll(self, keys: Any) -> dict[Key, Report]:
        return {key: self.reports[key] for key in keys}


@pytest.fixture
def outlet() -> Outlet:
    return Outlet()


def test_the_slot_is_free_when_the_last_has_ended(outlet: Outlet, tmp_path: Any) -> None:
    attempts = RunningAttempts(Layout(tmp_path), {"batch": outlet})  # type: ignore[dict-item]
    pack = Pack()
    slot = outlet.capacity.take(Request())
    assert slot is not None
    first, second, third = (Key(job, 1) for job in "abc")
    for key in (first, second, third):
        pack.join()
        attempts.add(key, "batch", slot, pack)
        outlet.reports[key] = Report(Pending("in the queue"))
    attempts.poll(attempts)
    assert [one.is_pending for one in attempts] == [True, True, True]
    outlet.reports[first] = Report(Running(), Placement(host="node1"))
    attempts.poll(attempts)
    # The others wait for their turn, which no queue limit may end.
    assert [one.is_pending for one in attempts] == [False, False, False]
    outlet.reports[first] = Report(Ended(0), Placement(host="node1"))
    attempts.release(attempts.collect())
    attempts.release(attempts.collect())
    assert outlet.capacity.in_flight == 1
    for key in (second, third):
        outlet.reports[key] = Report(Ended(None, NOT_REACHED))
    attempts.release(attempts.collect())
    assert outlet.capacity.in_flight == 0


@pytest.mark.parametrize("reason", [NOT_REACHED, QUEUE_LIMIT])
def test_what_was_not_begun_goes_back_without_being_counted(reason: str, tmp_path: Any) -> None:
    before = Record(state=State.SUBMITTED, attempt=3, outlet="batch", requeues=2, retries=1, backoff=4)
    ended = outcome.judge(Ended(None, reason, error="x"), Layout(tmp_path).attempt("a", 3))
    event, change = outcome.after(ended, before, Policy(max_requeues=2, on_preempted="fail", on_lost="fail"), 0.0)
    assert event is Event.AUTO_REQUEUED
    fields = {name: value for name, value in change.fields().items() if value is not None}
    finished = {"finished_at": "1970-01-01T00:00:00.000Z"} if reason == QUEUE_LIMIT else {}
    assert fields == {
        "state": "queued", "outlet": "batch", "reason": reason, "error": "x", "requeues": 2, "retries": 1, "backoff": 4,
        **finished,
    }  # fmt: skip


def test_a_job_that_leaves_with_0_when_it_is_taken_back_has_not_proved_that_it_is_done(tmp_path: Any) -> None:
    ended = outcome.judge(Ended(0, QUEUE_LIMIT), Layout(tmp_path).attempt("a", 1))
    event, _ = outcome.after(ended, Record(state=State.RUNNING, attempt=1), Policy(), 0.0)
    assert event is Event.AUTO_REQUEUED


def test_a_training_that_saved_when_it_was_taken_back_is_not_counted_as_preempted(tmp_path: Any) -> None:
    ended = outcome.judge(Ended(75, QUEUE_LIMIT), Layout(tmp_path).attempt("a", 1))
    assert (ended.exit_reason, ended.pod_stopped) == (QUEUE_LIMIT, False)
