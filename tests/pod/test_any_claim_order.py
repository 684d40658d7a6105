"""A claim queue that is kept up to date chooses as one that is built anew, and as a plain list."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

from claim_queues import EARLY, LATE, NOW, RUNNING, entry, facts, offer, paused, request_of
from hypothesis import given, settings
from hypothesis import strategies as st
from submissions import Submissions

from dispatcher.base.running_limits import RunningLimit
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Limits
from dispatcher.outlets.base import PREEMPTED, WORKSPACE, Capacity, Request, Slot
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.pod.claim import ClaimQueue
from dispatcher.pod.in_flight import AttemptEntries, InFlight
from dispatcher.pod.waiting import SLOT
from dispatcher.run_state.states import IN_FLIGHT, Record, State

JOBS = "abcdefg"
LIMITS = st.builds(
    Limits,
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(["", "lang", "lang"]),
            st.sampled_from([(), ("lang=g*",), ("gpus=1",)]),
        )
        .filter(lambda parts: bool(parts[1] or parts[2]))
        .map(lambda parts: RunningLimit(*parts)),
        max_size=3,
    ),
    st.dictionaries(st.sampled_from("xy"), st.integers(1, 3)),
)
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
            params=draw(st.sampled_from([{}, {"lang": "greek"}, {"lang": "hindi"}])),
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
        self, entries: dict[str, Entry], queue: ClaimQueue, known: dict[str, Record], paused: set[str], limits: Limits
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
        self.limits = limits
        self.running = [e for e in entries.values() if e.job_id in known and known[e.job_id].state in IN_FLIGHT]

    def has_room(self, e: Entry) -> bool:
        """Whether no limit that the entry counts in is used up by what runs."""
        counts = Counter(group for one in self.running for group in self.limits.groups(one))
        return all(counts[group] < group.most for group in self.limits.groups(e))

    def outlets(self, e: Entry) -> list[str]:
        wanted = [name for name in e.outlet or self.capacities if name in self.capacities]
        able = [name for name in wanted if not self.capacities[name].refuses(request_of(e))]
        record = self.known[e.job_id]
        if record.reason == PREEMPTED and record.outlet in able:
            able = able[able.index(record.outlet) + 1 :] + able[: able.index(record.outlet) + 1]
        return able if record.checkpoint_at in (None, WORKSPACE) else []

    def waits_for_a_slot(self, e: Entry) -> bool:
        return self.has_room(e) and not all(
            self.capacities[name].refuses_now(request_of(e)) for name in self.outlets(e)
        )

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
            if (retry_at is not None and retry_at > now) or len(chosen) == limit or not self.has_room(e):
                continue
            for name in self.outlets(e):
                slot = self.take(e, name)
                if slot is not None:
                    self.running.append(e)
                    chosen.append((e.job_id, name, slot))
                    break
            else:
                local = self.capacities.get("local") if "local" in self.outlets(e) else None
                if isinstance(local, LocalCapacity) and 1 < (e.gpus or 1) <= len(local.gpus) - len(local.unusable):
                    self.reserved = True
        return chosen


class Pod:
    """What a pod does with its queue, one step at a time."""

    def __init__(
        self, entries: dict[str, Entry], capacities: dict[str, Capacity], limits: Limits, late: int = 0
    ) -> None:
        self.all = entries
        self.entries = dict(list(entries.items())[: len(entries) - late])
        self.capacities = capacities
        self.known: dict[str, Record] = {}
        self.limits = limits
        self.in_flight = InFlight(limits)
        self.queue = ClaimQueue(facts(self.entries, self.known, capacities, self.in_flight), capacities)
        self.paused: set[str] = set()
        self.running: list[tuple[str, str, Slot]] = []
        self.now = ""

    def record(self, job: str, record: Record | None) -> None:
        self.known.pop(job, None)
        if record is not None:
            self.known[job] = record
        self.count(self.in_flight, job)
        self.queue.update(job)

    def count(self, in_flight: InFlight, job: str) -> None:
        AttemptEntries().note(in_flight, job, self.known.get(job), self.entries.get(job))

    def arrive(self) -> None:
        """Entries come that were not there at first."""
        late = [job for job in self.all if job not in self.entries]
        self.entries = self.all
        for job in late:
            self.count(self.in_flight, job)
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
        in_flight = InFlight(self.limits)
        anew = ClaimQueue(facts(self.entries, self.known, self.capacities, in_flight), capacities)
        for job in self.known:
            self.count(in_flight, job)
            anew.update(job)
        anew.pause(paused(self.paused))
        plain = Plain(self.entries, self.queue, self.known, self.paused, self.limits)
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


@settings(max_examples=150)
@given(
    entries=manifests(),
    gpus=st.integers(0, 2),
    cpu_slots=st.integers(0, 3),
    jobs_per_gpu=st.integers(1, 2),
    limits=st.one_of(st.just(Limits()), LIMITS, LIMITS),
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
    limits: Limits,
    submissions: int | None,
    late: int,
    steps: list[tuple[Any, ...]],
) -> None:
    capacities: dict[str, Capacity] = {"local": LocalCapacity(range(gpus), cpu_slots, jobs_per_gpu)}
    if submissions is not None:
        capacities["batch"] = Submissions(submissions, most_gpus=1)
    pod = Pod(entries, capacities, limits, min(late, len(entries)))
    for what, *arguments in [*steps, ("choose", NOW, None)]:
        getattr(pod, what)(*arguments)
