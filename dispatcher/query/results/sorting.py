"""Sorting of table rows by their columns, as `ps --sort=-rss` does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dispatcher.base.values import text_of
from dispatcher.errors import UsageError, nearest
from dispatcher.query.pivot import natural
from dispatcher.query.results.pivot import Spread

R = TypeVar("R", bound=Mapping[str, Any])


def sort_rows(rows: Sequence[R], keys: Sequence[str]) -> list[R]:
    """The rows in the order of these columns, the first one counts most; `-KEY` is descending.

    Rows without a value come last, after those with a NaN, in either direction; a cell with a mean is sorted by it.
    Raises UsageError for a column that no row has.
    """
    ordered = list(rows)
    for key in reversed(keys):
        name, is_descending = _column(rows, key)
        good = [row for row in ordered if _rank(row.get(name)) == 0]
        good.sort(key=lambda row: _order(row.get(name)), reverse=is_descending)
        rest = [row for row in ordered if _rank(row.get(name))]
        ordered = good + sorted(rest, key=lambda row: _rank(row.get(name)))
    return ordered


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[str, bool]:
    """The column that the key names, and whether it is descending. A column may begin with a `-` itself."""
    known = list(dict.fromkeys(name for row in rows for name in row))
    if key in known or not rows:
        return key, False
    name = key.removeprefix("-")
    if name not in known:
        raise UsageError(f"--sort {key}: there is no column {name!r}{nearest(name, known)}")
    return name, key != name


def _plain(value: Any) -> Any:
    return value.mean if isinstance(value, Spread) else value


def _rank(value: Any) -> int:
    """0 for a value, 1 for a NaN, 2 for none."""
    value = _plain(value)
    return 2 if value is None else int(isinstance(value, float) and math.isnan(value))


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers in numeric order, before words; also where they are text, as the values of a group are."""
    value = _plain(value)
    if isinstance(value, (int, float)):
        return 0, value, ""
    return natural(text_of(value))
