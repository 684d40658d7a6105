"""The matrix: rows and columns by any keys, in each cell the jobs by state, and a result as mean and spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dispatcher.base.values import text_of
from dispatcher.matrix.condition import literal
from dispatcher.query.groups import Groups, crossed, grouped
from dispatcher.query.pivot import JobCell, job_cells
from dispatcher.web.answers import encode
from dispatcher.web.board import Board, Filter

# So many cells are in one answer, which is less than a megabyte.
_CELLS: Final = 4_000
_MOST_COLUMNS: Final = 200
_LONGEST_VALUE: Final = 300
_HEADINGS_BYTES: Final = 250_000


def matrix(
    board: Board, rows: Sequence[str], columns: Sequence[str], value: str | None, wanted: Filter, first: int
) -> dict[str, Any]:
    """The cells from row number `first` on; `next` is the first row that is not among them.

    A cell has its jobs by their `states`, and of the `n` of them that have the result `value` its mean and deviation
    (n - 1); `of` counts those whose methods report it. The jobs of a cell are those of its row's and its column's
    `where`, and of the filter.
    """
    rows, columns = board.columns.named(rows), board.columns.named(columns)
    places = board.places(wanted)
    down, across = (grouped([board.columns.column(key) for key in keys], places) for keys in (rows, columns))
    row_order, column_order = down.order(), across.order()
    shown_columns = column_order[: _fitting(columns, across, column_order[:_MOST_COLUMNS])]
    rows_at_once = max(1, _CELLS // max(1, len(shown_columns)))
    end = first + _fitting(rows, down, row_order[first : first + rows_at_once])
    shown = crossed(down, across, row_order[first:end])
    cells = job_cells(board.columns, board.results, value, places, shown)
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


def _cell(cell: JobCell | None) -> dict[str, Any] | None:
    """None where there is no job."""
    if cell is None:
        return None
    spread = cell.spread
    shown: dict[str, Any] = {"of": spread.of, "states": cell.states, "n": spread.n}
    return shown | ({"mean": spread.mean, "std": spread.std} if spread.n else {})
