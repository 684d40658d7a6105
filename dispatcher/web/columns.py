"""The values of all jobs by key: what filters, sorting and the matrix go by.

To ask each of 100,000 jobs for a value takes seconds. So the values of the entries are read once, as numbers that stand
for the values that occur, and a filter asks each value that occurs instead of each job. A job that ran with other
parameters than the manifest has counts with those that it ran with, as everywhere.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dispatcher.base.messages import first_names
from dispatcher.base.values import group_label, identity, split_names, text_of
from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import Condition, Where
from dispatcher.matrix.entry import OWNER, RESERVED, SCHEDULING
from dispatcher.query.ran import LAST_COUNTS
from dispatcher.query.selection import check_users
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


class FilterError(UsageError):
    """A filter that makes no sense: its parameter in the request, and its number among those of that name."""

    def __init__(self, text: str, name: str, number: int) -> None:
        super().__init__(text.removeprefix("--where "))
        self.name = name
        self.number = number


class Value(NamedTuple):
    """A value of a key, and how many jobs have it."""

    key: str
    value: Any
    jobs: int


class Column:
    """The values of one key. `codes` has a number for each job, `values` the value of each number; 0 is None."""

    def __init__(self) -> None:
        self.values: list[Any] = [None]
        self.codes: list[int] = []
        self._numbers: dict[Hashable, int] = {}

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

    @property
    def labels(self) -> list[Any]:
        """The values as a browser can tell them apart: numbers where all are, else text; None stays."""
        if all(value is None or (type(value) in (int, float) and math.isfinite(value)) for value in self.values):
            return self.values
        label = group_label(self.values)
        return [None if value is None else label(value)[:_LONGEST] for value in self.values]

    def flags(self, condition: Condition) -> Iterator[bool]:
        """For each job whether the condition holds."""
        held = [condition.holds(value) for value in self.values]
        return map(held.__getitem__, self.codes)

    def ranks(self) -> list[int]:
        """For each number its place in the order of the values: numbers, then text, then no value."""
        order = sorted(range(len(self.values)), key=lambda number: sort_key(self.values[number]))
        ranks = [0] * len(order)
        for place, number in enumerate(order):
            ranks[number] = place
        return ranks


class Columns:
    """The columns of a workspace, kept from one snapshot to the next."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self._places: dict[str, int] = {}
        self._snapshot: Snapshot | None = None
        self._of_entries: dict[str, Column] = {}
        self._others: dict[str, Column] = {}
        # Jobs whose values are not those of the manifest's entry.
        self._apart: frozenset[str] = frozenset()

    def follow(self, snapshot: Snapshot, changed: Iterable[str] | None) -> None:
        """Show this snapshot; `changed` are the jobs that have other records than in the last one, None: maybe all."""
        before, self._snapshot = self._snapshot, snapshot
        apart = _apart(snapshot)
        jobs = self.jobs if changed is not None else list(snapshot.records)
        if before is None or before.entries is not snapshot.entries or jobs != self.jobs:
            self.jobs = list(snapshot.records)
            self._places = {job: place for place, job in enumerate(self.jobs)}
            self._of_entries = _columns_of(snapshot.entries, self.jobs)
            self._apart, changed = frozenset(), None
        for key in [key for key in self._others if changed is None or key not in FIELD_NAMES]:
            del self._others[key]
        changed = frozenset(() if changed is None else changed)
        for key, column in self._others.items():
            for job in changed:
                column.codes[self._places[job]] = column.number(snapshot.value(job, key))
        for job in (self._apart ^ apart) | (apart & changed) if changed else self._apart | apart:
            self._ask_again(job)
        self._apart = apart

    def _ask_again(self, job: str) -> None:
        snapshot, place = self._snapshot, self._places.get(job)
        assert snapshot is not None
        if place is None:
            return
        entry = snapshot.entry(job)
        for key in entry.params if entry is not None else ():
            if key not in self._of_entries:
                column = self._of_entries[key] = Column()
                column.codes = [0] * len(self.jobs)
        for key, column in self._of_entries.items():
            column.codes[place] = column.number(None if entry is None else entry.value(key))

    @property
    def keys(self) -> Mapping[str, Column]:
        """The parameters of the entries, and the method."""
        return self._of_entries

    def named(self, lists: Sequence[str]) -> tuple[str, ...]:
        """The keys in lists with commas. Raises UsageError for too many."""
        found = split_names(lists, self.keys)
        if len(found) > _MOST_KEYS:
            raise UsageError(f"{len(found)} keys, at most {_MOST_KEYS}: {first_names(found)}")
        return found

    def column(self, key: str) -> Column:
        """The column of a key. Raises UsageError for one that no job has."""
        snapshot = self._snapshot
        assert snapshot is not None
        found = self._of_entries.get(key) if key not in FIELD_NAMES and key not in SCHEDULING else None
        if found is None:
            found = self._others.get(key)
        if found is not None:
            return found
        found = Column()
        found.codes = [found.number(value) for value in self._values(snapshot, key)]
        if len(found.values) == 1 and key not in FIELD_NAMES and key != "job_id":
            known = dict.fromkeys((*self._of_entries, "job_id", *FIELD_NAMES))
            raise UsageError(f"no job has a value for {key!r}{nearest(key, known)}")
        if len(self._others) >= _KEPT:
            del self._others[next(iter(self._others))]
        self._others[key] = found
        return found

    def _values(self, snapshot: Snapshot, key: str) -> Iterable[Any]:
        """What `snapshot.value` gives for each job; for most keys without asking it."""
        records, entries = snapshot.records, snapshot.entries
        if key == "job_id":
            return self.jobs
        if key in self._of_entries or key == "time_limit":
            # Some entries lack it, and then a record may have it.
            return (snapshot.value(job, key) for job in self.jobs)
        if key not in RESERVED:
            if key in FIELD_NAMES:
                return map(operator.attrgetter(key), records.values())
            return (record.extra.get(key) for record in records.values())
        if key in ("priority", OWNER):
            return map(snapshot.priority if key == "priority" else snapshot.owner, self.jobs)
        is_of_next = key in SCHEDULING
        return (
            snapshot.value(job, key)
            if entry is None
            or (job in self._apart and not is_of_next)
            or ((value := entry.value(key)) is None and key in FIELD_NAMES)
            else value
            for job, entry in zip(self.jobs, map(entries.get, self.jobs), strict=True)
        )

    def places_of(self, jobs: Iterable[str]) -> list[int]:
        """The places of these jobs, each once."""
        return [self._places[job] for job in dict.fromkeys(jobs)]

    def places(self, states: Iterable[State] = (), where: Where | None = None) -> Sequence[int]:
        """The places of these jobs."""
        snapshot = self._snapshot
        assert snapshot is not None
        everything = range(len(self.jobs))
        flags: list[Iterable[object]] = []
        if states := frozenset(states):
            flags.append(snapshot.by_state.flags(states))
        for number, condition in enumerate(where.conditions if where is not None else ()):
            try:
                check_users(Where((condition,)), self._users)
                flags.append(self.column(condition.key).flags(condition))
            except UsageError as error:
                raise FilterError(str(error), "where", number) from error
        return list(itertools.compress(everything, map(all, zip(*flags, strict=True)))) if flags else everything

    def _users(self) -> list[Any]:
        return [user for user in self.column(OWNER).values if user is not None]

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
    """Numbers in their order, then text, then nothing."""
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            return 1, 0.0, text_of(value)
        if not math.isnan(number):
            return 0, number, ""
    text = text_of(value)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    # A NaN has no place among numbers.
    return (1, 0.0, text) if math.isnan(number) else (0, number, text)


def _columns_of(entries: Mapping[str, Any], jobs: Sequence[str]) -> dict[str, Column]:
    """The columns of the parameters of all entries, and of the method."""
    columns: dict[str, Column] = {_BY_ENTRY: Column()}
    for place, job in enumerate(jobs):
        entry = entries.get(job)
        if entry is None:
            continue
        for key, value in itertools.chain(((_BY_ENTRY, entry.method),), entry.params.items()):
            column = columns.get(key)
            if column is None:
                column = columns[key] = Column()
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


class Filter(msgspec.Struct, frozen=True):
    """Which jobs a request asks for; `failure` and `waiting` are keys of causes and reasons on the first screen."""

    states: frozenset[State] = frozenset()
    where: Where = Where()
    failure: str = ""
    waiting: str = ""

    def __bool__(self) -> bool:
        return bool(self.states or self.where or self.failure or self.waiting)
