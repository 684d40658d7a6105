"""The order of claims: priority, needs, GPUs, pauses and retries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from claim_queues import DONE, LATE, NOW, QUEUED, RUNNING, change, entry, made, names, paused, queue_of

from dispatcher.outlets.base import Request, Slot
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.run_state.states import Record, State


def test_priority_first_then_the_manifests_order() -> None:
    queue = queue_of(made(*(entry(job, n, priority=n == 2) for n, job in enumerate("dcba"))), LocalCapacity([], 4))
    assert queue.upcoming() == ["b"]
    assert names(queue.choose(NOW)) == ["b", "d", "c", "a"]


def test_a_priority_set_by_hand_counts_more_than_the_manifests() -> None:
    queue = queue_of(made(entry("a", 0, priority=1), entry("b", 1)), LocalCapacity([], 1))
    change(queue, "b", Record(state=State.QUEUED, priority=2))
    assert names(queue.choose(NOW)) == ["b"]
    queue = queue_of(made(entry("a", 0, priority=2), entry("b", 1, priority=1)), LocalCapacity([], 1))
    change(queue, "a", Record(state=State.QUEUED, priority=0))
    assert names(queue.choose(NOW)) == ["b"]


def test_needs_wait_until_they_are_done_and_again_when_they_are_not() -> None:
    queue = queue_of(made(entry("a"), entry("b", 1, needs=("a",))), LocalCapacity([], 9))
    assert names(queue.choose(NOW)) == ["a"]
    change(queue, "a", DONE)
    change(queue, "a", QUEUED)
    change(queue, "b", QUEUED)
    assert names(queue.choose(NOW)) == ["a"]
    change(queue, "a", DONE)
    assert names(queue.choose(NOW)) == ["b"]


def test_a_retry_by_the_clock_of_a_host_that_is_ahead() -> None:
    """It waits for the longest pause that its record can mean, from when this pod has seen it first."""
    queue = queue_of(made(entry("a")), LocalCapacity([], 1))
    change(queue, "a", Record(state=State.QUEUED, retry_at=LATE, retries=2, backoff=2))
    assert queue.next_retry(NOW) == "2026-06-17T23:01:00.000Z"
    assert queue.next_retry("2026-06-17T23:00:59.000Z") == "2026-06-17T23:01:00.000Z"
    change(queue, "a", Record(state=State.QUEUED, retry_at=LATE, retries=2, backoff=2, priority=3))
    assert queue.next_retry("2026-06-17T23:00:59.000Z") == "2026-06-17T23:01:00.000Z", "seen once"
    assert not queue.choose("2026-06-17T23:00:59.000Z")
    assert queue.choose("2026-06-17T23:01:00.000Z")


def test_a_retry_when_the_clock_of_this_host_is_set_back() -> None:
    queue = queue_of(made(entry("a")), LocalCapacity([], 1))
    change(queue, "a", Record(state=State.QUEUED, retry_at="2026-06-18T00:00:30.000Z", retries=1, backoff=1))
    assert queue.next_retry(LATE) == "2026-06-18T00:00:30.000Z"
    assert queue.next_retry(NOW) == "2026-06-17T23:00:30.000Z"


def test_a_time_that_a_person_has_set_is_kept() -> None:
    queue = queue_of(made(entry("a")), LocalCapacity([], 1))
    change(queue, "a", Record(state=State.QUEUED, retry_at=LATE, retries=2))
    assert queue.next_retry(NOW) == LATE


@pytest.mark.parametrize("gpus", [0, 8], ids=["this pod's", "another's"])
def test_a_job_with_the_name_of_one_that_was_deleted_does_not_wait_for_its_needs(gpus: int) -> None:
    old = made(entry("a", needs=("never",), gpus=gpus), entry("never", 1, gpus=8))
    queue = queue_of(old, LocalCapacity([], 9))
    queue.forget("a")
    queue.add(["a"], old | made(entry("a")))
    assert names(queue.choose(NOW)) == ["a"]


def test_an_entry_on_several_gpus_keeps_what_is_free_for_itself() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=1)
    queue = queue_of(made(entry("pair", 1, gpus=2), entry("one", 2, gpus=1), entry("any", 3)), capacity)
    busy = capacity.take(Request(1))
    assert busy is not None
    assert names(queue.choose(NOW)) == ["any"], "a single one took the GPU that the pair waits for"
    capacity.release(busy)
    assert names(queue.choose(NOW)) == ["pair"]


def test_an_entry_on_several_gpus_does_not_wait_for_one_that_is_ill() -> None:
    capacity = LocalCapacity([0, 1], cpu_slots=0)
    capacity.quarantine(1, "fell off the bus")
    queue = queue_of(made(entry("pair", 1, gpus=2), entry("one", 2, gpus=1)), capacity)
    assert names(queue.choose(NOW)) == ["one"], "the free GPU was kept for an entry that cannot have both"
    capacity.release(Slot((0,)))
    capacity.restore(1)
    assert names(queue.choose(NOW)) == ["pair"]


def test_a_paused_method_waits_and_goes_on_in_its_order() -> None:
    queue = queue_of(made(entry("a", 0, method="x"), entry("b", 1), entry("c", 2, method="x")), LocalCapacity([], 9))
    queue.pause(paused(["x"]))
    assert names(queue.choose(NOW)) == ["b"]
    queue.pause({})
    assert names(queue.choose(NOW)) == ["a", "c"]


def test_a_retry_waits_for_its_time() -> None:
    queue = queue_of(made(entry("a"), entry("b", 1)), LocalCapacity([], 9))
    change(queue, "a", Record(state=State.QUEUED, retry_at=LATE))
    assert names(queue.choose(NOW)) == ["b"]
    assert queue.next_retry(NOW) == LATE
    # When it is due every slot may be busy: the loop must not wake up for it again and again.
    assert queue.next_retry(LATE) is None
    assert names(queue.choose(LATE)) == ["a"]


@pytest.mark.parametrize("written", ["2026-06-18T02:00:00+02:00", "2026-06-18T00:00:00"])
def test_a_retry_whose_time_was_written_in_another_way(written: str) -> None:
    queue = queue_of(made(entry("a")), LocalCapacity([], 1))
    change(queue, "a", Record(state=State.QUEUED, retry_at=written))
    assert names(queue.choose(NOW)) == []
    assert queue.next_retry(NOW) == LATE
    assert names(queue.choose(LATE)) == ["a"]


@pytest.mark.parametrize("written", ["tomorrow", "2026-06-17T26:12:00Z"])
def test_a_retry_at_no_time_is_due(written: str) -> None:
    queue = queue_of(made(entry("a")), LocalCapacity([], 1))
    change(queue, "a", Record(state=State.QUEUED, retry_at=written))
    assert names(queue.choose(NOW)) == ["a"]


@pytest.mark.parametrize(
    ("needs_state", "finished"),
    [(State.FAILED, True), (State.HELD, True), (State.RUNNING, False), (State.QUEUED, False)],
)
def test_finished_when_only_a_person_can_help(needs_state: State, finished: bool) -> None:
    queue = queue_of(made(entry("a"), entry("b", 1, needs=("a",)), entry("c", 2, needs=("b",))), LocalCapacity([], 1))
    change(queue, "a", Record(state=needs_state))
    assert queue.is_finished(NOW) is finished


def test_what_is_postponed_leaves_its_slot_to_the_next_until_its_time_or_its_record_comes() -> None:
    capacity = LocalCapacity([], 1)
    queue = queue_of(made(*(entry(job, n) for n, job in enumerate("ab"))), capacity)
    (first,) = queue.choose(NOW)
    capacity.release(first.slot)
    queue.postpone("a", LATE)
    assert queue.next_retry(NOW) == LATE
    (second,) = queue.choose(NOW)
    assert second.entry.job_id == "b"
    capacity.release(second.slot)
    assert not queue.has_ready(NOW)
    assert names(queue.choose(LATE)) == ["a"], "its time has come"
    queue = queue_of(made(entry("a")), LocalCapacity([], 1))
    queue.postpone("a", LATE)
    change(queue, "a", Record(state=State.QUEUED, rev=9))
    assert names(queue.choose(NOW)) == ["a"], "its record has changed"


def test_a_need_that_was_done_between_two_updates_counts_as_it_is_at_the_update() -> None:
    queue = queue_of(made(entry("a"), entry("b", 1, needs=("a",))), LocalCapacity([], 9))
    change(queue, "a", DONE)
    change(queue, "b", Record(state=State.QUEUED, retry_at=NOW, retries=1))
    change(queue, "a", RUNNING)
    # Read from another pod's lines, while the status file is written: the queue is not told yet.
    assert isinstance(queue.records, dict)
    queue.records["a"] = DONE
    queue.next_retry(LATE)
    change(queue, "a", Record(state=State.QUEUED, retry_at="2026-06-19T00:00:00.000Z"))
    assert queue.choose(LATE) == [], "its need is queued again"
    change(queue, "a", DONE)
    assert names(queue.choose(LATE)) == ["b"]


def test_a_choice_costs_the_classes_not_the_entries_that_do_not_fit() -> None:
    class Counting(LocalCapacity):
        asked = 0

        def take(self, request: Request, ahead: Sequence[Request] = ()) -> Slot | None:
            self.asked += 1
            return super().take(request, ahead)

    capacity = Counting([0, 1], cpu_slots=0)
    capacity.quarantine(1, "fell off the bus")
    pairs = [entry(f"pair{number}", number, gpus=2) for number in range(1000)]
    queue = queue_of(made(*pairs, entry("one", 1000, gpus=1)), capacity)
    assert names(queue.choose(NOW)) == ["one"]
    assert capacity.asked == 2
