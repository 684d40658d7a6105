"""Which entries a pod claims next, and for which slots. Pure: no files, no clocks. waiting.py explains why others wait.

The queue is updated change by change (ready.py), so that a choice costs what is chosen, not what is queued. Entries
that ask for the same form one class: when the first of a class does not fit, none of the class does, and its request is
passed to the outlet's capacity as `ahead` of all later ones. So an entry on several GPUs that comes first keeps the
free GPUs for itself; without that, single ones behind it would take them one by one and it would wait for ever.
An entry whose group is full (`max_running`) is passed over, and keeps nothing for itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Capacity, Request, Slot
from dispatcher.pod.needed_copies import NeededCopies
from dispatcher.pod.offers import Offer, offers_of
from dispatcher.pod.pack import Pack
from dispatcher.pod.ready import Asked, ReadyClass, ReadyJobs
from dispatcher.pod.waiting import Facts, Waiting, as_written
from dispatcher.run_state.facets.pauses import Pause, host_scope, pause_of_host, pause_of_method
from dispatcher.run_state.states import IN_FLIGHT, State


def alone(_: Entry) -> int:
    """No entry shares a slot."""
    return 1


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


class ClaimQueue:
    """The entries of one manifest that one pod may claim, in the order in which it claims them.

    `facts` has the manifest's entries, what is asked about each, and the offer of this pod as the first one. Its
    records are those of all jobs as they are now; `update` says which of them have changed. `capacities` is the room of
    the pod's outlets by name, the preferred first. `pack_of(entry)` is how many entries of its method may share a slot,
    one after the other.
    """

    def __init__(
        self, facts: Facts, capacities: Mapping[str, Capacity], pack_of: Callable[[Entry], int] = alone
    ) -> None:
        self.entries = facts.entries
        self.records = facts.records
        self.capacities = capacities
        self.unfinished: set[str] = set()
        self._facts = facts
        self._offer = facts.offers[0]
        self._pauses: Mapping[str, Pause] = {}
        # The jobs that this pod may claim.
        self._mine = self._find_mine(self.entries)
        self._ready = ReadyJobs(facts, self._mine, pack_of, self._places())
        # Ready jobs that are paused, by the scope of the pause: in no heap until it is unpaused.
        self._paused: dict[str, list[str]] = {}
        # Ready jobs that cannot be started now: in no heap until `recheck`.
        self._unstartable: list[str] = []

    def update(self, job: str) -> None:
        """The record of a job has changed."""
        record = self.records.get(job)
        is_open = record is not None and (record.state is State.QUEUED or record.state in IN_FLIGHT)
        if is_open and job in self._mine:
            self.unfinished.add(job)
        else:
            self.unfinished.discard(job)
        self._ready.update(job)

    def add(self, jobs: Iterable[str], entries: Mapping[str, Entry]) -> None:
        """Jobs have come; `entries` are all that there are then."""
        self.entries = entries
        self._facts = msgspec.structs.replace(self._facts, entries=entries)
        added = {job: entries[job] for job in jobs}
        self._mine.update(self._find_mine(added))
        self._ready.add(added, entries)
        for job in added:
            self.update(job)

    def forget(self, job: str) -> None:
        """The job has no entry any more."""
        self._mine.pop(job, None)
        self._ready.forget(job)

    def pause(self, pauses: Mapping[str, Pause]) -> None:
        """These scopes are paused from now on, all others are not."""
        self._pauses = dict(pauses)
        for scope in [scope for scope in self._paused if scope not in self._pauses]:
            for job in self._paused.pop(scope):
                self.put_back(job)

    def recheck(self, unusable_methods: Mapping[str, str]) -> None:
        """Templates or environments have changed: check again which entries can be started."""
        self._offer = msgspec.structs.replace(self._offer, unusable_methods=unusable_methods)
        unstartable, self._unstartable = self._unstartable, []
        for job in unstartable:
            self.put_back(job)

    def choose(self, now: str, limit: int | None = None) -> list[Choice]:
        """Take entries and slots for them, in order, until either is used up. `now` is a journal time."""
        self._ready.move_on(now, self._places())
        chosen: list[Choice] = []
        if self._host_is_paused():
            return chosen
        # What did not fit in this round, by outlet; slots are only taken meanwhile, so it will not fit later either.
        ahead: dict[str, list[Request]] = {name: [] for name in self.capacities}
        open_classes = self._ready.classes()
        while limit is None or len(chosen) < limit:
            full = {name for name, capacity in self.capacities.items() if capacity.is_full}
            first = self._ready.first(open_classes, full)
            if first is None:
                break
            rank, of_class = first
            entry = self.entries[rank[2]]
            if self._set_aside(entry):
                self._ready.remove(of_class)
                continue
            choice = self._take(entry, of_class, ahead)
            if choice is None:
                open_classes.remove(of_class)
                continue
            self._take_out(entry, of_class)
            most = of_class.pack if self.capacities[choice.outlet].packs else 1
            most = most if limit is None else min(most, limit - len(chosen))
            chosen += self._packed(choice, of_class, most) if most > 1 else [choice]
        return chosen

    def may_claim(self, job: str) -> bool:
        """Whether the job is one that this pod may claim."""
        return job in self._mine

    def put_back(self, job: str) -> None:
        """A choice was not carried out; the entry is still queued."""
        self._uncount(job)
        self._ready.put_back(job)

    def postpone(self, job: str, until: str) -> None:
        """A choice cannot be carried out now: the job is not chosen before `until`, unless its record changes."""
        self._uncount(job)
        self._ready.postpone(job, until)

    def has_ready(self, now: str) -> bool:
        """Whether some entry is ready, whatever slots there are."""
        self._ready.move_on(now, self._places())
        ready = self._ready
        return not self._host_is_paused() and any(ready.head(one) is not None for one in ready.classes())

    def upcoming(self) -> list[str]:
        """The ready jobs that are likely to be chosen next, whatever slots there are: the first of each class."""
        heads = [self._ready.head(one) for one in self._ready.classes()]
        return [head[2] for head in heads if head is not None]

    @property
    def needed_copies(self) -> NeededCopies:
        """The copies of the code without which queued jobs are not ready."""
        return self._ready.copies

    def note_copy(self, label: str) -> None:
        """This copy of the code is there now."""
        self._ready.note_copy(label)

    def needed_elsewhere(self) -> list[str]:
        """Jobs that entries here need and that this manifest does not have."""
        return [need for need in self._ready.needed if need not in self.entries]

    def next_retry(self, now: str) -> str | None:
        """The earliest time after `now` at which an entry that waits for its retry becomes ready."""
        return self._ready.next_retry(now)

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
        found, offer = [], self._offer_now()
        for job, entry in self.entries.items():
            record = self.records.get(job)
            if job not in self._mine and record is not None and record.state is State.QUEUED:
                refusal = offer.refusal(entry, self._facts.request_of(entry))
                if refusal is not None and not refusal.is_chosen:
                    found.append(job)
        return found

    def waiting(
        self, now: str, others: Iterable[Offer] = (), clock: Callable[[str | None], str] = as_written
    ) -> Waiting:
        """Why entries are not claimed by this pod. `others` are the offers of other pods that may take them."""
        offer = self._offer_now()
        offers = (offer, *others)
        facts = msgspec.structs.replace(
            self._facts, now=now, offers=offers, pauses=self._pauses, me=offer.pod, clock=clock
        )
        return Waiting(facts)

    def _offer_now(self) -> Offer:
        return msgspec.structs.replace(self._offer, outlets=offers_of(self.capacities))

    def _host_is_paused(self) -> bool:
        return host_scope(self._offer.host) in self._pauses

    def _places(self) -> dict[str, str]:
        return {name: capacity.place for name, capacity in self.capacities.items()}

    def _find_mine(self, entries: Mapping[str, Entry]) -> dict[str, Asked]:
        """The jobs that this pod may claim: the outlets that could ever run each, and what it asks for."""
        able: dict[Asked, Asked] = {}
        found = {}
        for job, entry in entries.items():
            if self._offer.excludes(entry) is None:
                request = self._facts.request_of(entry)
                key = entry.outlet, request
                if key not in able:
                    names = self._offer.outlets_for(entry)
                    able[key] = tuple(name for name in names if not self.capacities[name].refuses(request)), request
                if able[key][0]:
                    found[job] = able[key]
        return found

    def _set_aside(self, entry: Entry) -> bool:
        """Whether the entry waits for the end of a pause or for `recheck`; if so, it is kept for that."""
        pause = pause_of_method(self._pauses, entry) or pause_of_host(self._pauses, self._offer.host, entry.method)
        if pause is not None:
            self._paused.setdefault(pause.scope, []).append(entry.job_id)
        elif entry.method in self._offer.unusable_methods or self._facts.fault_of(entry):
            self._unstartable.append(entry.job_id)
        else:
            return False
        return True

    def _take_out(self, entry: Entry, of_class: ReadyClass) -> None:
        """Take the first entry of a class, which is chosen: from now on it counts in its groups."""
        self._ready.remove(of_class)
        self._facts.in_flight.put(entry.job_id, self._facts.in_flight.groups(entry))

    def _uncount(self, job: str) -> None:
        record = self.records.get(job)
        if record is None or record.state not in IN_FLIGHT:
            self._facts.in_flight.drop(job)

    def _take(self, entry: Entry, of_class: ReadyClass, ahead: Mapping[str, list[Request]]) -> Choice | None:
        """The entry with a slot of the best of its outlets that have room, else None and its request is `ahead`."""
        names = self._best_first(entry, of_class)
        for name in names:
            slot = self.capacities[name].take(of_class.request, ahead[name])
            if slot is not None:
                return Choice(entry, name, slot, self._ready.starts_anew(entry, name))
        for name in names:
            ahead[name].append(of_class.request)
        return None

    def _best_first(self, entry: Entry, of_class: ReadyClass) -> list[str]:
        """The outlets that may take it now. An entry that names outlets has them in its own order of preference."""
        outlooks = {name: capacity.outlook(of_class.request) for name, capacity in self.capacities.items()}
        # One that does not know yet may be the best for this entry, or for one before it that waits for that: those
        # that come after it are not used meanwhile.
        usable = set(itertools.takewhile(lambda name: outlooks[name] != math.inf, outlooks))
        able = {name: outlook for name in of_class.outlets if (outlook := outlooks[name]) is not None}
        names = list(able) if entry.outlet else sorted(able, key=lambda name: able[name] if name in usable else 0.0)
        return list(itertools.takewhile(usable.__contains__, names))

    def _packed(self, first: Choice, of_class: ReadyClass, most: int) -> list[Choice]:
        """The first entry of a pack and those that share its slot, up to `most` in all."""
        entries = [first.entry]
        while len(entries) < most and (rank := self._ready.head(of_class)) is not None:
            entry = self.entries[rank[2]]
            if self._set_aside(entry):
                self._ready.remove(of_class)
            else:
                entries.append(entry)
                self._take_out(entry, of_class)
        if len(entries) == 1:
            return [first]
        pack = Pack()
        found = []
        for entry in entries:
            pack.join()
            starts_anew = self._ready.starts_anew(entry, first.outlet)
            found.append(Choice(entry, first.outlet, first.slot, starts_anew, pack))
        return found
