"""Failed jobs by the cause of their failure."""

from __future__ import annotations

from typing import Final

import msgspec

from dispatcher.outlets.base import CANNOT_START
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.failures import signature
from dispatcher.run_state.states import Record, State


class Failure(msgspec.Struct, frozen=True):
    """A cause, and the jobs that failed because of it, the last one first.

    `reason` and `error` are those of the last one. The errors of the others differ at most in ids, numbers and paths;
    those of jobs that could not be started, in ids and paths.
    """

    reason: str | None
    error: str | None
    jobs: tuple[str, ...]
    last_at: str | None

    @property
    def text(self) -> str:
        """The cause in one line."""
        return ": ".join(filter(None, (self.reason, self.error))) or "unknown"


# What is kept of them from one call to the next.
_MOST_SIGNATURES: Final = 100_000


def failures(snapshot: Snapshot, known: dict[tuple[str | None, str | None], str] | None = None) -> list[Failure]:
    """The failed jobs of a snapshot by cause, the most frequent first.

    `known` keeps the signatures of errors for the next call.
    """
    records = {job: snapshot.records[job] for job in snapshot.jobs_in(State.FAILED)}
    alike: dict[str, list[str]] = {}
    # Most errors are the same word for word, and a signature costs several regular expressions.
    known = {} if known is None else known
    if len(known) > _MOST_SIGNATURES:
        known.clear()
    for job, record in records.items():
        words = (record.reason, record.error)
        key = known.get(words)
        if key is None:
            # What a scheduler refuses are names, of partitions and nodes, which differ in numbers alone.
            keeps_numbers = record.reason == CANNOT_START
            key = known[words] = signature(record.error, record.reason, job, keeps_numbers=keeps_numbers)
        alike.setdefault(key, []).append(job)
    found = [_failure(jobs, records) for jobs in alike.values()]
    return sorted(found, key=lambda failure: -len(failure.jobs))


def _failure(jobs: list[str], records: dict[str, Record]) -> Failure:
    # Revisions increase with time.
    jobs.sort(key=lambda job: -records[job].rev)
    last = records[jobs[0]]
    return Failure(last.reason, last.error, tuple(jobs), last.finished_at)
