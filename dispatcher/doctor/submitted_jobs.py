"""What is wrong with `matrix/submitted.jsonl`: for `dispatcher doctor` and `dispatcher matrix check`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.config import Config
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.submitted import SubmittedJobs
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import WAITING
from dispatcher.run_state.store import Store


class Examined(msgspec.Struct, frozen=True):
    """`entries` are those whose lines count. `faults` keep jobs from running, `notes` do not."""

    entries: tuple[Entry, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...]


def examine(config: Config) -> Examined | None:
    """All faults of the file, and of its entries whose jobs wait; None where nothing was submitted without a manifest.

    Raises StorageError where the journal cannot be read.
    """
    layout = config.layout
    store = Store(layout, by="check", lock=config.lock)
    store.refresh(to_the_end=True)
    records = store.records
    if not layout.submitted_manifest.exists() and not records.by_state().ad_hoc():
        return None
    submitted = SubmittedJobs(layout.submitted_manifest)
    submitted.read(thoroughly=True)
    listed = ManifestJobs(config).ids()
    faults = [*submitted.faults, *_without_line(submitted, records), *_entry_faults(config, submitted, records, listed)]
    return Examined(
        entries=tuple(entry for job, entry in submitted.entries.items() if records.is_ad_hoc(job)),
        faults=tuple(faults),
        notes=tuple(_notes(submitted, records, listed)),
    )


def _without_line(submitted: SubmittedJobs, records: Records) -> Iterator[str]:
    missing = [job for job in records.by_state().ad_hoc() if job not in submitted.entries]
    waiting = [job for job in missing if records[job].state in WAITING]
    if waiting:
        yield f"{first_names(waiting)}: no line, so what to run is unknown: restore it, or `dispatcher delete` the job"


def _entry_faults(config: Config, submitted: SubmittedJobs, records: Records, listed: frozenset[str]) -> Iterator[str]:
    # Imported here: a file that cannot be read is reported without them.
    from dispatcher.templates.readiness import Readiness

    ready = Readiness(config, on_pod=False)
    for job in records.by_state().jobs(WAITING):
        if job not in submitted.entries or not records.is_ad_hoc(job):
            continue
        entry = submitted.entries[job]
        fault = ready.fault(entry)
        if fault:
            yield f"{job}: {fault}"
        for need in entry.needs:
            if need not in records and need not in listed:
                yield f"{job}: needs {need}: there is no such job"


def _notes(submitted: SubmittedJobs, records: Records, listed: frozenset[str]) -> Iterator[str]:
    left = [job for job in submitted.entries if not records.is_ad_hoc(job)]
    if left:
        yield (
            f"{counted(len(left), 'line')} of no job ({first_names(left)}): deleted, or never queued as the submission "
            "was killed; they do not count"
        )
    twins = [job for job in submitted.entries if job in listed and records.is_ad_hoc(job)]
    if twins:
        yield f"{first_names(twins)}: also in a manifest, whose entry counts for pods that read that"
    ended = [job for job in records.by_state().ad_hoc() if job not in submitted.entries]
    ended = [job for job in ended if records[job].state not in WAITING]
    if ended:
        yield f"{first_names(ended)}: no line, so they cannot be run again"
