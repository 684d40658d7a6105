"""Pivot tables of results: aggregates by the values of keys. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dispatcher.base.values import shown
from dispatcher.errors import UsageError, nearest
from dispatcher.query.groups import grouped, in_order
from dispatcher.query.numbers import Numbers, Spread, finite_number, mean, median, std
from dispatcher.query.results.rows import no_value_text
from dispatcher.query.values import Values

Row = dict[str, Any]
Key = tuple[str, ...]


_AGGREGATES: Final[Mapping[str, Callable[[Numbers], float | int | None]]] = {
    "mean": mean,
    "std": std,
    "median": median,
    "min": lambda values: min(values, default=None),
    "max": lambda values: max(values, default=None),
    "sum": math.fsum,
    "n": len,
}
# A cell with the mean, the standard deviation of a sample, and how many of the jobs have a value; how people type it.
SPREAD: Final = "mean±std"
_SPREAD_TYPED: Final = "mean+-std"
# `best` is min or max, as the caller chooses.
_AGGREGATE_NAMES: Final = (*_AGGREGATES, "best", _SPREAD_TYPED)


_NO_JOB: Final = Spread(None, None, 0, 0)


class Cells(msgspec.Struct, frozen=True):
    """Results by the values of keys: `down` and `across` in natural order, the numbers and jobs of each combination.

    `numbers` have what is finite, by row, column and value; `jobs` counts all jobs of a combination that should have
    the value.
    """

    down: list[Key]
    across: list[Key]
    numbers: dict[tuple[Key, Key, str], list[float]]
    jobs: dict[tuple[Key, Key, str], int]

    def spread(self, down: Key, across: Key, value: str) -> Spread | None:
        """None where the matrix has no such job."""
        of = self.jobs.get((down, across, value), 0)
        return Spread.over(self.numbers.get((down, across, value), ()), of) if of else None


def cells(
    results: Sequence[Mapping[str, Any]],
    rows: Sequence[str],
    cols: Sequence[str],
    values: Sequence[str],
    others: Mapping[str, Collection[str | None]] = MappingProxyType({}),
) -> Cells:
    """The numbers of `values` for every combination of `rows` (down) and `cols` (across).

    `others`: of each value the methods that do not report it, whose jobs do not count. What is no number has no place
    in a cell. Raises UsageError for a key that no result has, and a value that is a number in none.
    """
    for key in (*rows, *cols):
        check_key(results, key)
    for value in values:
        check_value(results, value)
    numbers: dict[tuple[Key, Key, str], list[float]] = {}
    jobs: dict[tuple[Key, Key, str], int] = {}
    downs, acrosses = group_keys(results, rows), group_keys(results, cols)
    for result, down, across in zip(results, downs, acrosses, strict=True):
        for value in values:
            if result.get("method") in others.get(value, ()):
                continue
            jobs[down, across, value] = jobs.get((down, across, value), 0) + 1
            number = finite_number(result, value)
            if number is not None:
                numbers.setdefault((down, across, value), []).append(number)
    return Cells(in_order(downs), in_order(acrosses), numbers, jobs)


def group_keys(results: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[Key]:
    """The values of `keys` of each result, as its group is called."""
    columns = [Values(result.get(key) for result in results) for key in keys]
    groups = grouped(columns, range(len(results)))
    return [groups.labels[number] for number in groups.of]


class Pivot(list[Row]):
    """The rows of a pivot table. `headings`: the lines above its columns, one for each key, where one is not enough."""

    headings: Mapping[str, Sequence[str]] = {}


def pivot(
    results: Sequence[Mapping[str, Any]],
    rows: Sequence[str],
    cols: Sequence[str],
    values: Sequence[str],
    aggregates: Sequence[str] = ("mean",),
    best: str | None = None,
    others: Mapping[str, Collection[str | None]] = MappingProxyType({}),
) -> Pivot:
    """The aggregates of `values` for every combination of `rows` (down) and `cols` (across).

    Columns are named by the values of `cols`, followed by the value and the aggregate if there are several. `best` is
    `min` or `max`: the value that the aggregate `best` takes. A combination without results has None. What is not
    finite, or no number, is left out. `others` and errors: see `cells`. Raises UsageError for an unknown aggregate.
    """
    functions = _functions(aggregates, best)
    if SPREAD not in functions:
        # There, a job without any of the values counts among those that should have one; here, it has no place.
        results = [one for one in results if any(finite_number(one, value) is not None for value in values)] or results
    found = cells(results, rows, cols, values, others)
    table = Pivot()
    columns: dict[str, tuple[Key, str, str]] = {}
    headings: dict[str, Sequence[str]] = {}
    for across, value, name in itertools.product(found.across, values, functions):
        words = [*across, *([value] if len(values) > 1 else ()), *([name] if len(functions) > 1 else ())]
        column = " ".join(filter(None, words)) or value
        columns[column] = (across, value, name)
        headings[column] = words
    depth = len(next(iter(headings.values()), ()))
    if cols and depth > 1:
        table.headings = _with_names(headings, depth, rows, cols)
    for down in found.down:
        row: Row = dict(zip(rows, down, strict=True))
        for column, (across, value, name) in columns.items():
            row[column] = (
                found.spread(down, across, value)
                if name == SPREAD
                else _aggregate(functions[name], found.numbers.get((down, across, value)))
            )
        table.append(row)
    return table


def _with_names(
    headings: Mapping[str, Sequence[str]], depth: int, rows: Sequence[str], cols: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    """The headings with the names of the keys: those of `cols` before their values, those of `rows` in a last line."""
    if not rows:
        return headings
    levels = [*cols, *[""] * (depth - len(cols))]
    names = {key: [*[""] * depth, key] for key in rows} | {rows[0]: [*levels, rows[0]]}
    return names | {column: [*words, ""] for column, words in headings.items()}


def _aggregate(function: Callable[[Numbers], float | int | None], numbers: Numbers | None) -> float | int | None:
    return function(numbers) if numbers else None


def expanded(table: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows with four columns for each column of spreads, as programs read them: mean, std, n and of."""
    spreads = {name for row in table for name, cell in row.items() if isinstance(cell, Spread)}
    return [
        {
            name: cell
            for column, given in row.items()
            for name, cell in (_parts(column, given or _NO_JOB) if column in spreads else ((column, given),))
        }
        for row in table
    ]


def _parts(column: str, spread: Spread) -> list[tuple[str, float | int | None]]:
    return [(f"{column} {name}", getattr(spread, name)) for name in ("mean", "std", "n", "of")]


def without_value(results: Sequence[Mapping[str, Any]], value: str) -> list[str]:
    """The jobs whose results lack `value` or have no finite one, which a pivot leaves out."""
    return [str(result.get("job_id")) for result in results if finite_number(result, value) is None]


def _functions(names: Sequence[str], best: str | None) -> dict[str, Callable[[Numbers], float | int | None]]:
    functions = {}
    for given in names:
        name = SPREAD if given == _SPREAD_TYPED else given
        if name == "best":
            if best not in ("min", "max"):
                raise UsageError("the aggregate best needs to know which value is best: add --best min or --best max")
            functions[name] = _AGGREGATES[best]
        elif name in _AGGREGATES or name == SPREAD:
            functions[name] = _AGGREGATES.get(name, mean)
        else:
            raise UsageError(f"unknown aggregate {name!r}{nearest(name, _AGGREGATE_NAMES)}")
    return functions


def check_key(results: Sequence[Mapping[str, Any]], key: str) -> None:
    """Raise UsageError for a key that no result has."""
    if results and all(result.get(key) is None for result in results):
        known = list(dict.fromkeys(name for result in results for name in result))
        raise UsageError(no_value_text(key, known))


def check_value(results: Sequence[Mapping[str, Any]], key: str) -> None:
    """Raise UsageError for a value that is a number in no result, and for one that none has."""
    check_key(results, key)
    given = [(one, value) for one in results if (value := one.get(key)) is not None]
    if not given or any(isinstance(value, (int, float)) and not isinstance(value, bool) for _, value in given):
        return
    result, value = given[0]
    if isinstance(value, dict):
        names = ", ".join(f"{key}.{name}" for name in value)
        raise UsageError(
            f"{result.get('job_id')}: {key} is an object: `values: [{names}]` of `result` of the method in "
            "dispatcher.yaml takes numbers out of there"
        )
    raise UsageError(f"{result.get('job_id')}: {key} is {shown(value)}, which is not a number, nor is it in any result")
