"""Which entries a pod claims next. Pure: no files, no clocks. waiting.py explains why the others wait.

The queue is updated change by change, so that a choice costs what is chosen, not what is queued. Order: higher
priority first, then the manifest's order. Entries that ask for the same form one class with a heap of its own: when the
first of a class does not fit, none of the class does, and its request is passed to the outlet's capacity as `ahead` of
all later ones. So an entry on several GPUs that comes first keeps the free GPUs for itself; without that, single ones
behind it would take them one by one and it would wait for ever.

Which outlets an entry asks for depends on its record too (placing.py), so an entry may change its class.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from dispatcher.matrix.entry import Entry
from dispatcher.matrix.needs import dependents
from dispatcher.outlets.base import QUEUE_LIMIT, Capacity, Request, Slot
from dispatcher.pod.offers import Offer, offers_of
from dispatcher.pod.pack import Pack
from dispatcher.pod.placing import home_of, in_order, stays, that_see, yields_until
from dispatcher.pod.waiting import Facts, Waiting, no_fault, retry_due
from dispatcher.run_state.fold import Pause, host_scope
from dispatcher.run_state.states import IN_FLIGHT, Record, State


def alone(_: Entry) -> int:
    """No entry shares a slot."""
    return 1


# Outlets, the preferred first, and a request.
_Asked = tuple[tuple[str, ...], Request]
# Minus the priority, the order in the manifest, the job, its class. Smaller is claimed first.
_Rank: TypeAlias = "tuple[int, int, str, _Class]"


class Choice(msgspec.Struct, frozen=True):
    """An entry, the outlet that runs it, and the slot that it gets there.

    `starts_anew`: the outlet does not see the job's checkpoint, and its method does not let it wait. Those of one
    `pack` share the slot; None for one alone.
    """

    entry: Entry
    outlet: str
    slot: Slot
    starts_anew: bool = False
    pack: Pack | None = None


class _Class(msgspec.Struct, eq=False):
    """Entries that ask for the same, up to `pack` of which may share a slot.

    `outlets`: those of the pod that can run them, the preferred first.

    `ready` is a heap of ranks. One that is no longer its job's rank, or whose job has changed its class, is dropped
    when it comes first.
    """

    outlets: tuple[str, ...]
    request: Request
    pack: int = 1
    ready: list[_Rank] = []


class ClaimQueue:
    """The entries of one manifest that one pod may claim, in the order in which it claims them.

    `records` are those of all jobs as they are now; `update` says which of them have changed.
    `offer` is what the pod takes, `capacities` the room of its outlets by name, the preferred first.
    `request_of(entry)` is what an attempt of the entry asks for. `fault_of(entry)` says why no pod could start it,
    `on_move(entry)` what becomes of it where its checkpoint is not seen, `pack_of(entry)` how many entries of its
    method may share a slot, one after the other.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        records: Mapping[str, Record],
        offer: Offer,
        capacities: Mapping[str, Capacity],
        request_of: Callable[[Entry], Request],
        fault_of: Callable[[Entry], str] = no_fault,
        on_move: Callable[[Entry], str] = stays,
        pack_of: Callable[[Entry], int] = alone,
    ) -> None:
        self.entries = entries
        self.capacities = capacities
        self._request_of = request_of
        self._fault_of = fault_of
        self._on_move = on_move
        self._pack_of = pack_of
        self._offer = offer
        self._pauses: Mapping[str, Pause] = {}
        self.records = records
        # The jobs that this pod may claim: the outlets that could ever run each, and what it asks for.
        self._mine: dict[str, _Asked] = {}
        self._needs: dict[str, tuple[str, ...]] = {}
        self._look_through_entries()
        self._dependents = dependents(self._needs)
        # Those of the jobs that others need that were done at their last update. Readiness goes by these alone: what
        # needs a job whose record has changed since is looked at when its update comes.
        self._done: set[str] = set()
        self._classes: dict[tuple[_Asked, str], _Class] = {}
        # The rank of each job that is ready.
        self._ranks: dict[str, _Rank] = {}
        # Ready jobs with a checkpoint somewhere, and where the outlets keep theirs.
        self._homed: set[str] = set()
        self._places = self._find_places()
        self._retries: list[tuple[str, str]] = []
        # Jobs whose choice could not be carried out, and until when they are not chosen again.
        self._postponed: dict[str, str] = {}
        # Ready jobs of paused methods, by method: in no heap until the method is unpaused.
        self._paused: dict[str, list[str]] = {}
        # Ready jobs that cannot be started now: in no heap until `recheck`.
        self._unstartable: list[str] = []
        self.unfinished: set[str] = set()

    def update(self, job: str) -> None:
        """The record of a job has changed."""
        self._postponed.pop(job, None)
        record = self.records.get(job)
        if record is None:
            self._ranks.pop(job, None)
            self.unfinished.discard(job)
        elif job in self._mine:
            if record.state is State.QUEUED or record.state in IN_FLIGHT:
                self.unfinished.add(job)
            else:
                self.unfinished.discard(job)
            self._enqueue(job, record)
        if job in self._dependents:
            self._update_dependents(job, is_done=record is not None and record.state is State.DONE)

    def _update_dependents(self, job: str, *, is_done: bool) -> None:
        if is_done == (job in self._done):
            return
        (self._done.add if is_done else self._done.discard)(job)
        for dependent in self._dependents[job]:
            waiting = self.records.get(dependent)
            if dependent in self._mine and waiting is not None:
                self._enqueue(dependent, waiting)

    def pause(self, pauses: Mapping[str, Pause]) -> None:
        """These scopes are paused from now on, all others are not."""
        self._pauses = dict(pauses)
        for method in [method for method in self._paused if method not in self._pauses]:
            for job in self._paused.pop(method):
                self.put_back(job)

    def recheck(self, unusable_methods: Mapping[str, str]) -> None:
        """Templates or environments have changed: check again which entries can be started."""
        self._offer = msgspec.structs.replace(self._offer, unusable_methods=unusable_methods)
        unstartable, self._unstartable = self._unstartable, []
        for job in unstartable:
            self.put_back(job)

    def choose(self, now: str, limit: int | None = None) -> list[Choice]:
        """Take entries and slots for them, in order, until either is used up. `now` is a journal time."""
        self._look_around(now)
        chosen: list[Choice] = []
        if self._host_is_paused():
            return chosen
        # What did not fit in this round, by outlet; slots are only taken meanwhile, so it will not fit later either.
        ahead: dict[str, list[Request]] = {name: [] for name in self.capacities}
        open_classes = list(self._classes.values())
        while limit is None or len(chosen) < limit:
            first = self._first(open_classes)
            if first is None:
                break
            rank, of_class = first
            entry = self.entries[rank[2]]
            if self._set_aside(entry):
                self._remove(of_class)
                continue
            choice = self._take(entry, of_class, ahead)
            if choice is None:
                open_classes.remove(of_class)
                continue
            self._remove(of_class)
            most = of_class.pack if self.capacities[choice.outlet].packs else 1
            most = most if limit is None else min(most, limit - len(chosen))
            chosen += self._packed(choice, of_class, most) if most > 1 else [choice]
        return chosen

    def put_back(self, job: str) -> None:
        """A choice was not carried out; the entry is still queued."""
        record = self.records.get(job)
        if record is not None:
            self._enqueue(job, record)

    def postpone(self, job: str, until: str) -> None:
        """A choice cannot be carried out now: the job is not chosen before `until`, unless its record changes."""
        self._postponed[job] = until
        self.put_back(job)

    def has_ready(self, now: str) -> bool:
        """Whether some entry is ready, whatever slots there are."""
        self._look_around(now)
        return not self._host_is_paused() and any(
            one.outlets and self._head(one) is not None for one in self._classes.values()
        )

    def upcoming(self) -> list[str]:
        """The ready jobs that are likely to be chosen next, whatever slots there are: the first of each class."""
        heads = [self._head(one) for one in self._classes.values() if one.outlets]
        return [head[2] for head in heads if head is not None]

    def needed_elsewhere(self) -> list[str]:
        """Jobs that entries here need and that this manifest does not have."""
        return [need for need in self._dependents if need not in self.entries]

    def next_retry(self, now: str) -> str | None:
        """The earliest time after `now` at which an entry that waits for its retry becomes ready."""
        self._enqueue_due_retries(now)
        return self._retries[0][0] if self._retries else None

    def is_finished(self, now: str) -> bool:
        """Whether all entries that this pod could ever take have ended, or need a person to go on."""
        waiting = self.waiting(now)
        return all(waiting.why(job).needs_person for job in self.unfinished)

    def stuck(self, now: str) -> list[str]:
        """The entries for this pod that need a person to go on: a need has failed, the method is paused."""
        waiting = self.waiting(now)
        return [job for job in sorted(self.unfinished) if waiting.why(job).needs_person]

    def refused(self) -> list[str]:
        """Queued entries that this pod never takes for another reason than its --methods, --where or manifest."""
        found = []
        for job, entry in self.entries.items():
            record = self.records.get(job)
            if job not in self._mine and record is not None and record.state is State.QUEUED:
                refusal = self._offer.refusal(entry, self._request_of(entry))
                if refusal is not None and not refusal.is_chosen:
                    found.append(job)
        return found

    def waiting(self, now: str) -> Waiting:
        """Why entries are not claimed by this pod."""
        offer = msgspec.structs.replace(self._offer, outlets=offers_of(self.capacities))
        return Waiting(
            Facts(
                records=self.records,
                entries=self.entries,
                now=now,
                request_of=self._request_of,
                fault_of=self._fault_of,
                on_move=self._on_move,
                offers=(offer,),
                pauses=self._pauses,
                me=self._offer.pod,
            )
        )

    def _host_is_paused(self) -> bool:
        return host_scope(self._offer.host) in self._pauses

    def _is_ready(self, job: str, record: Record) -> bool:
        return record.state is State.QUEUED and self._done.issuperset(self._needs.get(job, ()))

    def _enqueue(self, job: str, record: Record) -> None:
        if not self._is_ready(job, record):
            self._ranks.pop(job, None)
            self._homed.discard(job)
        elif self._due(job, record):
            self._ranks.pop(job, None)
            heapq.heappush(self._retries, (self._due(job, record), job))
        else:
            self._push(job, record)

    def _push(self, job: str, record: Record) -> None:
        entry = self.entries[job]
        of_class = self._class(job, entry, record)
        rank = (-record.priority_or(entry.priority), entry.order, job, of_class)
        if self._ranks.get(job) != rank:
            self._ranks[job] = rank
            heapq.heappush(of_class.ready, rank)

    def _look_around(self, now: str) -> None:
        """Take in what has changed without a change of a record: the time, and where outlets keep checkpoints."""
        places = self._find_places()
        if places != self._places:
            self._places = places
            for job in list(self._homed):
                self.put_back(job)
        self._enqueue_due_retries(now)

    def _enqueue_due_retries(self, now: str) -> None:
        while self._retries and self._retries[0][0] <= now:
            due, job = heapq.heappop(self._retries)
            record = self.records.get(job)
            if record is not None and self._due(job, record) == due and self._is_ready(job, record):
                self._postponed.pop(job, None)
                self._push(job, record)

    def _due(self, job: str, record: Record) -> str:
        """The earliest time at which a ready job may be chosen; empty for at once."""
        yielded = yields_until(self._mine[job][0], record) if record.reason == QUEUE_LIMIT else ""
        return max(retry_due(record), self._postponed.get(job, ""), yielded)

    def _find_places(self) -> dict[str, str]:
        return {name: capacity.place for name, capacity in self.capacities.items()}

    def _look_through_entries(self) -> None:
        able: dict[_Asked, _Asked] = {}
        for job, entry in self.entries.items():
            if entry.needs:
                self._needs[job] = entry.needs
            if self._offer.excludes(entry) is None:
                request = self._request_of(entry)
                key = entry.outlet, request
                if key not in able:
                    names = self._offer.outlets_for(entry)
                    able[key] = tuple(name for name in names if not self.capacities[name].refuses(request)), request
                if able[key][0]:
                    self._mine[job] = able[key]

    def _class(self, job: str, entry: Entry, record: Record) -> _Class:
        """The class of a job; without outlets while it must wait for its checkpoint."""
        key = self._mine[job]
        # Most jobs have run nowhere yet.
        if record.outlet is not None or record.checkpoint_at is not None:
            home = home_of(entry, record)
            outlets = that_see(in_order(key[0], record), self._places, home, self._on_move(entry))
            key = outlets, key[1]
            if home is not None:
                self._homed.add(job)
        pack = self._pack_of(entry)
        # A pack is of one method, so its entries have a heap of their own.
        method = entry.method if pack > 1 else ""
        found = self._classes.get((key, method))
        if found is None:
            found = self._classes[key, method] = _Class(*key, pack)
        return found

    def _first(self, classes: Iterable[_Class]) -> tuple[_Rank, _Class] | None:
        """The smallest rank of these classes, among those whose outlets have some room."""
        full = {name for name, capacity in self.capacities.items() if capacity.is_full}
        best: tuple[_Rank, _Class] | None = None
        for one in classes:
            if full.issuperset(one.outlets):
                continue
            rank = self._head(one)
            if rank is not None and (best is None or rank < best[0]):
                best = rank, one
        return best

    def _head(self, of_class: _Class) -> _Rank | None:
        """The smallest rank of a class; ranks that a change has replaced are dropped here."""
        ready = of_class.ready
        while ready and self._ranks.get(ready[0][2]) != ready[0]:
            heapq.heappop(ready)
        return ready[0] if ready else None

    def _remove(self, of_class: _Class) -> None:
        """Take the first entry out of its class."""
        del self._ranks[heapq.heappop(of_class.ready)[2]]

    def _set_aside(self, entry: Entry) -> bool:
        """Whether the entry waits for its method to be unpaused or for `recheck`; if so, it is kept for that."""
        if entry.method in self._pauses:
            self._paused.setdefault(entry.method, []).append(entry.job_id)
        elif entry.method in self._offer.unusable_methods or self._fault_of(entry):
            self._unstartable.append(entry.job_id)
        else:
            return False
        return True

    def _take(self, entry: Entry, of_class: _Class, ahead: Mapping[str, list[Request]]) -> Choice | None:
        """The entry with a slot of the best of its outlets that have room, else None and its request is `ahead`."""
        names = self._best_first(entry, of_class)
        for name in names:
            slot = self.capacities[name].take(of_class.request, ahead[name])
            if slot is not None:
                return Choice(entry, name, slot, self._starts_anew(entry, name))
        for name in names:
            ahead[name].append(of_class.request)
        return None

    def _best_first(self, entry: Entry, of_class: _Class) -> list[str]:
        """The outlets that may take it now. An entry that names outlets has them in its own order of preference."""
        outlooks = {name: capacity.outlook(of_class.request) for name, capacity in self.capacities.items()}
        # One that does not know yet may be the best for this entry, or for one before it that waits for that: those
        # that come after it are not used meanwhile.
        usable = set(itertools.takewhile(lambda name: outlooks[name] != math.inf, outlooks))
        able = {name: outlook for name in of_class.outlets if (outlook := outlooks[name]) is not None}
        names = list(able) if entry.outlet else sorted(able, key=lambda name: able[name] if name in usable else 0.0)
        return list(itertools.takewhile(usable.__contains__, names))

    def _packed(self, first: Choice, of_class: _Class, most: int) -> list[Choice]:
        """The first entry of a pack and those that share its slot, up to `most` in all."""
        entries = [first.entry]
        while len(entries) < most and (rank := self._head(of_class)) is not None:
            entry = self.entries[rank[2]]
            if not self._set_aside(entry):
                entries.append(entry)
            self._remove(of_class)
        if len(entries) == 1:
            return [first]
        pack = Pack()
        found = []
        for entry in entries:
            pack.join()
            starts_anew = self._starts_anew(entry, first.outlet)
            found.append(Choice(entry, first.outlet, first.slot, starts_anew, pack))
        return found

    def _starts_anew(self, entry: Entry, outlet: str) -> bool:
        """Whether the job does not resume from its checkpoint on this outlet."""
        if entry.job_id not in self._homed:
            return False
        home = home_of(entry, self.records[entry.job_id])
        return home is not None and home.place != self._places[outlet]
