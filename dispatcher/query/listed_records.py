"""The records of a workspace in the order of its manifest, kept from one snapshot to the next."""

from __future__ import annotations

import itertools

from dispatcher.matrix.entries import Entries
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.preview import Preview
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import Record, State
from dispatcher.run_state.store import Store


class ListedRecords:
    """What a snapshot shows of the records of a store: the next one is made from it and the jobs that have changed.

    `records` has every job of the store and of the manifest, in the manifest's order; then jobs that it does not have,
    `unknown`. `unqueued` are jobs that only the manifest has.
    """

    def __init__(self) -> None:
        self.records = Records()
        self.unqueued: frozenset[str] = frozenset()
        self.unknown: list[str] = []
        self._entries: Entries | None = None
        self._reloads = -1
        # Jobs of `records` that ran with other parameters than the manifest has; None: all are to be compared.
        self._changed: set[str] | None = None
        self._not_compared: set[str] = set()

    def follow(self, store: Store, seen: Preview, entries: Entries) -> None:
        """Show what was read last of the store and of the manifest."""
        is_edited = seen.records is not store.records
        if is_edited or self._entries is not entries or self._reloads != store.reloads:
            store.fold.forget_touched()
            self._make(seen.records, entries)
        else:
            self._update(store.records, entries, store.fold.drain_touched())
        # What was edited is in no fold: the next time all records are looked at.
        self._entries, self._reloads = (None if is_edited else entries), store.reloads

    def changed(self, snapshot: Snapshot) -> list[str]:
        """The jobs of a snapshot that run or have ended with other parameters than the manifest has."""
        # What other manifests have may change at any time.
        if snapshot.records is not self.records or self.unknown:
            return snapshot.compare()
        if self._changed is None:
            self._changed = set(snapshot.compare())
        for job in self._not_compared:
            (self._changed.add if snapshot.differs(job) else self._changed.discard)(job)
        self._not_compared = set()
        return list(filter(self._changed.__contains__, self.records)) if self._changed else []

    def _make(self, records: Records, entries: Entries) -> None:
        self._changed, self._not_compared = None, set()
        self.unqueued, self.unknown = frozenset(), []
        if records.has_order(entries):
            self.records = records.copy()
            return
        self.unqueued = frozenset(itertools.filterfalse(records.keys().__contains__, entries))
        self.unknown = list(itertools.filterfalse(entries.keys().__contains__, records))
        self.records = records.ordered([*entries, *self.unknown], Record(state=State.QUEUED))

    def _update(self, records: Records, entries: Entries, jobs: set[str]) -> None:
        if not all(job in records and job in self.records and job not in self.unqueued for job in jobs):
            # Jobs were queued or deleted.
            self._make(records, entries)
        elif jobs:
            # The snapshot before this one still has the old ones.
            self.records = self.records.copy()
            self.records.take(records, jobs)
            self._not_compared |= jobs
