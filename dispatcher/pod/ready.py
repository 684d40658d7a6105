"""The jobs that a pod may claim now, in the order in which it claims them. Pure: no files, no clocks, no slots.

Updated change by change. Order: higher priority first, then the manifest's order. Entries that ask for the same form
one class. Which outlets an entry asks for depends on its record too (placing.py), so an entry may change its class.

Within a class, entries that count in the same limited groups (`max_running`) form one queue with a heap of its own,
and the class has a heap of the first ones of its queues. A queue with a full group is closed: it is in no heap until a
place in that group is free. So jobs of full groups cost nothing, however many there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Group
from dispatcher.matrix.needs import dependents
from dispatcher.outlets.base import QUEUE_LIMIT, Request
from dispatcher.pod.needed_copies import NeededCopies
from dispatcher.pod.placing import YIELD_S, home_of, in_order, that_see, yields_until
from dispatcher.pod.waiting import Facts, latest_retry, retry_due
from dispatcher.run_state.journal import later
from dispatcher.run_state.states import Record, State

# Outlets, the preferred first, and a request.
Asked = tuple[tuple[str, ...], Request]
# Minus the priority, the order in the manifest, the job, its queue. Smaller is claimed first.
Rank: TypeAlias = "tuple[int, int, str, GroupQueue]"


class ReadyClass(msgspec.Struct, eq=False):
    """Entries that ask for the same, up to `pack` of which may share a slot.

    `outlets`: those of the pod that can run them, the preferred first. `heads` is a heap of the first ranks of queues;
    those that are no longer `shown` by their queue are dropped when they come first.
    """

    outlets: tuple[str, ...]
    request: Request
    pack: int = 1
    queues: dict[tuple[Group, ...], GroupQueue] = {}
    heads: list[Rank] = []


class GroupQueue(msgspec.Struct, eq=False):
    """The entries of one class that count in the same `groups`.

    `heap` is of ranks. One that is no longer its job's rank, or whose job has changed its queue, is dropped when it
    comes first. `shown` is the rank that stands for the queue in the heads of its class; None while it has no entries,
    or is closed.
    """

    of_class: ReadyClass
    groups: tuple[Group, ...]
    heap: list[Rank] = []
    shown: Rank | None = None
    is_closed: bool = False


class ReadyJobs:
    """The jobs of `asked`, each with the outlets that could ever run it and what it asks for, as they become ready.

    `facts.records` are those of all jobs as they are now; `update` says which of them have changed. `pack_of(entry)` is
    how many entries of its method may share a slot, `places` where the outlets keep checkpoints.
    """

    def __init__(
        self, facts: Facts, asked: Mapping[str, Asked], pack_of: Callable[[Entry], int], places: Mapping[str, str]
    ) -> None:
        self._entries = facts.entries
        self._records = facts.records
        self._in_flight = facts.in_flight
        # Queues that are closed, by the full group.
        self._closed: dict[Group, list[GroupQueue]] = {}
        self._on_move = facts.on_move
        self._asked = asked
        self._pack_of = pack_of
        self._needs: dict[str, Sequence[str]] = {}
        self.copies = NeededCopies(facts.copies)
        self._wants_copy = facts.wants_copy
        for job, entry in facts.entries.items():
            self._note_entry(job, entry)
        self._dependents = dependents(self._needs)
        # Those of the jobs that others need that were done at their last update. Readiness goes by these alone: what
        # needs a job whose record has changed since is looked at when its update comes.
        self._done: set[str] = set()
        self._classes: dict[tuple[Asked, str], ReadyClass] = {}
        # The rank of each job that is ready.
        self._ranks: dict[str, Rank] = {}
        # Ready jobs with a checkpoint somewhere, and where the outlets keep theirs.
        self._homed: set[str] = set()
        self._places = places
        # Jobs that wait for a time, by that time, and those whose time is to be determined at the next look.
        self._retries: list[tuple[str, str]] = []
        self._to_time: set[str] = set()
        # What the records of these jobs say, and the latest time that counts by this host's clock.
        self._latest: dict[str, tuple[str, str]] = {}
        self._longest_pause_s = facts.longest_pause_s
        self._now = facts.now
        # Jobs whose choice could not be carried out, and until when they are not chosen again.
        self._postponed: dict[str, str] = {}

    @property
    def needed(self) -> Collection[str]:
        """The jobs that entries need, whether they are entries themselves or not."""
        return self._dependents

    def update(self, job: str) -> None:
        """The record of a job has changed."""
        self._postponed.pop(job, None)
        record = self._records.get(job)
        self.copies.update(job, record)
        if record is None:
            self._ranks.pop(job, None)
        elif job in self._asked:
            self._enqueue(job, record)
        if job in self._dependents:
            self._update_dependents(job, is_done=record is not None and record.state is State.DONE)

    def add(self, added: Mapping[str, Entry], entries: Mapping[str, Entry]) -> None:
        """Entries have come; `entries` are all that there are then. `update` must follow for each."""
        self._entries = entries
        for job, entry in added.items():
            self._note_entry(job, entry)
            for need in entry.needs:
                self._dependents.setdefault(need, []).append(job)
                record = self._records.get(need)
                self._update_dependents(need, is_done=record is not None and record.state is State.DONE)

    def forget(self, job: str) -> None:
        """Remove a job from the queue."""
        self._ranks.pop(job, None)
        self._homed.discard(job)
        self._needs.pop(job, None)

    def put_back(self, job: str) -> None:
        """A job that was taken out is still queued."""
        record = self._records.get(job)
        if record is not None and job in self._asked:
            self._enqueue(job, record)

    def postpone(self, job: str, until: str) -> None:
        """The job is not ready before `until`, unless its record changes."""
        self._postponed[job] = until
        self.put_back(job)

    def note_copy(self, label: str) -> None:
        """This copy of the code is there: jobs that have waited for it are ready."""
        for job in self.copies.found(label):
            self.put_back(job)

    def move_on(self, now: str, places: Mapping[str, str]) -> None:
        """Take in what has changed without a change of its record: the time, the places of checkpoints, the limits."""
        if places != self._places:
            self._places = places
            for job in list(self._homed):
                self.put_back(job)
        self._enqueue_due_retries(now)
        freed = self._in_flight.drain_freed()
        for group in list(self._closed) if freed is None else freed:
            for queue in self._closed.pop(group, ()):
                queue.is_closed = False
                self._show(queue)

    def next_retry(self, now: str) -> str | None:
        """The earliest time after `now` at which a job that waits for its retry becomes ready."""
        self._enqueue_due_retries(now)
        return self._retries[0][0] if self._retries else None

    def classes(self) -> list[ReadyClass]:
        """Those that some outlet can run."""
        return [one for one in self._classes.values() if one.outlets]

    def head(self, of_class: ReadyClass) -> Rank | None:
        """The smallest rank of a class, among those whose groups have room."""
        heads = of_class.heads
        while heads:
            rank = heads[0]
            queue = rank[3]
            if queue.shown is not rank:
                heapq.heappop(heads)
            elif self._ranks.get(rank[2]) != rank:
                heapq.heappop(heads)
                self._show(queue)
            elif queue.groups and (full := self._in_flight.full(queue.groups)) is not None:
                heapq.heappop(heads)
                queue.shown, queue.is_closed = None, True
                self._closed.setdefault(full, []).append(queue)
            else:
                return rank
        return None

    def _show(self, queue: GroupQueue) -> None:
        """Have the smallest rank of a queue stand for it; ranks that a change has replaced are dropped here."""
        heap = queue.heap
        while heap and self._ranks.get(heap[0][2]) != heap[0]:
            heapq.heappop(heap)
        queue.shown = heap[0] if heap else None
        if heap:
            heapq.heappush(queue.of_class.heads, heap[0])

    def first(self, classes: Iterable[ReadyClass], full: set[str]) -> tuple[Rank, ReadyClass] | None:
        """The smallest rank of these classes, among those that can run on more than the outlets `full`."""
        best: tuple[Rank, ReadyClass] | None = None
        for one in classes:
            if full.issuperset(one.outlets):
                continue
            rank = self.head(one)
            if rank is not None and (best is None or rank < best[0]):
                best = rank, one
        return best

    def remove(self, of_class: ReadyClass) -> None:
        """Take the first job out of its class, which `head` has just given."""
        rank = heapq.heappop(of_class.heads)
        del self._ranks[rank[2]]
        self._show(rank[3])

    def starts_anew(self, entry: Entry, outlet: str) -> bool:
        """Whether the job does not resume from its checkpoint on this outlet."""
        if entry.job_id not in self._homed:
            return False
        home = home_of(entry, self._records[entry.job_id])
        return home is not None and home.place != self._places[outlet]

    def _update_dependents(self, job: str, *, is_done: bool) -> None:
        if is_done == (job in self._done):
            return
        (self._done.add if is_done else self._done.discard)(job)
        for dependent in self._dependents[job]:
            waiting = self._records.get(dependent)
            if dependent in self._asked and waiting is not None:
                self._enqueue(dependent, waiting)

    def _is_ready(self, job: str, record: Record) -> bool:
        if record.state is not State.QUEUED or not self._done.issuperset(self._needs.get(job, ())):
            return False
        return not self.copies.lacks(job)

    def _note_entry(self, job: str, entry: Entry) -> None:
        """Also of a job that this pod does not take: others need it."""
        if entry.needs:
            self._needs[job] = entry.needs
        if self._wants_copy(entry) and job in self._asked:
            self.copies.add(job)

    def _enqueue(self, job: str, record: Record) -> None:
        if not self._is_ready(job, record):
            self._ranks.pop(job, None)
            self._homed.discard(job)
        elif self._stated(job, record) or job in self._postponed:
            self._ranks.pop(job, None)
            self._to_time.add(job)
        else:
            self._push(job, record)

    def _push(self, job: str, record: Record) -> None:
        entry = self._entries[job]
        of_class = self._class(job, entry, record)
        groups = self._in_flight.groups(entry)
        queue = of_class.queues.get(groups)
        if queue is None:
            queue = of_class.queues[groups] = GroupQueue(of_class, groups)
        rank = (-record.priority_or(entry.priority), entry.order, job, queue)
        if self._ranks.get(job) != rank:
            self._ranks[job] = rank
            heapq.heappush(queue.heap, rank)
            if queue.heap[0] is rank and not queue.is_closed:
                self._show(queue)

    def _enqueue_due_retries(self, now: str) -> None:
        if now < self._now:
            # This host's clock was set back: what was seen by it does not count.
            self._latest.clear()
            self._to_time.update(job for _, job in self._retries)
            self._retries.clear()
        self._now = now
        to_time, self._to_time = self._to_time, set()
        for job in to_time:
            record = self._records.get(job)
            if record is not None and job in self._asked and self._is_ready(job, record):
                heapq.heappush(self._retries, (self._due(job, record), job))
        while self._retries and self._retries[0][0] <= now:
            due, job = heapq.heappop(self._retries)
            record = self._records.get(job)
            if record is None or job not in self._asked:
                continue
            if self._due(job, record) == due and self._is_ready(job, record):
                self._postponed.pop(job, None)
                self._push(job, record)

    def _due(self, job: str, record: Record) -> str:
        """The earliest time at which a ready job may be chosen; empty for at once."""
        stated = self._stated(job, record)
        if not stated:
            self._latest.pop(job, None)
        elif self._latest.get(job, ("",))[0] != stated:
            # The clock of the host that has recorded it may be hours ahead.
            if self._yielded(job, record):
                latest = later(self._now, YIELD_S)
            else:
                latest = latest_retry(self._now, self._entries[job], record, self._longest_pause_s)
            self._latest[job] = stated, latest
        due = min(filter(None, self._latest.get(job, ())), default="")
        return max(due, self._postponed.get(job, ""))

    def _stated(self, job: str, record: Record) -> str:
        """The earliest time by the record; empty for at once."""
        return max(retry_due(record), self._yielded(job, record))

    def _yielded(self, job: str, record: Record) -> str:
        return yields_until(self._asked[job][0], record) if record.reason == QUEUE_LIMIT else ""

    def _class(self, job: str, entry: Entry, record: Record) -> ReadyClass:
        """The class of a job; without outlets while it must wait for its checkpoint."""
        key = self._asked[job]
        # Most jobs have run nowhere yet.
        if record.outlet is not None or record.checkpoint_at is not None:
            home = home_of(entry, record)
            outlets = that_see(in_order(key[0], record), self._places, home, self._on_move(entry))
            key = outlets, key[1]
            if home is not None:
                self._homed.add(job)
        pack = self._pack_of(entry)
        # A pack is of one method and runs one code, so its entries have a heap of their own.
        method = f"{entry.method} {record.snapshot or ''}" if pack > 1 else ""
        found = self._classes.get((key, method))
        if found is None:
            found = self._classes[key, method] = ReadyClass(*key, pack)
        return found
