"""The values of all jobs by key: what filters, sorting, groups and the matrix go by.

To ask each of 100,000 jobs for a value takes seconds. So the values of a key are read once, as numbers that stand for
the values that occur, and a filter asks each value that occurs instead of each job. A job that ran with other
parameters than the manifest has counts with those that it ran with, as everywhere.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import operator
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dispatcher.base.messages import first_names
from dispatcher.base.users import has_account, user_name
from dispatcher.base.values import group_label, identity, split_names, text_of
from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import Condition, Where
from dispatcher.matrix.entry import OWNER, RESERVED, SCHEDULING
from dispatcher.query.ran import LAST_COUNTS
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.states import FIELD_NAMES, State

_BY_ENTRY: Final = "method"
# So many columns of other keys are kept, those that were asked for last.
_KEPT: Final = 12
# Of a text without a key, values are looked for among keys with fewer than that.
_LISTED: Final = 2_000
_MOST_KEYS: Final = 5
# So much of a value is searched.
_LONGEST: Final = 300


class Value(NamedTuple):
    """A value of a key, and how many jobs have it."""

    key: str
    value: Any
    jobs: int


class Values:
    """The values of one key. `codes` has a number for each row, `values` the value of each number; 0 is None."""

    def __init__(self, of: Iterable[Any] = ()) -> None:
        self.values: list[Any] = [None]
        self._numbers: dict[Hashable, int] = {}
        self.codes = [self.number(value) for value in of]

    def number(self, value: Any) -> int:
        """The number of a value, which may be new."""
        if value is None:
            return 0
        key = identity(value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number

    def __iter__(self) -> Iterator[Any]:
        """The value of each row."""
        return map(self.values.__getitem__, self.codes)

    @property
    def labels(self) -> list[Any]:
        """The values as a browser can tell them apart: numbers where all are, else text; None stays."""
        if all(value is None or (type(value) in (int, float) and math.isfinite(value)) for value in self.values):
            return self.values
        label = group_label(self.values)
        return [None if value is None else label(value)[:_LONGEST] for value in self.values]

    def flags(self, condition: Condition) -> Iterator[bool]:
        """For each row whether the condition holds."""
        held = [condition.holds(value) for value in self.values]
        return map(held.__getitem__, self.codes)

    def ranks(self) -> list[int]:
        """For each number its place in the order of the values: numbers, then text, then no value."""
        order = sorted(range(len(self.values)), key=lambda number: sort_key(self.values[number]))
        ranks = [0] * len(order)
        for place, number in enumerate(order):
            ranks[number] = place
        return ranks


class JobValues:
    """The values of the jobs of a snapshot; `follow` brings them to the next one."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.jobs: list[str] = []
        self._places: dict[str, int] = {}
        self._snapshot: Snapshot | None = None
        # The values of parameters, from when all of them are asked for.
        self._of_entries: dict[str, Values] | None = None
        self._others: dict[str, Values] = {}
        # Jobs whose values are not those of the manifest's entry.
        self._apart: frozenset[str] | None = None
        if snapshot is not None:
            self.follow(snapshot, None)

    def follow(self, snapshot: Snapshot, changed: Iterable[str] | None) -> None:
        """Show this snapshot; `changed` are the jobs that have other records than in the last one, None: maybe all."""
        before, self._snapshot = self._snapshot, snapshot
        jobs = self.jobs if changed is not None else list(snapshot.records)
        if before is None or before.entries is not snapshot.entries or jobs != self.jobs:
            self.jobs = list(snapshot.records)
            self._places = {}
            self._of_entries = changed = None
        for key in [key for key in self._others if changed is None or key not in FIELD_NAMES]:
            del self._others[key]
        changed = frozenset(() if changed is None else changed)
        for key, column in self._others.items():
            for job in changed:
                column.codes[self.place(job)] = column.number(snapshot.value(job, key))
        known, self._apart = self._apart or frozenset(), None
        if self._of_entries is not None:
            apart = self._jobs_apart(snapshot)
            for job in (known ^ apart) | (apart & changed) if changed else known | apart:
                self._ask_again(snapshot, self._of_entries, job)

    def _jobs_apart(self, snapshot: Snapshot) -> frozenset[str]:
        if self._apart is None:
            self._apart = _apart(snapshot)
        return self._apart

    def _ask_again(self, snapshot: Snapshot, columns: dict[str, Values], job: str) -> None:
        if job not in snapshot.records:
            return
        place, entry = self.place(job), snapshot.entry(job)
        for key in entry.params if entry is not None else ():
            if key not in columns:
                column = columns[key] = Values()
                column.codes = [0] * len(self.jobs)
        for key, column in columns.items():
            column.codes[place] = column.number(None if entry is None else entry.value(key))

    @property
    def keys(self) -> Mapping[str, Values]:
        """The parameters of the entries, and the method."""
        snapshot = self._snapshot
        if self._of_entries is None and snapshot is not None:
            self._of_entries = _columns_of(snapshot.entries, self.jobs)
            for job in self._jobs_apart(snapshot):
                self._ask_again(snapshot, self._of_entries, job)
        return self._of_entries or {}

    def named(self, lists: Sequence[str]) -> tuple[str, ...]:
        """The keys in lists with commas. Raises UsageError for too many."""
        found = split_names(lists, self.keys)
        if len(found) > _MOST_KEYS:
            raise UsageError(f"{len(found)} keys, at most {_MOST_KEYS}: {first_names(found)}")
        return found

    def column(self, key: str, others: Iterable[str] = ()) -> Values:
        """The values of a key. Raises UsageError for one that no job has; `others` are keys that it might be, too."""
        snapshot = self._snapshot
        assert snapshot is not None
        of_entries = self._of_entries or {}
        found = of_entries.get(key) if key not in FIELD_NAMES and key not in SCHEDULING else None
        if found is None:
            found = self._others.get(key)
        if found is not None:
            return found
        found = Values(self._values(snapshot, key))
        if len(found.values) == 1 and self.jobs and key not in FIELD_NAMES:
            known = dict.fromkeys((*others, *self.keys, "job_id", *FIELD_NAMES))
            raise UsageError(f"no job has a value for {key!r}{nearest(key, known)}")
        if len(self._others) >= _KEPT:
            del self._others[next(iter(self._others))]
        self._others[key] = found
        return found

    def _values(self, snapshot: Snapshot, key: str) -> Iterable[Any]:
        """What `snapshot.value` gives for each job; for most jobs without asking it."""
        records, entries = snapshot.records, snapshot.entries
        if key == "job_id":
            return self.jobs
        if key == "time_limit":
            return (snapshot.value(job, key) for job in self.jobs)
        if key in ("priority", OWNER):
            return map(snapshot.priority if key == "priority" else snapshot.owner, self.jobs)
        if key in FIELD_NAMES and key not in RESERVED and not self._is_parameter(snapshot, key):
            return map(operator.attrgetter(key), records.values())
        apart = frozenset[str]() if key in SCHEDULING else self._jobs_apart(snapshot)

        def value_of(job: str) -> Any:
            entry = entries.get(job)
            if entry is None or job in apart:
                return snapshot.value(job, key)
            value = entry.value(key)
            if value is not None or (key in RESERVED and key not in FIELD_NAMES):
                return value
            return snapshot.value(job, key) if key in FIELD_NAMES else records[job].extra.get(key)

        return map(value_of, self.jobs)

    def _is_parameter(self, snapshot: Snapshot, key: str) -> bool:
        """Whether an entry has a parameter of this name."""
        if self._of_entries is not None:
            return key in self._of_entries
        entries = itertools.chain(snapshot.entries.values(), map(snapshot.entry, self._jobs_apart(snapshot)))
        return any(entry is not None and key in entry.params for entry in entries)

    def place(self, job: str) -> int:
        """The number of the job's row."""
        if not self._places:
            self._places = {job: place for place, job in enumerate(self.jobs)}
        return self._places[job]

    def places_of(self, jobs: Iterable[str]) -> list[int]:
        """The places of these jobs, each once."""
        return list(map(self.place, dict.fromkeys(jobs)))

    def sample(self, places: Sequence[int], number: int) -> Sequence[int]:
        """So many of these places, in their order; by a hash of the ids of jobs, because neighbours are alike."""
        if number >= len(places):
            return places
        return sorted(heapq.nsmallest(number, places, key=lambda place: zlib.crc32(self.jobs[place].encode())))

    def check(self, condition: Condition) -> None:
        """Raise UsageError for a key that no job has, and for an unknown user."""
        self.column(condition.key)
        check_users(Where((condition,)), lambda: set(self.column(OWNER).values) - {None})

    def places(self, states: Iterable[State] = (), where: Where | None = None) -> Sequence[int]:
        """The places of these jobs. Raises UsageError as `check` does."""
        snapshot = self._snapshot
        assert snapshot is not None
        flags: list[Iterable[object]] = []
        if states := frozenset(states):
            flags.append(snapshot.by_state.flags(states))
        for condition in where.conditions if where is not None else ():
            self.check(condition)
            flags.append(self.column(condition.key).flags(condition))
        everything = range(len(self.jobs))
        return list(itertools.compress(everything, map(all, zip(*flags, strict=True)))) if flags else everything

    def matching(self, key: str | None, text: str) -> list[Value]:
        """The values that contain the text, of one key or of all that entries have, the most frequent first."""
        wanted = text.casefold()
        columns = {key: self.column(key)} if key else {k: c for k, c in self.keys.items() if len(c.values) < _LISTED}
        found: list[Value] = []
        for name, column in columns.items():
            fitting = [n for n, one in enumerate(column.values) if one is not None and wanted in _text(one)]
            if fitting:
                counts = Counter(column.codes)
                found += [Value(name, column.values[n], counts[n]) for n in fitting if counts[n]]
        if key and not wanted:
            # Those to choose from, in their order.
            return sorted(found, key=lambda one: sort_key(one.value))
        return sorted(found, key=lambda one: (not _text(one.value).startswith(wanted), -one.jobs))


def _text(value: Any) -> str:
    return text_of(value)[:_LONGEST].casefold()


def sort_key(value: Any) -> tuple[int, float, str]:
    """Numbers in their order, also where they are text, then other text, then nothing."""
    if value is None:
        return 2, 0.0, ""
    number: float = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    else:
        with contextlib.suppress(ValueError):
            number = float(text_of(value))
    # A NaN has no place among numbers; some integers are no floats.
    is_nan = isinstance(number, float) and math.isnan(number)
    return (1, 0.0, text_of(value)) if is_nan else (0, number, "")


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


def _columns_of(entries: Mapping[str, Any], jobs: Sequence[str]) -> dict[str, Values]:
    """The columns of the parameters of all entries, and of the method."""
    columns: dict[str, Values] = {_BY_ENTRY: Values()}
    for place, job in enumerate(jobs):
        entry = entries.get(job)
        if entry is None:
            continue
        for key, value in itertools.chain(((_BY_ENTRY, entry.method),), entry.params.items()):
            column = columns.get(key)
            if column is None:
                column = columns[key] = Values()
            codes = column.codes
            if len(codes) < place:
                codes.extend(itertools.repeat(0, place - len(codes)))
            codes.append(column.number(value))
    for column in columns.values():
        column.codes.extend(itertools.repeat(0, len(jobs) - len(column.codes)))
    return columns


def _apart(snapshot: Snapshot) -> frozenset[str]:
    """The jobs that ran with other values than the manifest has, or of which a file must tell."""
    known, _ = snapshot.by_state.ran_with(LAST_COUNTS)
    ended = snapshot.jobs_in(*LAST_COUNTS)
    apart = set(snapshot.changed)
    if len(known) != len(ended):
        unknown = set(ended).difference(known)
        apart |= {job for job in unknown if snapshot.records[job].attempt}
    return frozenset(apart)
