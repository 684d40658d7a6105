"""Selecting jobs by id, glob, state and value."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence

from dispatcher.base.values import text_of
from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import Where
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.values import JobValues
from dispatcher.run_state.states import State, parse_state

EVERYTHING = Where()
_MAGIC = frozenset("*?[")


def is_glob(name: str) -> bool:
    return not _MAGIC.isdisjoint(name)


def cell_text(value: object) -> str:
    """A value as tables show it: None as empty, text as it is, everything else as JSON."""
    return "" if value is None else text_of(value)


def parse_states(words: Iterable[str]) -> frozenset[State]:
    """The states named by `words`, which may be comma-separated lists. Raises UsageError for an unknown word."""
    try:
        return frozenset(parse_state(part.strip()) for word in words for part in word.split(","))
    except ValueError as error:
        raise UsageError(str(error)) from None


def select(
    snapshot: Snapshot, names: Sequence[str] = (), states: Collection[State] = (), where: Where = EVERYTHING
) -> list[str]:
    """The jobs that match all filters, in the snapshot's order. No names selects all jobs.

    Raises UsageError for a name or a key of `where` that no job has, and for an unknown user.
    """
    places = JobValues(snapshot).places(states, where)
    jobs = list(snapshot.records)
    chosen = _named(snapshot, names) if names else snapshot.records
    return [job for job in map(jobs.__getitem__, places) if job in chosen]


def check_keys(snapshot: Snapshot, keys: Iterable[str], others: Sequence[str] = ()) -> None:
    """Raise UsageError for a key that no job has: a typo must not look like an empty result.

    The message names `others` too: keys that the caller knows itself.
    """
    values = JobValues(snapshot)
    for key in keys:
        values.column(key, others)


def owners(snapshot: Snapshot) -> set[str]:
    """The users who have jobs."""
    found = set(map(snapshot.owner, snapshot.records))
    return {user for user in found if user is not None}


def _named(snapshot: Snapshot, names: Sequence[str]) -> set[str]:
    chosen: set[str] = set()
    for name in names:
        if name in snapshot.records:
            chosen.add(name)
            continue
        found = fnmatch.filter(snapshot.records, name) if is_glob(name) else []
        if not found:
            raise UsageError(f"unknown job {name!r}{_similar(snapshot, name)}")
        chosen.update(found)
    return chosen


def _similar(snapshot: Snapshot, name: str) -> str:
    """The nearest id among 500 with the same beginning: comparing with 100,000 ids takes minutes."""
    if is_glob(name):
        return ": no job matches"
    near = [job for job in snapshot.records if job[:3] == name[:3]][:500]
    return nearest(name, near)
