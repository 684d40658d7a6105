"""The matrix: rows and columns by any keys, in each cell the jobs by state, and a result as mean and spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dispatcher.base.values import text_of
from dispatcher.matrix.condition import literal
from dispatcher.query.groups import Groups, grouped
from dispatcher.query.numbers import mean, std
from dispatcher.run_state.states import State
from dispatcher.web.answers import encode
from dispatcher.web.board import Board, Filter

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
    numbers = {} if value is None else board.results.numbers(value)
    jobs = board.columns.jobs
    places = board.places(wanted)
    down, across = (grouped([board.columns.column(key) for key in keys], places) for keys in (rows, columns))
    states = board.columns.column("state")
    # The number of each state as the column has them.
    known = [_STATES.index(one) if one is not None else 0 for one in map(_state, states.values)]
    row_order, column_order = down.order(), across.order()
    shown_columns = column_order[: _fitting(columns, across, column_order[:_MOST_COLUMNS])]
    rows_at_once = max(1, _CELLS // max(1, len(shown_columns)))
    end = first + _fitting(rows, down, row_order[first : first + rows_at_once])
    is_shown = [False] * len(row_order)
    for row in row_order[first:end]:
        is_shown[row] = True
    methods = board.columns.column("method").codes
    of_jobs = {} if value is None else {jobs[place]: methods[place] for place in places}
    without = set() if value is None else board.results.methods_without(value, of_jobs)
    cells: dict[tuple[int, int], tuple[list[int], list[int], list[float]]] = {}
    for place, row, column in zip(places, down.of, across.of, strict=True):
        if not is_shown[row]:
            continue
        cell = cells.get((row, column))
        if cell is None:
            cell = cells[row, column] = [0] * len(_STATES), [0], []
        cell[0][known[states.codes[place]]] += 1
        cell[1][0] += methods[place] not in without
        if (number := numbers.get(jobs[place])) is not None:
            cell[2].append(number)
    return {
        "row_keys": rows,
        "column_keys": columns,
        "value": value,
        "rows": [_heading(rows, down, number) for number in row_order[first:end]],
        "columns": [_heading(columns, across, number) for number in shown_columns],
        "cells": [[_cell(cells.get((row, column))) for column in shown_columns] for row in row_order[first:end]],
        "total_rows": len(row_order),
        "total_columns": len(column_order),
        "next": end if end < len(row_order) else None,
        "jobs": len(places),
        "results_pending": board.results.pending if value is not None else 0,
    }


def _fitting(keys: Sequence[str], groups: Groups, order: Sequence[int]) -> int:
    """How many of these rows or columns there is room for, by what they are called; at least one."""
    size = 0
    for count, number in enumerate(order):
        size += len(encode(_heading(keys, groups, number)))
        if size > _HEADINGS_BYTES:
            return max(1, count)
    return len(order)


def _state(value: object) -> str | None:
    return value.value if isinstance(value, State) else None if value is None else str(value)


def _heading(keys: Sequence[str], groups: Groups, number: int) -> dict[str, Any]:
    """What a row or column is called, cut where it is long, and the conditions that select its jobs."""
    values = groups.values[number]
    where = [
        f"{key}={'' if value is None else literal(text_of(value))}" for key, value in zip(keys, values, strict=True)
    ]
    named = zip(values, groups.labels[number], strict=True)
    return {"values": [None if value is None else _brief(label) for value, label in named], "where": where}


def _brief(label: str) -> str:
    return label if len(label) <= _LONGEST_VALUE else label[: _LONGEST_VALUE - 1] + "…"


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
