"""The matrix: rows and columns by any keys, in each cell the jobs by state, and a result as mean and spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from dispatcher.base.values import group_label, text_of
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import literal
from dispatcher.query.pivot import mean, std
from dispatcher.query.results.rows import methods_without, no_value_text
from dispatcher.run_state.states import State
from dispatcher.web.answers import encode
from dispatcher.web.board import Board
from dispatcher.web.columns import Filter, sort_key

# So many cells are in one answer, which is less than a megabyte.
_CELLS: Final = 4_000
_MOST_COLUMNS: Final = 200
_LONGEST_VALUE: Final = 300
_HEADINGS_BYTES: Final = 250_000
_STATES: Final = [state.value for state in State]


def matrix(
    board: Board, rows: Sequence[str], columns: Sequence[str], value: str | None, wanted: Filter, first: int
) -> dict[str, Any]:
    """The cells from row number `first` on; `next` is the first row that is not among them.

    A cell has its jobs by their `states`, and of the `n` of them that have the result `value` its mean and deviation
    (n - 1); `of` counts those whose methods report it. The jobs of a cell are those of its row's and its column's
    `where`, and of the filter.
    """
    rows, columns = board.columns.named(rows), board.columns.named(columns)
    numbers = _numbers(board, value)
    jobs = board.columns.jobs
    places = board.places(wanted)
    down, row_names = _places(board, rows, places)
    across, column_names = _places(board, columns, places)
    states = board.columns.column("state")
    # The number of each state as the column has them.
    known = [_STATES.index(one) if one is not None else 0 for one in map(_state, states.values)]
    row_order = sorted(range(len(row_names)), key=lambda number: _rank(row_names[number]))
    column_order = sorted(range(len(column_names)), key=lambda number: _rank(column_names[number]))
    shown_columns = column_order[: _fitting(columns, column_names, column_order[:_MOST_COLUMNS])]
    rows_at_once = max(1, _CELLS // max(1, len(shown_columns)))
    end = first + _fitting(rows, row_names, row_order[first : first + rows_at_once])
    is_shown = [False] * len(row_order)
    for row in row_order[first:end]:
        is_shown[row] = True
    methods = board.columns.column("method").codes
    without = _methods_without(board, value, places, methods)
    cells: dict[tuple[int, int], tuple[list[int], list[int], list[float]]] = {}
    for place, row, column in zip(places, down, across, strict=True):
        if not is_shown[row]:
            continue
        cell = cells.get((row, column))
        if cell is None:
            cell = cells[row, column] = [0] * len(_STATES), [0], []
        cell[0][known[states.codes[place]]] += 1
        cell[1][0] += methods[place] not in without
        if numbers is not None and (number := numbers.get(jobs[place])) is not None:
            cell[2].append(number)
    return {
        "row_keys": rows,
        "column_keys": columns,
        "value": value,
        "rows": [_heading(rows, row_names[number]) for number in row_order[first:end]],
        "columns": [_heading(columns, column_names[number]) for number in shown_columns],
        "cells": [[_cell(cells.get((row, column))) for column in shown_columns] for row in row_order[first:end]],
        "total_rows": len(row_order),
        "total_columns": len(column_order),
        "next": end if end < len(row_order) else None,
        "jobs": len(places),
        "results_pending": board.results.pending if value is not None else 0,
    }


def _fitting(keys: Sequence[str], names: Sequence[tuple[_Name, ...]], order: Sequence[int]) -> int:
    """How many of these rows or columns there is room for, by what they are called; at least one."""
    size = 0
    for count, number in enumerate(order):
        size += len(encode(_heading(keys, names[number])))
        if size > _HEADINGS_BYTES:
            return max(1, count)
    return len(order)


def _numbers(board: Board, value: str | None) -> dict[str, float] | None:
    if value is None:
        return None
    found = board.results.by_name.get(value)
    if found is None and not board.results.pending:
        raise UsageError(no_value_text(value, board.results.names()))
    return found or {}


def _methods_without(board: Board, value: str | None, places: Sequence[int], methods: Sequence[int]) -> set[int]:
    """The numbers of the methods that never report the value, among these jobs."""
    if value is None:
        return set()
    jobs, results = board.columns.jobs, board.results
    reporting = [place for place in places if jobs[place] in results.known]
    numbers, others = results.by_name.get(value, {}), results.others.get(value, ())
    having = (place for place in reporting if jobs[place] in numbers or jobs[place] in others)
    return methods_without(map(methods.__getitem__, reporting), map(methods.__getitem__, having))


def _state(value: object) -> str | None:
    return value.value if isinstance(value, State) else None if value is None else str(value)


def _places(board: Board, keys: Sequence[str], places: Sequence[int]) -> tuple[list[int], list[tuple[_Name, ...]]]:
    """For each job the number of its combination of values, and these combinations."""
    found = [board.columns.column(key) for key in keys]
    numbers: dict[tuple[int, ...], int] = {}
    of: list[int] = []
    for codes in zip(*(map(column.codes.__getitem__, places) for column in found), strict=True) if found else ():
        of.append(numbers.setdefault(codes, len(numbers)))
    if not found:
        of, numbers = [0] * len(places), {(): 0}
    labels = [group_label(column.values[codes[place]] for codes in numbers) for place, column in enumerate(found)]
    names = [
        tuple(
            _Name(value := column.values[code], label(value))
            for column, code, label in zip(found, codes, labels, strict=True)
        )
        for codes in numbers
    ]
    return of, names


class _Name(NamedTuple):
    """A value of a key, and what its row or column is called: text, because 0 and 0.0 are the same for a browser."""

    value: Any
    label: str


def _heading(keys: Sequence[str], names: Sequence[_Name]) -> dict[str, Any]:
    """What a row or column is called, cut where it is long, and the conditions that select its jobs."""
    where = [
        f"{key}={'' if name.value is None else literal(text_of(name.value))}"
        for key, name in zip(keys, names, strict=True)
    ]
    return {"values": [_brief(name) for name in names], "where": where}


def _brief(name: _Name) -> str | None:
    if name.value is None:
        return None
    return name.label if len(name.label) <= _LONGEST_VALUE else name.label[: _LONGEST_VALUE - 1] + "…"


def _rank(names: Sequence[_Name]) -> tuple[Any, ...]:
    return tuple(sort_key(name.value) for name in names)


def _cell(cell: tuple[list[int], list[int], list[float]] | None) -> dict[str, Any] | None:
    """None where there is no job."""
    if cell is None:
        return None
    counts, (of,), numbers = cell
    states = {state: count for state, count in zip(_STATES, counts, strict=True) if count}
    found: dict[str, Any] = {"of": of, "states": states, "n": len(numbers)}
    if numbers:
        found |= {"mean": mean(numbers), "std": std(numbers)}
    return found
