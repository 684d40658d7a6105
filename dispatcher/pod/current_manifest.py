"""The manifest of a pod. The file may be replaced while the pod runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dispatcher.errors import ManifestError
from dispatcher.matrix import saved_entries
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import parse_manifest, read_file, unreadable
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store

# New jobs are queued in batches, so that no other pod waits long for the lock.
_BATCH: Final = 5_000


class CurrentManifest:
    """The entries of the last valid manifest. `problem` is what is wrong with the file if it is broken now."""

    def __init__(self, path: Path, store: Store, log: Callable[[str], None]) -> None:
        self.path = path
        self.entries: Mapping[str, Entry] = {}
        self.problem = ""
        self._store = store
        self._log = log
        self._identity: tuple[int, int, int] | None = None

    def read(self) -> bool:
        """Load the file if it has changed. Returns whether there are new entries.

        A broken or missing file is reported, and the previous entries are kept. Raises ManifestError the first time,
        when there are no previous entries.
        """
        first = self._identity is None
        try:
            found = os.stat(self.path)
        except OSError as error:
            if first:
                raise unreadable(self.path, error) from None
            return False
        identity = (found.st_ino, found.st_size, found.st_mtime_ns)
        if identity == self._identity:
            return False
        try:
            data = read_file(self.path)
            entries = parse_manifest(data, str(self.path), self._store.records.keys())
            self.entries = entries
            self.problem = ""
            layout = self._store.layout
            saved_entries.save(layout.saved_entries, layout.root, data, found, entries)
        except ManifestError as error:
            if first:
                raise
            self.problem = f"{self.path.name} is broken, so the previous manifest is kept: {error}"
            self._log(f"warning: {self.problem}")
            return False
        finally:
            self._identity = identity
        return True

    def queue_new(self) -> None:
        """Queue the jobs that have no record."""
        new = [job for job in self.entries if job not in self._store.records]
        for start in range(0, len(new), _BATCH):
            with self._store.transaction() as tx:
                for job in new[start : start + _BATCH]:
                    if tx.record(job) is None:
                        tx.change(job, Event.QUEUED, Change(state=State.QUEUED))

    def counts(self) -> str:
        """The number of jobs in each state, as text."""
        records = (self._store.records.get(job) for job in self.entries)
        states = Counter(record.state for record in records if record is not None)
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no jobs"
