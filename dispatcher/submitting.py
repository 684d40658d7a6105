"""New jobs in a workspace: `Workspace.submit`, `dispatcher submit -- COMMAND` and `dispatcher job submit`.

The entries and the records come in one transaction, so a job that was reported is there, and one that was not is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher.base.messages import problems
from dispatcher.base.users import owner_by
from dispatcher.config import Config
from dispatcher.errors import CodeError, StateError, StorageError, TemplateError, UsageError, nearest
from dispatcher.matrix.entry import OWNER, Entry
from dispatcher.matrix.manifest import read_entries
from dispatcher.matrix.new_jobs import NewJobs, as_written
from dispatcher.matrix.submitted import append_entries
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store, Transaction

if TYPE_CHECKING:
    from dispatcher.api import Workspace


class IdsTakenError(Exception):
    """Others have submitted jobs of these ids at the same moment."""


class Submission:
    """New jobs of one workspace: checked first, then added. `entries` are they as far as they are known before.

    `warning`: what went wrong after they were added; empty when nothing did. `code` is the copy of the code that they
    run, empty for none.
    """

    def __init__(self, workspace: Workspace, new: NewJobs, manifests: ManifestJobs | None = None) -> None:
        """`manifests`, of a process that submits several times: what it has read of them."""
        self._workspace = workspace
        self._new = new
        store = workspace.store
        store.refresh(to_the_end=True)
        self._listed = (manifests or ManifestJobs(workspace.config)).ids()
        self._owner = {OWNER: owner_by(store.by)}
        self._more: Sequence[Mapping[str, Any]] = [{}] * len(new.rows)
        self.warning = ""
        self.code = ""
        self.documents = self._choose()
        self.entries = self._checked(self.documents)

    def complete(self, more: Callable[[str], Mapping[str, Any]]) -> None:
        """Add to each entry the keys that `more` gives for its id."""
        self._more = [more(one["job_id"]) for one in self.documents]
        self.documents = self._completed(self.documents)

    def add(self) -> list[str]:
        """Add the jobs to the queue; their ids, in the order of `documents`, which names free before may have changed.

        Raises StateError when an id that was given is taken, CodeError when there can be no copy of the code for jobs
        with `snapshot`, and StorageError; then nothing was added.
        """
        store = self._workspace.store
        self.keep_code()
        is_complete = False
        try:
            with self._workspace.transaction() as tx:
                if self._are_taken(tx):
                    self.documents = self._completed(self._choose())
                self.append(store, tx)
                is_complete = True
        except StorageError as error:
            # A caller that is told that a submission failed repeats it, so it must not have happened.
            if not is_complete or any(one["job_id"] not in store.records for one in self.documents):
                raise
            self.warning = str(error)
        return self.ids

    @property
    def ids(self) -> list[str]:
        """The jobs, in the order of `documents`."""
        return [one["job_id"] for one in self.documents]

    def append(self, store: Store, tx: Transaction) -> None:
        """As `add`, in a transaction of any store. Raises IdsTakenError where others have got these ids meanwhile."""
        if self._are_taken(tx):
            raise IdsTakenError
        append_entries(
            store.layout.submitted_manifest, self.documents,
            counts=store.records.is_ad_hoc, guard=store.guard, when_over=tx.when_over,
        )  # fmt: skip
        for one in self.documents:
            copy = Change(snapshot=self.code) if self._wants_copy(one) else Change()
            tx.change(one["job_id"], Event.QUEUED, Change(state=State.QUEUED, ad_hoc=True) | copy)

    def keep_code(self, *, is_extracted: bool = False) -> None:
        """Keep the code as it is now, if jobs run a copy of it; before the lock is taken. Raises CodeError.

        `is_extracted`: the copy is ready for attempts.
        """
        if self.code or not any(map(self._wants_copy, self.documents)):
            return
        from dispatcher.outlets.code import copies

        try:
            snapshot = copies.take(self._workspace.layout)
            if is_extracted:
                copies.extract(self._workspace.layout, snapshot)
        except CodeError as error:
            raise CodeError(f"nothing was submitted, as there is no copy of the code (snapshot): {error}") from None
        except StorageError as error:
            raise StorageError(f"nothing was submitted: {error}, then submit again") from None
        self.code = snapshot.label

    def choose_again(self) -> None:
        """Outside of a transaction: choose other ids. Raises StateError when an id that was given is taken."""
        self._workspace.store.refresh(to_the_end=True)
        self.documents = self._completed(self._choose())

    def was_added(self) -> bool:
        """Whether the jobs are there, although the transaction that added them has failed."""
        self._workspace.store.refresh(to_the_end=True)
        return all(map(self._workspace.store.records.is_ad_hoc, self.ids))

    def _are_taken(self, tx: Transaction) -> bool:
        return any(tx.record(job) is not None for job in self.ids)

    def _wants_copy(self, document: Mapping[str, Any]) -> bool:
        return self._workspace.config.wants_copy(document["method"], document.get("snapshot"))

    def _is_known(self, job: str) -> bool:
        return job in self._listed or job in self._workspace.store.records

    def _completed(self, documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**one, **more} for one, more in zip(documents, self._more, strict=True)]

    def _choose(self) -> list[dict[str, Any]]:
        documents = [_owned(one, self._owner) for one in self._new.documents(self._is_known)]
        taken = [one["job_id"] for one in documents if self._is_known(one["job_id"])]
        if taken:
            record = self._workspace.store.records.get(taken[0])
            state = f" ({record.state})" if record is not None else ""
            more = f", and {len(taken) - 1} more" if len(taken) > 1 else ""
            again = f"; `dispatcher requeue {taken[0]}` runs it again" if record is not None else ""
            raise StateError(f"there is a job {taken[0]} already{state}{more}: choose another name{again}")
        return documents

    def _checked(self, documents: Iterable[Mapping[str, Any]]) -> dict[str, Entry]:
        known = self._listed | self._workspace.store.records.keys()
        ids = {one["job_id"] for one in documents}
        needs = self._new.common.get("needs", ())
        for need in needs if isinstance(needs, (list, tuple)) else ():
            if need not in known and need not in ids:
                raise UsageError(f"needs {need}: there is no such job{nearest(str(need), sorted(known)[:5000])}")
        # What is read is what pods will read, and not what was given.
        entries, faults = read_entries([as_written(one, one["job_id"]) for one in documents], known)
        if not faults:
            faults = _value_faults(self._workspace.config, entries.values())
        if faults:
            raise UsageError(problems("nothing was submitted", dict.fromkeys(faults), most=10))
        return entries


def _owned(document: dict[str, Any], owner: Mapping[str, str]) -> dict[str, Any]:
    return {**document, **owner} if document.get(OWNER) is None else document


def _value_faults(config: Config, entries: Iterable[Entry]) -> list[str]:
    """Why attempts could not be started: a placeholder without a parameter, a value that no argument can have."""
    # Imported here: an id that is taken is found without them.
    from dispatcher.templates.command import command_line
    from dispatcher.templates.readiness import Readiness

    ready = Readiness(config, on_pod=False)
    faults = []
    for entry in entries:
        fault = ready.fault(entry)
        if not fault:
            try:
                command_line(config.method(entry.method), entry, Path("script.py"))
            except TemplateError as error:
                fault = str(error).removeprefix(f"{entry.job_id}: ")
        if fault:
            faults.append(f"{entry.job_id}: {fault}")
    return faults
