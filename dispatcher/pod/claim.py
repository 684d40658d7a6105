"""Which entries a pod takes next. Pure: no files, no clocks. Why the others wait is told by waiting.py.

The queue is kept up to date change by change, so that choosing costs what is chosen, not what is queued. Order: higher
priority first, then the manifest's order. An entry on several GPUs that is next in line and does not fit yet keeps the
free GPUs for itself: without that, single ones behind it would take them one by one and it would wait for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

import msgspec

from dispatcher.matrix.entry import Entry
from dispatcher.matrix.needs import dependents
from dispatcher.outlets.base import Slot
from dispatcher.outlets.local.slots import Slots
from dispatcher.pod.offers import UNUSABLE, Offer
from dispatcher.pod.waiting import Facts, Waiting, no_fault, retry_due
from dispatcher.run_state.fold import Pause, host_scope
from dispatcher.run_state.states import IN_FLIGHT, Record, State

CPU, EITHER, GPU = "cpu", "either", "gpu"
_Key = tuple[int, int, str]


class Choice(msgspec.Struct, frozen=True):
    """An entry and the slot that it gets."""

    entry: Entry
    slot: Slot


class ClaimQueue:
    """The entries of one manifest that one pod may take, in the order in which it takes them.

    `offer` is what the pod takes. `gpus_of(entry)` is the number of GPUs that the entry or its method asks for (None:
    not said). `fault_of(entry)` says why no pod could start it.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        offer: Offer,
        slots: Slots,
        gpus_of: Callable[[Entry], int | None],
        fault_of: Callable[[Entry], str] = no_fault,
    ) -> None:
        self.entries = entries
        self.slots = slots
        self._gpus_of = gpus_of
        self._fault_of = fault_of
        self._offer = offer
        self._pauses: Mapping[str, Pause] = {}
        self._records: dict[str, Record] = {}
        self._dependents = dependents({job: entry.needs for job, entry in entries.items() if entry.needs})
        self._kinds: dict[str, str] = {}
        for job, entry in entries.items():
            refusal = offer.refusal(entry, gpus_of(entry))
            if refusal is None or refusal.kind == UNUSABLE:
                self._kinds[job] = self._kind(entry)
        self._ready: dict[str, list[_Key]] = {CPU: [], EITHER: [], GPU: []}
        # The one key by which a job stands in line; keys in the heaps that are not its key any more are dropped there.
        self._lined: dict[str, _Key] = {}
        self._retries: list[tuple[str, str]] = []
        # Jobs whose choice could not be carried out, and until when they are not chosen again.
        self._postponed: dict[str, str] = {}
        # Ready entries of paused methods, out of the way until the method is resumed.
        self._shelves: dict[str, list[str]] = {}
        # Ready entries that cannot be started as things stand.
        self._faulty: list[str] = []
        self.unfinished: set[str] = set()

    def update(self, job: str, record: Record | None) -> None:
        """A record has changed."""
        self._postponed.pop(job, None)
        old = self._records.get(job)
        if record is None:
            self._records.pop(job, None)
            self._lined.pop(job, None)
            self.unfinished.discard(job)
        else:
            self._records[job] = record
        if job in self._kinds and record is not None:
            if record.state is State.QUEUED or record.state in IN_FLIGHT:
                self.unfinished.add(job)
            else:
                self.unfinished.discard(job)
            self._line_up(job, record)
        if (old is not None and old.state is State.DONE) != (record is not None and record.state is State.DONE):
            for dependent in self._dependents.get(job, ()):
                waiting = self._records.get(dependent)
                if dependent in self._kinds and waiting is not None:
                    self._line_up(dependent, waiting)

    def pause(self, pauses: Mapping[str, Pause]) -> None:
        """These scopes are paused from now on, all others are not."""
        self._pauses = dict(pauses)
        for method in [method for method in self._shelves if method not in self._pauses]:
            for job in self._shelves.pop(method):
                self.put_back(job)

    def look_again(self, unusable_methods: Mapping[str, str]) -> None:
        """Templates and the like have changed: what could not be started may be startable, and the other way round."""
        self._offer = msgspec.structs.replace(self._offer, unusable_methods=unusable_methods)
        faulty, self._faulty = self._faulty, []
        for job in faulty:
            self.put_back(job)

    def choose(self, now: str, limit: int | None = None) -> list[Choice]:
        """Take entries and slots for them, in order, until either is used up. `now` is a journal time."""
        self._wake_retries(now)
        chosen: list[Choice] = []
        if self._host_is_paused():
            return chosen
        skipped: list[tuple[str, _Key]] = []
        gpus_reserved = False
        while limit is None or len(chosen) < limit:
            kind, key = self._next(gpus_reserved)
            if kind is None or key is None:
                break
            heapq.heappop(self._ready[kind])
            entry = self.entries[key[2]]
            if entry.method in self._pauses:
                del self._lined[key[2]]
                self._shelves.setdefault(entry.method, []).append(key[2])
                continue
            if entry.method in self._offer.unusable_methods or self._fault_of(entry):
                del self._lined[key[2]]
                self._faulty.append(key[2])
                continue
            slot = self._slot_for(entry, kind, gpus_reserved)
            if slot is None:
                # Next in line for several GPUs: nobody behind it gets one of them, unless it waits for one that is ill
                # or somebody else's.
                skipped.append((kind, key))
                gpus_reserved = (self._gpus_of(entry) or 1) <= len(self.slots.usable_gpus)
                continue
            del self._lined[key[2]]
            chosen.append(Choice(entry, slot))
        for kind, key in skipped:
            heapq.heappush(self._ready[kind], key)
        return chosen

    def put_back(self, job: str) -> None:
        """A choice was not carried out; the entry is still queued."""
        record = self._records.get(job)
        if record is not None:
            self._line_up(job, record)

    def postpone(self, job: str, until: str) -> None:
        """A choice cannot be carried out now: the job is not chosen before `until`, unless its record changes."""
        self._postponed[job] = until
        self.put_back(job)

    def has_ready(self, now: str) -> bool:
        """Whether some entry is ready, whatever slots there are."""
        self._wake_retries(now)
        return not self._host_is_paused() and any(self._head(kind) is not None for kind in self._ready)

    def needed_elsewhere(self) -> list[str]:
        """Jobs that entries here need and that this manifest does not have."""
        return [need for need in self._dependents if need not in self.entries]

    def next_retry(self, now: str) -> str | None:
        """The earliest time after `now` at which an entry that waits for its retry becomes ready."""
        self._wake_retries(now)
        return self._retries[0][0] if self._retries else None

    def is_finished(self, now: str) -> bool:
        """Whether nothing that this pod could ever take is queued or runs anywhere, but for what is stuck."""
        waiting = self.waiting(now)
        return all(waiting.why(job).needs_person for job in self.unfinished)

    def stuck(self, now: str) -> list[str]:
        """The entries for this pod that go on only when a person acts: a need has failed, the method is paused."""
        waiting = self.waiting(now)
        return [job for job in sorted(self.unfinished) if waiting.why(job).needs_person]

    def refused(self) -> list[str]:
        """Queued entries that this pod never takes, although nobody told it to leave them (no filter of its own)."""
        found = []
        for job, entry in self.entries.items():
            record = self._records.get(job)
            if job not in self._kinds and record is not None and record.state is State.QUEUED:
                refusal = self._offer.refusal(entry, self._gpus_of(entry))
                if refusal is not None and not refusal.is_chosen:
                    found.append(job)
        return found

    def waiting(self, now: str) -> Waiting:
        """Why entries are not claimed by this pod."""
        return Waiting(
            Facts(
                records=self._records,
                entries=self.entries,
                now=now,
                gpus_of=self._gpus_of,
                fault_of=self._fault_of,
                offers=(self._offer,),
                pauses=self._pauses,
                me=self._offer.pod,
            )
        )

    def _host_is_paused(self) -> bool:
        return host_scope(self._offer.host) in self._pauses

    def _is_done(self, job: str) -> bool:
        record = self._records.get(job)
        return record is not None and record.state is State.DONE

    def _kind(self, entry: Entry) -> str:
        gpus = self._gpus_of(entry)
        return EITHER if gpus is None else GPU if gpus else CPU

    def _is_ready(self, job: str, record: Record) -> bool:
        return record.state is State.QUEUED and all(self._is_done(need) for need in self.entries[job].needs)

    def _line_up(self, job: str, record: Record) -> None:
        if not self._is_ready(job, record):
            self._lined.pop(job, None)
        elif record.retry_at or job in self._postponed:
            self._lined.pop(job, None)
            heapq.heappush(self._retries, (self._due(job, record), job))
        else:
            self._push(job, record)

    def _push(self, job: str, record: Record) -> None:
        entry = self.entries[job]
        key = (-record.priority_or(entry.priority), entry.order, job)
        if self._lined.get(job) != key:
            self._lined[job] = key
            heapq.heappush(self._ready[self._kinds[job]], key)

    def _wake_retries(self, now: str) -> None:
        while self._retries and self._retries[0][0] <= now:
            due, job = heapq.heappop(self._retries)
            record = self._records.get(job)
            if record is not None and self._due(job, record) == due and self._is_ready(job, record):
                self._postponed.pop(job, None)
                self._push(job, record)

    def _due(self, job: str, record: Record) -> str:
        """The earliest time at which a ready job may be chosen."""
        return max(retry_due(record), self._postponed.get(job, ""))

    def _next(self, gpus_reserved: bool) -> tuple[str | None, _Key | None]:
        """The first entry, in order, among those that a free slot could take."""
        cpu = self.slots.free_cpu > 0
        gpu = bool(self.slots.free_gpus) and not gpus_reserved
        usable = [kind for kind, free in ((CPU, cpu), (EITHER, cpu or gpu), (GPU, gpu)) if free]
        heads = [(key, kind) for kind in usable if (key := self._head(kind)) is not None]
        if not heads:
            return None, None
        key, kind = min(heads)
        return kind, key

    def _head(self, kind: str) -> _Key | None:
        """The first key that still holds; those that have been overtaken by a change are dropped here."""
        heap = self._ready[kind]
        while heap and self._lined.get(heap[0][2]) != heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _slot_for(self, entry: Entry, kind: str, gpus_reserved: bool) -> Slot | None:
        if kind == CPU:
            return self.slots.take(0)
        if kind == EITHER:
            if self.slots.free_cpu:
                return self.slots.take(0)
            return None if gpus_reserved else self.slots.take(1)
        return self.slots.take(self._gpus_of(entry) or 1)
