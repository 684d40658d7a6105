"""The manifest of a pod, and the submitted jobs beside it. The files may change while the pod runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.file_identity import ExactIdentity, exact_identity_of
from dispatcher.base.messages import first_names
from dispatcher.errors import ManifestError
from dispatcher.matrix import saved_entries
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import job_ids, no_manifest_text, parse_manifest, read_file, unreadable
from dispatcher.matrix.submitted import Listed, SubmittedChanges, SubmittedJobs
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store

# New jobs are queued in batches, so that no other pod waits long for the lock.
_BATCH: Final = 5_000


class CurrentManifest:
    """The entries of the last valid manifest, and those of submitted jobs. On equal ids, those of the manifest count.

    `may_be_missing`: without a manifest there are only submitted jobs. `saves`: what was parsed is kept for others.
    """

    def __init__(
        self,
        path: Path,
        store: Store,
        log: Callable[[str], None],
        *,
        may_be_missing: bool = False,
        saves: bool = True,
    ) -> None:
        self.path = path
        self.entries: Mapping[str, Entry] = {}
        self._matrix: Mapping[str, Entry] = {}
        self._submitted = SubmittedJobs(store.layout.submitted_manifest, store.layout.saved_submitted)
        self._may_be_missing = may_be_missing
        self._saves = saves
        self._is_missing = False
        self._problem = ""
        self._unreadable = ""
        self._submitted_problem = ""
        # Whether jobs had been submitted when this pod began.
        self._are_submitted: bool | None = None
        self._store = store
        self._log = log
        self._identity: ExactIdentity | None = None

    def read(self) -> bool:
        """Load the file if it has changed. Returns whether there are new entries.

        A broken or missing file is reported, and the previous entries are kept. Raises ManifestError the first time,
        when there are no previous entries.
        """
        first = self._identity is None
        try:
            found = self._found()
        except OSError as error:
            if first and isinstance(error, FileNotFoundError) and self._may_be_missing:
                self._is_missing = True
            elif first:
                raise unreadable(self.path, error) from None
            else:
                self._note_unreadable(f"{error.strerror or error}")
            return False
        self._is_missing = False
        self._note_unreadable("")
        # It also changes with the owner.
        identity = exact_identity_of(found)
        if identity == self._identity:
            return False
        try:
            data, owner = read_file(self.path)
            entries = parse_manifest(data, str(self.path), self._store.records.keys(), owner)
            self._matrix = entries
            self._list()
            self._problem = ""
            layout = self._store.layout
            if self._saves:
                saved_entries.save(layout.saved_entries, layout.root, data, found, entries)
        except ManifestError as error:
            if first:
                raise
            self._problem = f"{self.path.name} is broken, so the previous manifest is kept: {error}"
            self._log(f"warning: {self._problem}")
            return False
        finally:
            self._identity = identity
        return True

    def _found(self) -> os.stat_result:
        try:
            return os.stat(self.path)
        except FileNotFoundError:
            # On a network filesystem a file that was just replaced may seem to be missing.
            files.refresh_names(self.path.parent)
            return os.stat(self.path)

    def _note_unreadable(self, why: str) -> None:
        text = f"{self.path} cannot be read, so the previous manifest is kept: {why}" if why else ""
        if text and text != self._unreadable:
            self._log(f"warning: {text}")
        self._unreadable = text

    def read_submitted(self, *, thoroughly: bool = False) -> SubmittedChanges:
        """Take in jobs that were submitted; see SubmittedJobs."""
        submitted = self._submitted
        news = submitted.read(thoroughly=thoroughly)
        if news.added or news.is_rewritten:
            self._list()
            self._warn_of_both(news.added)
            if self._saves:
                submitted.save(self._store.layout.root)
        if self._are_submitted is None:
            self._are_submitted = bool(self._store.records.by_state().ad_hoc())
        # Where nothing was submitted there is no file.
        problem = submitted.problem if self._are_submitted or submitted.entries else ""
        if problem and problem != self._submitted_problem:
            self._log(f"warning: {problem}")
        self._submitted_problem = problem
        return news

    def requeues(self, job: str) -> bool:
        """Whether a job that has lost its record is queued anew: those of the manifest are."""
        return job in self._matrix

    def is_submitted(self, job: str) -> bool:
        """Whether the job's entry is that of a submission."""
        return job in self._submitted.entries and job not in self._matrix and self._is_ad_hoc(job)

    @property
    def problem(self) -> str:
        """What is wrong with the files now; empty when nothing is."""
        return "; ".join(filter(None, (self._unreadable or self._problem, self._submitted_problem)))

    @property
    def name(self) -> str:
        """What the entries are of, for people."""
        if self._is_missing:
            return "submitted jobs"
        return f"{self.path.name} and submitted jobs" if self._submitted.entries else self.path.name

    def warnings(self) -> list[str]:
        """What a pod says that begins."""
        if not self._is_missing:
            return []
        records, lost = self._store.records, list[str]()
        if len(records.by_state().ad_hoc()) < len(records):
            listed = frozenset[str]().union(*map(_ids_of, self._store.layout.manifests()))
            queued = records.by_state().jobs([State.QUEUED])
            lost = [job for job in queued if not records.is_ad_hoc(job) and job not in listed]
        return [f"{'warning' if lost else 'note'}: {no_manifest_text(self.path, lost)}"]

    def _list(self) -> None:
        self.entries = Listed(self._matrix, self._submitted.entries, self._is_ad_hoc)

    def _is_ad_hoc(self, job: str) -> bool:
        return self._store.records.is_ad_hoc(job)

    def _warn_of_both(self, jobs: Iterable[str]) -> None:
        both = [job for job in jobs if job in self._matrix and self._is_ad_hoc(job)]
        if both:
            self._log(f"warning: {first_names(both)}: submitted, and in {self.path.name}, whose entry counts")

    def queue_new(self) -> None:
        """Queue the jobs of the manifest that have no record. Submitted jobs without one were deleted."""
        new = [job for job in self._matrix if job not in self._store.records]
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


def _ids_of(path: Path) -> frozenset[str]:
    """The jobs of a manifest; none where it cannot be read."""
    try:
        return job_ids(files.read_plain(path))
    except OSError:
        return frozenset()
