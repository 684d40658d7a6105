"""Rows by the values of keys: the groups of tables, pictures and curves, and tables of job states. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from dispatcher.base.values import group_label
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.values import JobValues, Values, sort_key
from dispatcher.run_state.states import State

K = TypeVar("K", bound=tuple[Any, ...])


class Groups(msgspec.Struct, frozen=True):
    """The groups of rows: `of` has for each row the number of its group.

    `values` are those of each group, `labels` what people call them: text, because 0 and 0.0 look alike for programs.
    """

    of: list[int]
    values: list[tuple[Any, ...]]
    labels: list[tuple[str, ...]]

    def order(self) -> list[int]:
        """The numbers of the groups in the order of their values."""
        return sorted(range(len(self.values)), key=lambda number: tuple(map(sort_key, self.values[number])))

    def members(self, places: Sequence[int]) -> list[list[int]]:
        """Those of these places, one for each row, that are in each group."""
        found: list[list[int]] = [[] for _ in self.values]
        for number, place in zip(self.of, places, strict=True):
            found[number].append(place)
        return found


def grouped(columns: Sequence[Values], places: Sequence[int]) -> Groups:
    """The rows at these places by their values of the columns; all rows are one group without any column."""
    numbers: dict[tuple[int, ...], int] = {} if columns else {(): 0}
    codes = (map(column.codes.__getitem__, places) for column in columns)
    of = [numbers.setdefault(one, len(numbers)) for one in zip(*codes, strict=True)] if columns else [0] * len(places)
    values = [tuple(column.values[code] for column, code in zip(columns, codes, strict=True)) for codes in numbers]
    names = [group_label(of_key) for of_key in zip(*values, strict=True)]
    labels = [tuple(name(value) for name, value in zip(names, of_group, strict=False)) for of_group in values]
    return Groups(of, values, labels)


def in_order(names: Iterable[K]) -> list[K]:
    """The different ones of these values or labels of groups, in their order."""
    return sorted(dict.fromkeys(names), key=lambda values: tuple(map(sort_key, values)))


def count_states(snapshot: Snapshot) -> dict[str, int]:
    """The number of jobs in each state, for all states, in the order of a job's life."""
    return {state.value: snapshot.by_state.count(state) for state in State}


def states_by(snapshot: Snapshot, keys: Sequence[str]) -> list[dict[str, Any]]:
    """One row per combination of the keys' values: the values, a count per state that occurs, and the total.

    Raises UsageError for a key that no job has.
    """
    used = [state for state, count in count_states(snapshot).items() if count]
    values = JobValues(snapshot)
    groups = grouped([values.column(key) for key in keys], range(len(values.jobs)))
    rows: dict[tuple[str, ...], dict[str, Any]] = {
        label: {**dict(zip(keys, label, strict=True)), **dict.fromkeys(used, 0), "total": 0} for label in groups.labels
    }
    of = [rows[label] for label in groups.labels]
    for record, number in zip(snapshot.records.values(), groups.of, strict=True):
        of[number][record.state] += 1
        of[number]["total"] += 1
    return [rows[label] for label in in_order(rows)]
