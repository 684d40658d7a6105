"""The order of claims: a queue kept up to date chooses as one that is built anew, and as a plain list."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Slot
from dispatcher.outlets.local.slots import Slots
from dispatcher.pod.claim import Choice, ClaimQueue
from dispatcher.pod.offers import Offer
from dispatcher.pod.waiting import SLOT
from dispatcher.run_state.fold import Pause
from dispatcher.run_state.states import Record, State

EARLY, NOW, LATE = "2026-06-17T22:00:00.000Z", "2026-06-17T23:00:00.000Z", "2026-06-18T00:00:00.000Z"
QUEUED, DONE, RUNNING = Record(state=State.QUEUED), Record(state=State.DONE), Record(state=State.RUNNING)


def gpus_of(entry: Entry) -> int | None:
    return entry.gpus


def made(*entries: Entry) -> dict[str, Entry]:
    return {entry.job_id: entry for entry in entries}


def entry(job: str, order: int = 0, **rest: object) -> Entry:
    return Entry(job_id=job, method=str(rest.pop("method", "m")), order=order, **rest)  # type: ignore[arg-type]


def offer(slots: Slots) -> Offer:
    return Offer(pod="pod", gpus=len(slots.gpus), cpu_slots=slots.cpu_slots)


def paused(methods: Iterable[str]) -> dict[str, Pause]:
    return {method: Pause(method, "it fails", NOW) for method in methods}


def queue_of(entries: Mapping[str, Entry], slots: Slots) -> ClaimQueue:
    queue = ClaimQueue(entries, offer(slots), slots, gpus_of)
    for job in entries:
        queue.update(job, QUEUED)
    return queue


def names(choices: list[Choice]) -> list[str]:
    return [choice.entry.job_id for choice in choices]


# By example.


def test_priority_first_then_the_manifests_order() -> None:
    queue = queue_of(made(*(entry(job, n, priority=n == 2) for n, job in enumerate("dcba"))), Slots([], 4))
    assert names(queue.choose(NOW)) == ["b", "d", "c", "a"]


def test_a_priority_set_by_hand_counts_more_than_the_manifests() -> None:
    queue = queue_of(made(entry("a", 0, priority=1), entry("b", 1)), Slots([], 1))
    queue.update("b", Record(state=State.QUEUED, priority=2))
    assert names(queue.choose(NOW)) == ["b"]
    queue = queue_of(made(entry("a", 0, priority=2), entry("b", 1, priority=1)), Slots([], 1))
    queue.update("a", Record(state=State.QUEUED, priority=0))
    assert names(queue.choose(NOW)) == ["b"]


def test_needs_wait_until_they_are_done_and_again_when_they_are_not() -> None:
    queue = queue_of(made(entry("a"), entry("b", 1, needs=("a",))), Slots([], 9))
    assert names(queue.choose(NOW)) == ["a"]
    queue.update("a", DONE)
    queue.update("a", QUEUED)
    queue.update("b", QUEUED)
    assert names(queue.choose(NOW)) == ["a"]
    queue.update("a", DONE)
    assert names(queue.choose(NOW)) == ["b"]


def test_an_entry_on_several_gpus_keeps_what_is_free_for_itself() -> None:
    slots = Slots([0, 1], cpu_slots=1)
    queue = queue_of(made(entry("pair", 1, gpus=2), entry("one", 2, gpus=1), entry("any", 3)), slots)
    busy = slots.take(1)
    assert busy is not None
    assert names(queue.choose(NOW)) == ["any"], "a single one took the GPU that the pair waits for"
    slots.release(busy)
    assert names(queue.choose(NOW)) == ["pair"]


def test_an_entry_on_several_gpus_does_not_wait_for_one_that_is_ill() -> None:
    slots = Slots([0, 1], cpu_slots=0)
    slots.quarantine(1, "fell off the bus")
    queue = queue_of(made(entry("pair", 1, gpus=2), entry("one", 2, gpus=1)), slots)
    assert names(queue.choose(NOW)) == ["one"], "the free GPU was kept for an entry that cannot have both"
    slots.release(Slot((0,)))
    slots.restore(1)
    assert names(queue.choose(NOW)) == ["pair"]


def test_a_paused_method_waits_and_goes_on_in_its_order() -> None:
    queue = queue_of(made(entry("a", 0, method="x"), entry("b", 1), entry("c", 2, method="x")), Slots([], 9))
    queue.pause(paused(["x"]))
    assert names(queue.choose(NOW)) == ["b"]
    queue.pause({})
    assert names(queue.choose(NOW)) == ["a", "c"]


def test_a_retry_waits_for_its_time() -> None:
    queue = queue_of(made(entry("a"), entry("b", 1)), Slots([], 9))
    queue.update("a", Record(state=State.QUEUED, retry_at=LATE))
    assert names(queue.choose(NOW)) == ["b"]
    assert queue.next_retry(NOW) == LATE
    # Every slot may be busy when it is due: whoever asks when to wake up must not be told to do so for ever.
    assert queue.next_retry(LATE) is None
    assert names(queue.choose(LATE)) == ["a"]


@pytest.mark.parametrize("written", ["2026-06-18T02:00:00+02:00", "2026-06-18T00:00:00"])
def test_a_retry_whose_time_was_written_in_another_way(written: str) -> None:
    queue = queue_of(made(entry("a")), Slots([], 1))
    queue.update("a", Record(state=State.QUEUED, retry_at=written))
    assert names(queue.choose(NOW)) == []
    assert queue.next_retry(NOW) == LATE
    assert names(queue.choose(LATE)) == ["a"]


@pytest.mark.parametrize("written", ["tomorrow", "2026-06-17T26:12:00Z"])
def test_a_retry_at_no_time_is_due(written: str) -> None:
    queue = queue_of(made(entry("a")), Slots([], 1))
    queue.update("a", Record(state=State.QUEUED, retry_at=written))
    assert names(queue.choose(NOW)) == ["a"]


@pytest.mark.parametrize(
    ("needs_state", "finished"),
    [(State.FAILED, True), (State.HELD, True), (State.RUNNING, False), (State.QUEUED, False)],
)
def test_finished_when_only_a_person_can_help(needs_state: State, finished: bool) -> None:
    queue = queue_of(made(entry("a"), entry("b", 1, needs=("a",)), entry("c", 2, needs=("b",))), Slots([], 1))
    queue.update("a", Record(state=needs_state))
    assert queue.is_finished(NOW) is finished


# By property.

JOBS = "abcdefg"
records = st.builds(
    Record,
    state=st.sampled_from([State.QUEUED, State.QUEUED, State.QUEUED, State.DONE, State.DONE, *State]),
    priority=st.sampled_from([None, 0, 3]),
    retry_at=st.sampled_from([None, None, None, EARLY, LATE]),
)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Entry]:
    entries = {}
    order = draw(st.permutations(range(len(JOBS))))
    for number, job in enumerate(JOBS):
        needs = draw(st.lists(st.sampled_from([*JOBS[:number], "elsewhere"]), max_size=2, unique=True))
        entries[job] = entry(
            job,
            order[number],
            method=draw(st.sampled_from("xy")),
            priority=draw(st.integers(-1, 1)),
            gpus=draw(st.sampled_from([None, 0, 1, 2])),
            needs=tuple(needs),
        )
    return dict(sorted(entries.items(), key=lambda item: item[1].order))


changes = st.tuples(st.just("record"), st.sampled_from([*JOBS, "elsewhere"]), st.one_of(st.none(), records, records))
pauses = st.tuples(st.just("pause"), st.sets(st.sampled_from("xy")))
choosing = st.tuples(st.just("choose"), st.sampled_from([EARLY, NOW, LATE]), st.sampled_from([None, 0, 1, 2]))
endings = st.tuples(st.just("end"), records)
ills = st.tuples(st.just("ill"), st.integers(0, 1), st.booleans())


class Plain:
    """What the queue should choose, from all records, one entry after another."""

    def __init__(
        self, entries: dict[str, Entry], queue: ClaimQueue, known: dict[str, Record], paused: set[str]
    ) -> None:
        self.slots = copy.deepcopy(queue.slots)
        mine = [
            e
            for e in entries.values()
            if offer(queue.slots).refusal(e, e.gpus) is None and known.get(e.job_id) is not None
        ]
        done = {job for job, record in known.items() if record.state is State.DONE}
        self.ready = [
            e
            for e in mine
            if known[e.job_id].state is State.QUEUED and e.method not in paused and done.issuperset(e.needs)
        ]
        self.ready.sort(
            key=lambda e: (-(e.priority if known[e.job_id].priority is None else known[e.job_id].priority), e.order)
        )
        self.known = known

    def choose(self, now: str, limit: int | None) -> list[tuple[str, Slot]]:
        chosen: list[tuple[str, Slot]] = []
        reserved = False
        for e in self.ready:
            retry_at = self.known[e.job_id].retry_at
            if (retry_at is not None and retry_at > now) or len(chosen) == limit:
                continue
            gpus = e.gpus if e.gpus is not None else 0 if self.slots.free_cpu else 1
            if gpus and reserved:
                continue
            slot = self.slots.take(gpus)
            if slot is not None:
                chosen.append((e.job_id, slot))
            elif gpus > 1 and self.slots.free_gpus and gpus <= len(self.slots.usable_gpus):
                reserved = True
        return chosen


class Pod:
    """What a pod does with its queue, one step at a time."""

    def __init__(self, entries: dict[str, Entry], slots: Slots) -> None:
        self.entries = entries
        self.slots = slots
        self.queue = ClaimQueue(entries, offer(slots), slots, gpus_of)
        self.known: dict[str, Record] = {}
        self.paused: set[str] = set()
        self.running: list[tuple[str, Slot]] = []
        self.now = ""

    def record(self, job: str, record: Record | None) -> None:
        self.queue.update(job, record)
        self.known.pop(job, None)
        if record is not None:
            self.known[job] = record

    def pause(self, methods: set[str]) -> None:
        self.paused = methods
        self.queue.pause(paused(methods))

    def ill(self, index: int, is_ill: bool) -> None:
        if is_ill:
            self.slots.quarantine(index, "ill")
        else:
            self.slots.restore(index)

    def end(self, record: Record) -> None:
        if self.running:
            job, slot = self.running.pop()
            self.slots.release(slot)
            self.record(job, record)

    def choose(self, now: str, limit: int | None) -> None:
        # What a retry's time has come for stays ready, also when the clock is put back.
        self.now = now = max(self.now, now)
        anew = ClaimQueue(self.entries, offer(self.slots), copy.deepcopy(self.slots), gpus_of)
        for job, record in self.known.items():
            anew.update(job, record)
        anew.pause(paused(self.paused))
        plain = Plain(self.entries, self.queue, self.known, self.paused)
        expected = plain.choose(now, limit)
        waiting = self.queue.waiting(now)
        due = {e.job_id for e in plain.ready if (self.known[e.job_id].retry_at or "") <= now}
        assert {job for job in self.entries if waiting.why(job).text == SLOT} == due
        assert [(choice.entry.job_id, choice.slot) for choice in anew.choose(now, limit)] == expected
        chosen = [(choice.entry.job_id, choice.slot) for choice in self.queue.choose(now, limit)]
        assert chosen == expected
        assert self.queue.unfinished == anew.unfinished
        assert self.queue.is_finished(now) == anew.is_finished(now)
        for number, (job, slot) in enumerate(chosen):
            if number % 3 == 2:
                # Somebody else had made the attempt's directory.
                self.slots.release(slot)
                self.queue.put_back(job)
            else:
                self.running.append((job, slot))
                self.record(job, RUNNING)


@settings(max_examples=150, deadline=None)
@given(
    entries=manifests(),
    gpus=st.integers(0, 2),
    cpu_slots=st.integers(0, 3),
    jobs_per_gpu=st.integers(1, 2),
    steps=st.lists(st.one_of(changes, changes, changes, pauses, choosing, endings, ills), min_size=10, max_size=40),
)
def test_any_sequence_of_changes(
    entries: dict[str, Entry], gpus: int, cpu_slots: int, jobs_per_gpu: int, steps: list[tuple[Any, ...]]
) -> None:
    pod = Pod(entries, Slots(range(gpus), cpu_slots, jobs_per_gpu))
    for what, *words in [*steps, ("choose", NOW, None)]:
        getattr(pod, what)(*words)


def test_what_is_postponed_leaves_its_slot_to_the_next_until_its_time_or_its_record_comes() -> None:
    queue = queue_of(made(*(entry(job, n) for n, job in enumerate("ab"))), Slots([], 1))
    (first,) = queue.choose(NOW)
    queue.slots.release(first.slot)
    queue.postpone("a", LATE)
    assert queue.next_retry(NOW) == LATE
    (second,) = queue.choose(NOW)
    assert second.entry.job_id == "b"
    queue.slots.release(second.slot)
    assert not queue.has_ready(NOW)
    assert names(queue.choose(LATE)) == ["a"], "its time has come"
    queue = queue_of(made(entry("a")), Slots([], 1))
    queue.postpone("a", LATE)
    queue.update("a", Record(state=State.QUEUED, rev=9))
    assert names(queue.choose(NOW)) == ["a"], "somebody has changed its record"
