"""The order of claims: a queue kept up to date chooses as one that is built anew, and as a plain list."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from submissions import Submissions

from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import PREEMPTED, WORKSPACE, Capacity, Request, Slot
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.pod.claim import Choice, ClaimQueue
from dispatcher.pod.offers import Offer, offers_of
from dispatcher.pod.waiting import SLOT, Facts
from dispatcher.run_state.fold import Pause
from dispatcher.run_state.states import Record, State

EARLY, NOW, LATE = "2026-06-17T22:00:00.000Z", "2026-06-17T23:00:00.000Z", "2026-06-18T00:00:00.000Z"
QUEUED, DONE, RUNNING = Record(state=State.QUEUED), Record(state=State.DONE), Record(state=State.RUNNING)


def request_of(entry: Entry) -> Request:
    return Request(entry.gpus)


def made(*entries: Entry) -> dict[str, Entry]:
    return {entry.job_id: entry for entry in entries}


def entry(job: str, order: int = 0, **rest: object) -> Entry:
    return Entry(job_id=job, method=str(rest.pop("method", "m")), order=order, **rest)  # type: ignore[arg-type]


def offer(capacities: Mapping[str, Capacity]) -> Offer:
    return Offer(pod="pod", outlets=offers_of(capacities))


def facts(entries: Mapping[str, Entry], records: Mapping[str, Record], capacities: Mapping[str, Capacity]) -> Facts:
    return Facts(records=records, entries=entries, now="", request_of=request_of, offers=(offer(capacities),))


def paused(methods: Iterable[str]) -> dict[str, Pause]:
    return {method: Pause(method, "it fails", NOW) for method in methods}


def queue_of(entries: Mapping[str, Entry], room: LocalCapacity | Mapping[str, Capacity]) -> ClaimQueue:
    """A queue in which all entries are queued, for a pod with the local outlet or with these."""
    capacities = {"local": room} if isinstance(room, LocalCapacity) else room
    records = dict.fromkeys(entries, QUEUED)
    queue = ClaimQueue(facts(entries, records, capacities), capacities)
    for job in entries:
        queue.update(job)
    return queue


def change(queue: ClaimQueue, job: str, record: Record) -> None:
    assert isinstance(queue.records, dict)
    queue.records[job] = record
    queue.update(job)


def placed(choices: list[Choice]) -> dict[str, str]:
    return {choice.entry.job_id: choice.outlet for choice in choices}


def names(choices: list[Choice]) -> list[str]:
    return [choice.entry.job_id for choice in choices]


# By example.


def test_priority_first_then_the_manifests_order() -> None:
    queue = queue_of(made(*(entry(job, n, priority=n == 2) for n, job in enumerate("dcba"))), LocalCapacity([], 4))
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


def test_the_entrys_outlets_are_an_order_of_preference() -> None:
    either, other_way = entry("a", outlet=("batch", "local")), entry("b", 1, outlet=("local", "elsewhere", "batch"))
    capacities: dict[str, Capacity] = {"local": LocalCapacity([], 1), "batch": Submissions(1)}
    queue = queue_of(made(other_way, either, entry("c", 2), entry("d", 3)), capacities)
    assert placed(queue.choose(NOW)) == {"a": "batch", "b": "local"}
    capacities["batch"].release(Slot())
    assert placed(queue.choose(NOW)) == {"c": "batch"}, "the pod's preferred outlet is full"
    capacities["local"].release(Slot())
    assert placed(queue.choose(NOW)) == {"d": "local"}


def test_an_entry_goes_to_the_outlet_that_can_run_it() -> None:
    capacities: dict[str, Capacity] = {"local": LocalCapacity([0], 0), "batch": Submissions(2, most_gpus=4)}
    queue = queue_of(made(entry("big", 0, gpus=4), entry("huge", 1, gpus=16), entry("one", 2, gpus=1)), capacities)
    assert placed(queue.choose(NOW)) == {"big": "batch", "one": "local"}
    assert queue.refused() == ["huge"]
    why = queue.waiting(NOW).why("huge").text
    assert why == "local: asks for 16 GPUs, this pod has 1; batch: no node has 16 GPUs"


def test_what_waits_for_one_outlet_keeps_nothing_of_another() -> None:
    capacities: dict[str, Capacity] = {"local": LocalCapacity([0, 1], 0), "batch": Submissions(9)}
    assert capacities["local"].take(Request(1))
    entries = made(
        entry("pair", 0, gpus=2, outlet=("local",)), entry("one", 1, gpus=1), entry("c", 2, outlet=("local",))
    )
    queue = queue_of(entries, capacities)
    assert placed(queue.choose(NOW)) == {"one": "batch"}


def test_an_outlet_in_trouble_is_why_its_entries_wait() -> None:
    batch = Submissions(9)
    queue = queue_of(made(entry("a", outlet=("batch",))), {"batch": batch})
    batch.problem = "sbatch: connection refused"
    assert queue.choose(NOW) == [] and queue.waiting(NOW).why("a").text == batch.problem
    batch.problem = ""
    assert queue.waiting(NOW).why("a").text == SLOT
    assert placed(queue.choose(NOW)) == {"a": "batch"}


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


# By property.

JOBS = "abcdefg"
OUTLETS = ((), (), (), ("local",), ("batch",), ("local", "batch"), ("batch", "local"), ("elsewhere",))
records = st.builds(
    Record,
    state=st.sampled_from([State.QUEUED, State.QUEUED, State.QUEUED, State.DONE, State.DONE, *State]),
    priority=st.sampled_from([None, 0, 3]),
    retry_at=st.sampled_from([None, None, None, EARLY, LATE]),
    outlet=st.sampled_from([None, "local", "batch", "elsewhere"]),
    reason=st.sampled_from([None, "exit 1", PREEMPTED]),
    checkpoint_at=st.sampled_from([None, None, WORKSPACE, "cluster hpc"]),
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
            outlet=draw(st.sampled_from(OUTLETS)),
        )
    return dict(sorted(entries.items(), key=lambda item: item[1].order))


changes = st.tuples(st.just("record"), st.sampled_from([*JOBS, "elsewhere"]), st.one_of(st.none(), records, records))
pauses = st.tuples(st.just("pause"), st.sets(st.sampled_from("xy")))
choosing = st.tuples(st.just("choose"), st.sampled_from([EARLY, NOW, LATE]), st.sampled_from([None, 0, 1, 2]))
endings = st.tuples(st.just("end"), records)
arrivals = st.just(("arrive",))
ills = st.tuples(st.just("ill"), st.integers(0, 1), st.booleans())


class Plain:
    """What the queue should choose, from all records, one entry after another."""

    def __init__(
        self, entries: dict[str, Entry], queue: ClaimQueue, known: dict[str, Record], paused: set[str]
    ) -> None:
        self.capacities = copy.deepcopy(queue.capacities)
        mine = [
            e
            for e in entries.values()
            if offer(queue.capacities).refusal(e, request_of(e)) is None and known.get(e.job_id) is not None
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
        self.reserved = False

    def outlets(self, e: Entry) -> list[str]:
        wanted = [name for name in e.outlet or self.capacities if name in self.capacities]
        able = [name for name in wanted if not self.capacities[name].refuses(request_of(e))]
        record = self.known[e.job_id]
        if record.reason == PREEMPTED and record.outlet in able:
            able = able[able.index(record.outlet) + 1 :] + able[: able.index(record.outlet) + 1]
        return able if record.checkpoint_at in (None, WORKSPACE) else []

    def waits_for_a_slot(self, e: Entry) -> bool:
        return not all(self.capacities[name].refuses_now(request_of(e)) for name in self.outlets(e))

    def take(self, e: Entry, name: str) -> Slot | None:
        local = self.capacities[name]
        if not isinstance(local, LocalCapacity):
            return local.take(request_of(e))
        gpus = e.gpus if e.gpus is not None else 0 if local.free_cpu else 1
        if gpus and self.reserved:
            return None
        return local.take(Request(gpus))

    def choose(self, now: str, limit: int | None) -> list[tuple[str, str, Slot]]:
        chosen: list[tuple[str, str, Slot]] = []
        for e in self.ready:
            retry_at = self.known[e.job_id].retry_at
            if (retry_at is not None and retry_at > now) or len(chosen) == limit:
                continue
            for name in self.outlets(e):
                slot = self.take(e, name)
                if slot is not None:
                    chosen.append((e.job_id, name, slot))
                    break
            else:
                local = self.capacities.get("local") if "local" in self.outlets(e) else None
                if isinstance(local, LocalCapacity) and 1 < (e.gpus or 1) <= len(local.usable_gpus):
                    self.reserved = True
        return chosen


class Pod:
    """What a pod does with its queue, one step at a time."""

    def __init__(self, entries: dict[str, Entry], capacities: dict[str, Capacity], late: int = 0) -> None:
        self.all = entries
        self.entries = dict(list(entries.items())[: len(entries) - late])
        self.capacities = capacities
        self.known: dict[str, Record] = {}
        self.queue = ClaimQueue(facts(self.entries, self.known, capacities), capacities)
        self.paused: set[str] = set()
        self.running: list[tuple[str, str, Slot]] = []
        self.now = ""

    def record(self, job: str, record: Record | None) -> None:
        self.known.pop(job, None)
        if record is not None:
            self.known[job] = record
        self.queue.update(job)

    def arrive(self) -> None:
        """Entries come that were not there at first."""
        late = [job for job in self.all if job not in self.entries]
        self.entries = self.all
        self.queue.add(late, self.all)

    def pause(self, methods: set[str]) -> None:
        self.paused = methods
        self.queue.pause(paused(methods))

    def ill(self, index: int, is_ill: bool) -> None:
        local = self.capacities["local"]
        assert isinstance(local, LocalCapacity)
        if is_ill:
            local.quarantine(index, "ill")
        else:
            local.restore(index)

    def end(self, record: Record) -> None:
        if self.running:
            job, outlet, slot = self.running.pop()
            self.capacities[outlet].release(slot)
            self.record(job, record)

    def choose(self, now: str, limit: int | None) -> None:
        # What a retry's time has come for stays ready, also when the clock is put back.
        self.now = now = max(self.now, now)
        capacities = copy.deepcopy(self.capacities)
        anew = ClaimQueue(facts(self.entries, self.known, self.capacities), capacities)
        for job in self.known:
            anew.update(job)
        anew.pause(paused(self.paused))
        plain = Plain(self.entries, self.queue, self.known, self.paused)
        due = {e.job_id for e in plain.ready if (self.known[e.job_id].retry_at or "") <= now}
        waiting = self.queue.waiting(now)
        for_a_slot = {job for job in due if plain.waits_for_a_slot(self.entries[job])}
        assert {job for job in self.entries if waiting.why(job).text == SLOT} == for_a_slot
        expected = plain.choose(now, limit)
        assert [(choice.entry.job_id, choice.outlet, choice.slot) for choice in anew.choose(now, limit)] == expected
        chosen = [(choice.entry.job_id, choice.outlet, choice.slot) for choice in self.queue.choose(now, limit)]
        assert chosen == expected
        assert self.queue.unfinished == anew.unfinished
        assert self.queue.is_finished(now) == anew.is_finished(now)
        for number, (job, outlet, slot) in enumerate(chosen):
            if number % 3 == 2:
                # Another pod had made the attempt's directory.
                self.capacities[outlet].release(slot)
                self.queue.put_back(job)
            else:
                self.running.append((job, outlet, slot))
                self.record(job, RUNNING)


@settings(max_examples=150, deadline=None)
@given(
    entries=manifests(),
    gpus=st.integers(0, 2),
    cpu_slots=st.integers(0, 3),
    jobs_per_gpu=st.integers(1, 2),
    submissions=st.sampled_from([None, None, 0, 1, 3]),
    late=st.integers(0, 3),
    steps=st.lists(
        st.one_of(changes, changes, changes, pauses, choosing, endings, ills, arrivals), min_size=10, max_size=40
    ),
)
def test_any_sequence_of_changes(
    entries: dict[str, Entry],
    gpus: int,
    cpu_slots: int,
    jobs_per_gpu: int,
    submissions: int | None,
    late: int,
    steps: list[tuple[Any, ...]],
) -> None:
    capacities: dict[str, Capacity] = {"local": LocalCapacity(range(gpus), cpu_slots, jobs_per_gpu)}
    if submissions is not None:
        capacities["batch"] = Submissions(submissions, most_gpus=1)
    pod = Pod(entries, capacities, min(late, len(entries)))
    for what, *arguments in [*steps, ("choose", NOW, None)]:
        getattr(pod, what)(*arguments)


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


class Foreseen(LocalCapacity):
    """Room whose outlook is given: see Capacity.outlook."""

    def __init__(self, outlook: float | None) -> None:
        super().__init__((), cpu_slots=9)
        self.given = outlook

    def outlook(self, request: Request) -> float | None:
        return self.given


@pytest.mark.parametrize(
    ("outlooks", "outlet", "expected"),
    [
        ({"a": 0.0, "b": 0.0}, (), "a"),
        ({"a": None, "b": 0.0}, (), "b"),
        ({"a": 0.5, "b": 0.0}, (), "b"),
        ({"a": 0.5, "b": 0.25}, (), "b"),
        ({"a": None, "b": None}, (), None),
        ({"a": math.inf, "b": 0.0}, (), None),
        ({"a": 0.0, "b": math.inf}, (), "a"),
        ({"a": 0.5, "b": math.inf}, (), None),
        ({"a": 0.5, "b": 0.0}, ("a", "b"), "a"),
        ({"a": None, "b": 0.5}, ("a", "b"), "b"),
        ({"a": 0.0, "b": 0.5}, ("b", "a"), "b"),
        ({"a": math.inf, "b": 0.0}, ("b",), None),
    ],
)
def test_the_outlook_decides_among_outlets(
    outlooks: dict[str, float | None], outlet: tuple[str, ...], expected: str | None
) -> None:
    queue = queue_of(made(entry("x", gpus=0, outlet=outlet)), {name: Foreseen(out) for name, out in outlooks.items()})
    assert placed(queue.choose(NOW)) == ({"x": expected} if expected else {})


def test_an_entry_that_cannot_be_placed_now_is_placed_later() -> None:
    rooms = {"a": Foreseen(None)}
    queue = queue_of(made(entry("x", gpus=0)), rooms)
    assert not queue.choose(NOW)
    rooms["a"].given = 0.0
    assert placed(queue.choose(NOW)) == {"x": "a"}
