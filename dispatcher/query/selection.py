"""Selecting jobs by id, glob, state and value."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence

from dispatcher.base.users import has_account, user_name
from dispatcher.base.values import text_of
from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import Where
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.states import State, parse_state

EVERYTHING = Where()
_MAGIC = frozenset("*?[")


def is_glob(name: str) -> bool:
    return not _MAGIC.isdisjoint(name)


def cell_text(value: object) -> str:
    """A value as tables show it: None as empty, text as it is, everything else as JSON."""
    return "" if value is None else text_of(value)


def matches(snapshot: Snapshot, job: str, where: Where) -> bool:
    """Whether every condition holds for the job's values."""
    return where.holds(lambda key: snapshot.value(job, key))


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

    Raises UsageError for a name or a key of `where` that no job has, and for a user of whom nobody knows.
    """
    check_keys(snapshot, [condition.key for condition in where.conditions])
    check_users(where, lambda: owners(snapshot))
    chosen: Iterable[str] = snapshot.records if not names else _named(snapshot, names)
    return [
        job for job in chosen if (not states or snapshot.records[job].state in states) and matches(snapshot, job, where)
    ]


def check_keys(snapshot: Snapshot, keys: Iterable[str], others: Sequence[str] = ()) -> None:
    """Raise UsageError for a key that no job has: a typo must not look like an empty result.

    The message names `others` too: keys that the caller knows itself.
    """
    for key in keys:
        if (
            snapshot.records
            and all(snapshot.value(job, key) is None for job in snapshot.records)
            and not _is_field(key)
        ):
            raise UsageError(
                f"no job has a value for {key!r}{nearest(key, dict.fromkeys([*others, *_known_keys(snapshot)]))}"
            )


def owners(snapshot: Snapshot) -> set[str]:
    """The users who have jobs."""
    found = set(map(snapshot.owner, snapshot.records))
    return {user for user in found if user is not None}


def check_users(where: Where, known: Callable[[], Collection[str]]) -> None:
    """Raise UsageError for the name of a user that is neither among `known`, who have jobs, nor that of an account.

    Who has no jobs yet asks for them without an error, as with squeue.
    """
    asked = [name for name in where.users() if name != user_name()]
    missing = sorted(set(asked).difference(known())) if asked else []
    for name in missing:
        if not has_account(name):
            near = nearest(name, sorted(known()))
            raise UsageError(f"no job is of user {name!r}, and this host knows no such user{near}")


def _is_field(key: str) -> bool:
    from dispatcher.run_state.states import FIELD_NAMES

    return key in FIELD_NAMES


def _known_keys(snapshot: Snapshot) -> list[str]:
    keys = dict.fromkeys(("method", "state", "pod", "reason"))
    for entry in itertools.islice(snapshot.entries.values(), 100):
        keys.update(dict.fromkeys(entry.params))
    return list(keys)


def _named(snapshot: Snapshot, names: Sequence[str]) -> list[str]:
    chosen: set[str] = set()
    for name in names:
        if name in snapshot.records:
            chosen.add(name)
            continue
        found = fnmatch.filter(snapshot.records, name) if is_glob(name) else []
        if not found:
            raise UsageError(f"unknown job {name!r}{_similar(snapshot, name)}")
        chosen.update(found)
    return [job for job in snapshot.records if job in chosen]


def _similar(snapshot: Snapshot, name: str) -> str:
    """The nearest id among 500 with the same beginning: comparing with 100,000 ids takes minutes."""
    if is_glob(name):
        return ": no job matches"
    near = [job for job in snapshot.records if job[:3] == name[:3]][:500]
    return nearest(name, near)
