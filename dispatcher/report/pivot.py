"""Pivot tables of job states and of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dispatcher.errors import UsageError, nearest
from dispatcher.report.selection import cell_text
from dispatcher.report.snapshot import Snapshot
from dispatcher.run_state.states import State

Row = dict[str, Any]
Values = Sequence[float]


def count_states(snapshot: Snapshot) -> dict[str, int]:
    """The number of jobs in each state, for all states, in the order of a job's life."""
    return {state.value: snapshot.by_state.count(state) for state in State}


def states_by(snapshot: Snapshot, keys: Sequence[str]) -> list[Row]:
    """One row per combination of the keys' values: the values, a count per state that occurs, and the total."""
    used = [state for state, count in count_states(snapshot).items() if count]
    rows: dict[tuple[str, ...], Row] = {}
    for job, record in snapshot.records.items():
        values = tuple(cell_text(snapshot.value(job, key)) for key in keys)
        row = rows.get(values)
        if row is None:
            row = rows[values] = {**dict(zip(keys, values, strict=True)), **dict.fromkeys(used, 0), "total": 0}
        row[record.state] += 1
        row["total"] += 1
    return [rows[values] for values in sorted(rows, key=lambda values: tuple(map(_natural, values)))]


def mean(values: Values) -> float | None:
    return math.fsum(values) / len(values) if values else None


def std(values: Values) -> float | None:
    """The standard deviation of a sample (n - 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def median(values: Values) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


AGGREGATES: Final[Mapping[str, Callable[[Values], float | int | None]]] = {
    "mean": mean,
    "std": std,
    "median": median,
    "min": lambda values: min(values, default=None),
    "max": lambda values: max(values, default=None),
    "sum": math.fsum,
    "n": len,
}
# `best` is min or max, as the caller chooses.
AGGREGATE_NAMES: Final = (*AGGREGATES, "best")


def pivot(
    results: Sequence[Mapping[str, Any]],
    rows: Sequence[str],
    cols: Sequence[str],
    value: str,
    aggregates: Sequence[str] = ("mean",),
    best: str | None = None,
) -> list[Row]:
    """The aggregates of `value` for every combination of `rows` (down) and `cols` (across).

    Columns are named by the values of `cols`, followed by the aggregate if there are several. `best` is `min` or `max`:
    the value that the aggregate `best` takes. A combination without results has None. Raises UsageError for a key that
    no result has, an unknown aggregate, and a value that is not a number.
    """
    functions = _functions(aggregates, best)
    for key in (*rows, *cols, value):
        _check_key(results, key)
    cells: dict[tuple[str, ...], dict[tuple[str, ...], list[float]]] = {}
    across: dict[tuple[str, ...], None] = {}
    for result in results:
        number = _number(result, value)
        if number is None:
            continue
        column = tuple(cell_text(result.get(key)) for key in cols)
        across[column] = None
        down = tuple(cell_text(result.get(key)) for key in rows)
        cells.setdefault(down, {}).setdefault(column, []).append(number)
    columns = sorted(across, key=lambda values: tuple(map(_natural, values)))
    table = []
    for down in sorted(cells, key=lambda values: tuple(map(_natural, values))):
        row: Row = dict(zip(rows, down, strict=True))
        for column in columns:
            found = cells[down].get(column)
            for name, function in functions.items():
                row[_column_name(column, name, value, len(functions))] = function(found) if found else None
        table.append(row)
    return table


def without_value(results: Sequence[Mapping[str, Any]], value: str) -> list[str]:
    """The jobs whose results lack `value`, which a pivot leaves out."""
    return [str(result.get("job_id")) for result in results if result.get(value) is None]


def _functions(names: Sequence[str], best: str | None) -> dict[str, Callable[[Values], float | int | None]]:
    functions = {}
    for name in names:
        if name == "best":
            if best not in ("min", "max"):
                raise UsageError("the aggregate best needs to know which value is best: add --best min or --best max")
            functions[name] = AGGREGATES[best]
        elif name in AGGREGATES:
            functions[name] = AGGREGATES[name]
        else:
            raise UsageError(f"unknown aggregate {name!r}{nearest(name, AGGREGATE_NAMES)}")
    return functions


def _check_key(results: Sequence[Mapping[str, Any]], key: str) -> None:
    if results and all(result.get(key) is None for result in results):
        known = list(dict.fromkeys(name for result in results for name in result))
        raise UsageError(f"no result has {key!r}{nearest(key, known)}")


def _number(result: Mapping[str, Any], key: str) -> float | None:
    number = result.get(key)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise UsageError(f"{result.get('job_id')}: {key} is {number!r}, which is not a number")
    return float(number)


def _column_name(column: Sequence[str], aggregate: str, value: str, count: int) -> str:
    name = " ".join(part for part in column if part)
    if not name:
        return aggregate if count > 1 else value
    return f"{name} {aggregate}" if count > 1 else name


def _natural(text: str) -> tuple[int, float, str]:
    """A sort key: numbers in numeric order, before words."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
