"""What there is to do for a pod: its manifest and the queue of its entries, kept in step with the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Request
from dispatcher.pod.claim import ClaimQueue
from dispatcher.pod.current_manifest import CurrentManifest
from dispatcher.pod.offers import Offer, own_offer, request_of
from dispatcher.pod.outcome import longest_pause_s
from dispatcher.pod.participant import Obstacle, Participant, Pass, Shared
from dispatcher.pod.placing import vanishing
from dispatcher.pod.startable import Startable
from dispatcher.pod.waiting import Facts
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import Record
from dispatcher.run_state.store import Transaction


class Backlog(Participant):
    """The entries that this pod may claim.

    The participants of the pod, which `read_all` is given, follow the records, the entries and the configuration, too.
    """

    def __init__(self, shared: Shared) -> None:
        store, config, options = shared.store, shared.config, shared.options
        # A pod that ends when nothing is left and finds nothing at all was started in error.
        may_be_missing = options.matrix is None and (
            not options.until_empty or store.layout.submitted_manifest.exists()
        )
        path = options.matrix or config.now.matrix
        self.manifest = CurrentManifest(path, store, shared.log, may_be_missing=may_be_missing, saves=not shared.is_dry)
        # Whether there may be submitted jobs whose lines were not read yet, and up to which line of the journal there
        # are none; `_new` are those of them that are known.
        self._has_unread = True
        self._read_at = 0
        self._new: set[str] = set()
        self.startable = Startable(config.now, shared.log, shared.outlets)
        self._participants: Sequence[Participant] = ()
        # Those of them that look at each record that changes.
        self._noting: Sequence[Participant] = ()
        self._store = store
        self._config = config
        self._options = options
        self._outlets = shared.outlets
        self._capacities = {name: outlet.capacity for name, outlet in shared.outlets.items()}
        self._log = shared.log
        # Whether watched files may have changed since they were read.
        self._is_outdated = True
        # Whether there is a new manifest whose entries are not all queued yet; at first there is, even if it is empty.
        self._replaced = True
        # Whether entries of the manifest have lost their records, to be queued anew.
        self._forgotten = False
        # What was last logged about disks that vanish.
        self._warnings: list[str] = []

    def read_all(self, participants: Sequence[Participant]) -> None:
        """Read everything, and queue what is new."""
        self._participants = participants
        self._noting = [one for one in participants if type(one).note is not Participant.note]
        self._follow_config()
        self._follow_manifest(thoroughly=True)

    def follow(self, now: Pass) -> bool:
        """Take in what has changed of the journal and of files, if they may have; whether they were looked at."""
        if not (now.poll_is_due or self._is_outdated or self._has_unread):
            return False
        self._store.refresh()
        self.sync()
        self._follow_config()
        self._follow_manifest(thoroughly=now.poll_is_due)
        # Where one of these has failed, all of them are due again.
        self._is_outdated = False
        return True

    def note_change(self) -> None:
        """A watched file has changed."""
        self._is_outdated = True

    def record(self, now: Pass, tx: Transaction) -> None:
        """What was recorded before may be what other jobs wait for."""
        self.sync()
        if now.claiming and self._config.has_changed():
            # A job that was requeued after a correction must run with it.
            self._is_outdated = now.is_outdated = True
            now.claiming = False

    def roll_back(self) -> None:
        self.sync()

    def has_more(self) -> bool:
        return self._has_unread

    def notes(self) -> list[str]:
        return [note for note in (self.manifest.problem, *self._config.notes(), self.startable.note) if note]

    def obstacles(self) -> list[Obstacle]:
        """Why this pod claims nothing, whatever is free; nothing when it does."""
        return [found for one in self._participants if (found := one.obstacle()) is not None]

    def entry(self, job: str) -> Entry | None:
        return self.manifest.entries.get(job)

    def offer(self) -> Offer:
        """What this pod takes."""
        offer = own_offer(self._options, self._capacities, self.startable.unusable_methods)
        return msgspec.structs.replace(offer, **self._merged(lambda one: one.offered()))

    def request_of(self, entry: Entry) -> Request:
        """What an attempt of the entry asks for."""
        return request_of(self._config.now, entry, self._options.request)

    def wants_copy(self, entry: Entry) -> bool:
        """Whether attempts of the entry run a copy of the code."""
        return self._config.now.wants_copy(entry.method, entry.snapshot)

    def has_ready(self) -> bool:
        """Whether some entry is ready, whatever slots there are."""
        return self.queue.has_ready(now_text(time.time()))

    def _follow_config(self) -> None:
        if not self._config.follow():
            return
        config = self._config.now
        self.startable.follow(config)
        self._outlets.follow(config)
        for one in self._participants:
            one.follow_config()
        # As with another manifest, everything is decided anew.
        self._replaced = True

    def _follow_manifest(self, *, thoroughly: bool) -> None:
        """Take in a manifest that was replaced, and queue anew the entries whose records people have deleted.

        Submitted jobs are taken in too; `thoroughly`: also where people have edited their file.
        """
        is_new = self.manifest.read()
        self._replaced |= is_new
        added = self._read_submitted(thoroughly=thoroughly)
        if self._replaced:
            for one in self._participants:
                one.follow_entries(is_new=is_new)
            self._check_entries()
            self.manifest.queue_new()
            self._rebuild_queue()
            self._replaced = False
        else:
            # Should this fail, all jobs are looked at the next time, or these would be missing from then on.
            self._replaced = bool(added)
            self._take_in(added)
            self._replaced = False
            if self._forgotten:
                self.manifest.queue_new()
                self.sync()
        self._forgotten = False

    def follow_entries(self, *, is_new: bool) -> None:
        """Checkpoints on disks that vanish."""
        warnings = vanishing(self._config.now, self.manifest.entries.values(), self._outlets)
        for text in warnings if warnings != self._warnings else ():
            self._log(f"warning: {text}")
        self._warnings = warnings

    def follow_submitted(self) -> None:
        """Take in jobs that were submitted, if there are any, and no other changes of files."""
        self._take_in(self._read_submitted(thoroughly=False))

    def follow_templates(self) -> None:
        """Take in templates and environments that were mended, and those that were broken before jobs fail by them."""
        if self.startable.has_changed():
            self._check_entries()
            self.queue.recheck(self.startable.unusable_methods)

    def sync(self) -> None:
        """Bring the queue up to date with the records that have changed."""
        store = self._store
        if store.reloads != self._reloads:
            self._rebuild_queue()
            # A journal that has gone back may lack records.
            self._forgotten = True
        for job in store.fold.drain_touched():
            record = store.records.get(job)
            if job not in self.manifest.entries:
                # A submitted job that was deleted; one of another manifest may get its name.
                self.queue.forget(job)
            for one in self._noting:
                one.note(job, record)
            self.queue.update(job)
            self._forgotten |= record is None and self.manifest.requeues(job)
            if record is not None and record.ad_hoc and (store.records.born(job) or 0) > self._read_at:
                self._new.add(job)
                self._has_unread = True
        self.queue.pause(store.fold.pauses)
        # Attempts are kept off what is held.
        held = self._merged(lambda one: one.held())
        for outlet in self._outlets.values():
            outlet.hold(held)

    def _read_submitted(self, *, thoroughly: bool) -> tuple[str, ...]:
        """The jobs that were submitted since the last look."""
        if not (self._has_unread or thoroughly):
            return ()
        read_at = self._store.seq
        news = self.manifest.read_submitted(thoroughly=thoroughly)
        self._read_at, self._has_unread = read_at, False
        new, self._new = self._new, set()
        self._replaced |= news.is_rewritten or not new.issuperset(news.replaced)
        # A line that was read before its record counts only now.
        jobs = dict.fromkeys((*news.added, *sorted(new)))
        return tuple(job for job in jobs if self.manifest.is_submitted(job))

    def _take_in(self, jobs: tuple[str, ...]) -> None:
        """Add jobs to the queue; how much work that is does not depend on how many there are already."""
        if not jobs:
            return
        entries = self.manifest.entries
        offer = self.offer()
        mine = [entry for job in jobs if offer.excludes(entry := entries[job]) is None]
        if self.startable.knows(mine):
            self.startable.check_more(mine)
        else:
            self._check_entries()
            self.queue.recheck(self.startable.unusable_methods)
        for job in jobs:
            record = self._store.records.get(job)
            for one in self._noting:
                one.note(job, record)
        self.queue.add(jobs, entries)

    def _check_entries(self) -> None:
        """Check what those entries need that this pod was not told to leave to others."""
        offer = self.offer()
        self.startable.check(entry for entry in self.manifest.entries.values() if offer.excludes(entry) is None)

    def _rebuild_queue(self) -> None:
        entries, store = self.manifest.entries, self._store
        facts = Facts(
            records=store.records,
            entries=entries,
            now=now_text(time.time()),
            request_of=self.request_of,
            fault_of=self.startable.fault,
            on_move=self._on_move,
            longest_pause_s=self._longest_pause_s,
            offers=(self.offer(),),
            **self._merged(lambda one: one.facts()),
        )
        self.queue = ClaimQueue(facts, self._capacities, self._pack_of)
        # All records are looked at anew, also those that others changed while new entries were queued.
        store.fold.forget_touched()
        for one in self._participants:
            one.note_all()
        for job in (*entries, *self.queue.needed_elsewhere()):
            self.queue.update(job)
        self._reloads = store.reloads
        # There may be new ones among the records.
        self._has_unread = self._has_unread or store.seq > self._read_at

    def _on_move(self, entry: Entry) -> str:
        return self._config.now.method(entry.method).on_move

    def _longest_pause_s(self, entry: Entry, record: Record) -> float:
        return longest_pause_s(record, self._config.now.method(entry.method).backoff_s)

    def _pack_of(self, entry: Entry) -> int:
        return self._config.now.method(entry.method).pack

    def _merged(self, part: Callable[[Participant], Mapping[str, Any]]) -> dict[str, Any]:
        """What the participants contribute to one thing."""
        return {name: value for one in self._participants for name, value in part(one).items()}
