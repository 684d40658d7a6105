"""Which jobs `dispatcher clean` may look at, and what there is to remove."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from dispatcher.cleaning.attempts import OldAttempts, jobs_with_directories, named_attempts
from dispatcher.cleaning.plan import OnJob, RemovalPlan
from dispatcher.config import Config
from dispatcher.errors import TemplateError
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import Entry
from dispatcher.query.selection import is_glob, select
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state import journal
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import ENDED, IN_FLIGHT, Record
from dispatcher.run_state.store import Store
from dispatcher.templates.command import command_line

if TYPE_CHECKING:
    from dispatcher.cleaning.checkpoints import OldCheckpoints


KINDS: Final = ("attempts", "blobs", "checkpoints")


class Selection(msgspec.Struct, frozen=True):
    """What to look for: of `jobs` (ids, globs; none: all) that `where` selects.

    `keep` is how many attempts stay of each job, by default one, and how many checkpoints, by default as many as the
    job keeps; `periodic`: also those that it keeps for their step. What was used within `older_than_s` stays too.
    """

    jobs: tuple[str, ...]
    where: Where
    keep: int | None
    older_than_s: float
    attempts: bool = True
    blobs: bool = True
    checkpoints: bool = False
    periodic: bool = False


def find(
    config: Config, snapshot: Snapshot, store: Store, selection: Selection, *, by: str, on_job: OnJob = lambda _: None
) -> RemovalPlan:
    """What can be removed. `snapshot` and `store` are of the same moment. Raises UsageError and StateError."""
    of_jobs = selection.attempts or selection.checkpoints
    documents = list(_documents(config, snapshot)) if of_jobs else []
    jobs = _jobs(snapshot, store, selection) if of_jobs else {}
    old = OldAttempts(
        store.layout,
        keep=selection.keep or 1,
        older_than_s=selection.older_than_s,
        named=named_attempts(documents),
    )

    def newest() -> Mapping[str, Record]:
        store.refresh()
        return store.records

    plan = RemovalPlan(store.layout, old, by, newest)
    if selection.attempts:
        plan.add_attempts(jobs, on_job)
    if selection.checkpoints:
        plan.add_checkpoints(jobs, _old_checkpoints(store, selection, old, documents), on_job)
    if selection.blobs:
        plan.add_orphans(store.records.values(), selection.older_than_s)
    return plan


def _old_checkpoints(
    store: Store, selection: Selection, attempts: OldAttempts, documents: Iterable[bytes]
) -> OldCheckpoints:
    # Their checksums need a library of the extra `jax`, which a host without such jobs may lack.
    from dispatcher.cleaning.checkpoints import OldCheckpoints, named_words

    return OldCheckpoints(
        store.layout,
        attempts,
        keep=selection.keep,
        periodic=selection.periodic,
        older_than_s=selection.older_than_s,
        named=named_words(documents),
    )


def _documents(config: Config, snapshot: Snapshot) -> Iterable[bytes]:
    """The entries of all jobs that have not ended, and their command lines: what they name is still wanted.

    An attempt in flight has an entry of its own, whatever the manifest has by now.
    """
    for job, record in snapshot.records.items():
        if record.state in ENDED:
            continue
        ran = snapshot.last_ran(job) if record.state in IN_FLIGHT else None
        for entry in (snapshot.entries.get(job), ran):
            if entry is not None:
                yield msgspec.json.encode(entry.document())
                yield _command(config, entry)


def _command(config: Config, entry: Entry) -> bytes:
    """The command line, whose placeholders may make a name of several values; empty where it cannot be filled."""
    try:
        line = command_line(config.method(entry.method), entry, Path("script.py"))
    except TemplateError:
        return b""
    return "\n".join(line).encode("utf-8", "surrogateescape")


def _jobs(snapshot: Snapshot, store: Store, selection: Selection) -> dict[str, Record | None]:
    """The selected jobs that have ended, and those whose records were deleted (None)."""
    deleted = _deleted(snapshot, store)
    gone = {job for job in deleted if not selection.where and _is_named(job, selection.jobs)}
    # The name of one that was deleted is known to no snapshot.
    names = [name for name in selection.jobs if not any(_is_named(job, (name,)) for job in gone)]
    chosen = select(snapshot, names, where=selection.where) if names or not selection.jobs else []
    found: dict[str, Record | None] = dict.fromkeys(gone)
    for job in chosen:
        # As a person has edited it and as the journal has it: both say that it is over.
        if snapshot.records[job].state in ENDED:
            record = store.records.get(job)
            if record is not None and record.state in ENDED:
                found[job] = record
    return found


def _is_named(job: str, names: tuple[str, ...]) -> bool:
    return not names or any(fnmatch.fnmatchcase(job, name) if is_glob(name) else job == name for name in names)


def _deleted(snapshot: Snapshot, store: Store) -> set[str]:
    """Jobs that have directories and no record, because it was deleted, as the journal says."""
    without = {job for job in jobs_with_directories(store.layout) if job not in snapshot.records}
    without = {job for job in without if job not in store.records and job not in snapshot.entries}
    if not without:
        return set()
    lines = journal.history(store.layout, without)
    return {line.job for line in lines if line.event is Event.DELETED and line.job is not None}
