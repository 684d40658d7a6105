"""Which jobs are older than the jobs that they need: one of these was done again after they had been claimed.

The order of the journal's lines decides (Record.inputs_at, Record.redone), so the clocks of hosts do not matter. Of a
job that was adopted or set by hand it is unknown what it began with: it counts as current.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from dispatcher.query.ran import last_counts
from dispatcher.run_state.states import IN_FLIGHT, Record, State

if TYPE_CHECKING:
    from dispatcher.query.snapshot import Snapshot

# By job: the jobs that it needs and that were done again since, each with the attempt by which that was.
Newer: TypeAlias = Mapping[str, Mapping[str, int]]

RUN_AGAIN: Final = (
    "`dispatcher requeue --changed --downstream` queues these again, those whose parameters have changed, and those "
    "that need them"
)
# What was given up, or waits, is made from what there is when it is queued again.
_COMPARED: Final = IN_FLIGHT | {State.DONE, State.FAILED}


class NewerInputs:
    """Finds them for one snapshot after the other.

    The entries are searched once for those that need a job that was done again, and again when there is another such
    job; without such jobs nothing is searched.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, object] | None = None
        self._found: Newer = {}
        self._redone: frozenset[str] = frozenset()
        # The jobs that need some of these, each with them.
        self._needing: dict[str, list[str]] = {}

    def find(self, snapshot: Snapshot) -> Newer:
        redone = snapshot.by_state.redone()
        if not redone:
            return {}
        seen = snapshot.records, snapshot.entries
        if self._seen is not None and self._seen[0] is seen[0] and self._seen[1] is seen[1]:
            return self._found
        if self._seen is None or self._seen[1] is not seen[1] or not self._redone.issuperset(redone):
            self._redone = frozenset(redone)
            self._needing = {}
            for job, needs in snapshot.needs():
                if not self._redone.isdisjoint(needs):
                    self._needing[job] = [need for need in needs if need in self._redone]
        self._seen = seen
        self._found = _compare(snapshot.records, self._needing)
        return self._found


def find_newer(snapshot: Snapshot) -> Newer:
    """For one snapshot; see NewerInputs."""
    return NewerInputs().find(snapshot)


def _compare(records: Mapping[str, Record], needing: Mapping[str, Sequence[str]]) -> Newer:
    needed = {need for needs in needing.values() for need in needs if need in records}
    made = {need: one for need in needed if (one := records[need]).state is State.DONE and one.redone}
    compared = {job: record for job in needing if (record := records.get(job)) is not None and _is_compared(record)}
    newer = {
        job: {need: made[need].attempt for need in needing[job] if need in made and _is_newer(made[need], record)}
        for job, record in compared.items()
    }
    return {job: needs for job, needs in newer.items() if needs}


def _is_compared(record: Record) -> bool:
    return record.inputs_at is not None and record.state in _COMPARED and last_counts(record)


def _is_newer(need: Record, record: Record) -> bool:
    return (need.redone or 0) > (record.inputs_at or 0)


def newer_text(newer: Mapping[str, int]) -> str:
    """`fft_s0 (attempt 2)`, for people."""
    return ", ".join(f"{need} (attempt {attempt})" for need, attempt in newer.items())
