"""What jobs ran with: the `entry.json` of their attempts, which may differ from the current manifest.

A record has the digest of the entry with which its attempt was claimed. If the manifest's entry has the same digest,
it is what the attempt ran with, and no file is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dispatcher.base.values import identity
from dispatcher.matrix.entry import UNDIGESTED, Entry, read_entry
from dispatcher.query.attempts import parse_object, read_small
from dispatcher.run_state.states import BY_HAND, ENDED, IN_FLIGHT, Record, State
from dispatcher.workspace import Layout

# In these states a job's values are those of its last attempt; in all others those of the next one.
LAST_COUNTS: Final = IN_FLIGHT | ENDED

# How many digests are kept, each with its entry: those of a matrix of the usual size are computed once.
_KEPT: Final = 4_000


class RanWith:
    """The entries of attempts. Each file is read once."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._read: dict[tuple[str, int], Entry | None] = {}
        self._digests: dict[str, tuple[Entry, str]] = {}

    def attempt(self, job: str, number: int) -> Entry | None:
        """The attempt's `entry.json`; None when there is none."""
        key = (job, number)
        if key not in self._read:
            document = parse_object(read_small(self._layout.attempt(job, number).entry))
            entry = read_entry(document, 0)[0] if document is not None else None
            if entry is None:
                # Not remembered: it may be written a moment later.
                return None
            self._read[key] = entry
        return self._read[key]

    def last(self, job: str, record: Record, listed: Entry | None) -> Entry | None:
        """What the job's last attempt ran with; None when it has not run or its attempt has no `entry.json`.

        `listed` is the manifest's entry, None when no manifest has the job.
        """
        if not record.attempt:
            return None
        if listed is not None and record.ran_with == self._digest(job, listed):
            return listed.owned_by(record.user)
        return self.attempt(job, record.attempt)

    def differs(self, job: str, record: Record, listed: Entry | None) -> bool:
        """Whether the manifest's entry differs from what the job's last attempt ran with."""
        if not may_differ(record) or listed is None:
            return False
        return record.ran_with != self._digest(job, listed)

    def _digest(self, job: str, entry: Entry) -> str:
        known = self._digests.get(job)
        if known is None or known[0] is not entry:
            if len(self._digests) >= _KEPT:
                self._digests.clear()
            known = self._digests[job] = (entry, entry.digest())
        return known[1]


def last_counts(record: Record) -> bool:
    """Whether a job's values are those of its last attempt rather than of the next one.

    False for a job that a person has marked as done: what ran is unknown.
    """
    return record.attempt > 0 and record.state in LAST_COUNTS and record.reason != BY_HAND


def may_differ(record: Record) -> bool:
    """Whether it is known what the job's last attempt ran with, and that is to be compared."""
    return record.ran_with is not None and last_counts(record)


def is_unknown(record: Record) -> bool:
    """Whether it is unknown what a job ran with: its record was adopted, or a person has marked it."""
    return record.state in (State.DONE, State.FAILED) and not (record.ran_with and last_counts(record))


def differences(ran: Entry, listed: Entry) -> list[dict[str, Any]]:
    """One row per key whose values differ: `key`, `ran_with`, `manifest` (None: absent)."""
    one, other = _seen(ran), _seen(listed)
    return [
        {"key": key, "ran_with": one.get(key), "manifest": other.get(key)}
        for key in dict.fromkeys([*one, *other])
        if identity(one.get(key)) != identity(other.get(key))
    ]


def _seen(entry: Entry) -> Mapping[str, Any]:
    return {key: value for key, value in entry.document().items() if key not in UNDIGESTED}


def count_text(jobs: Iterable[tuple[str, Record]]) -> str:
    """The number of jobs in each state: `12 done`, `12 done and 1 running`."""
    counts: dict[str, int] = {}
    for _, record in jobs:
        counts[record.state.value] = counts.get(record.state.value, 0) + 1
    words = [f"{count} {state}" for state, count in counts.items()]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""
