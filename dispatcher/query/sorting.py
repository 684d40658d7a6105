"""Sorting of rows and of jobs by their columns, as `ps --sort=-rss` does."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.entry import RESERVED
from dispatcher.query.job_columns import COLUMNS, Job
from dispatcher.query.known_results import KnownResults
from dispatcher.query.numbers import Spread
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.values import JobValues, sort_key
from dispatcher.run_state.states import FIELD_NAMES

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
        good.sort(key=lambda row: sort_key(_plain(row.get(name))), reverse=is_descending)
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


def sorted_places(
    snapshot: Snapshot, values: JobValues, results: KnownResults, places: Sequence[int], sort: str
) -> Sequence[int]:
    """These places of jobs by a key, a result or a column of the page; `-KEY` is descending.

    Those without a value come last in both orders. Raises UsageError for a key that no job has.
    """
    key = sort.removeprefix("-")
    order = _order_by(snapshot, values, results, key)
    if order is None:
        return places
    ranks = [order(place) for place in places]
    ranked = [(rank, place) for rank, place in zip(ranks, places, strict=True) if rank is not None]
    ranked.sort(key=operator.itemgetter(0), reverse=sort != key)
    return [*(place for _, place in ranked), *(p for p, rank in zip(places, ranks, strict=True) if rank is None)]


def _order_by(snapshot: Snapshot, values: JobValues, results: KnownResults, key: str) -> Callable[[int], Any] | None:
    """What places are sorted by, None for one without a value; None where that is not read yet."""
    jobs = values.jobs
    if key not in values.keys and key not in FIELD_NAMES and key not in RESERVED:
        value_of = next((one.value for one in COLUMNS if one.name == key and one.title), None)
        if key == "job":
            key = "job_id"
        elif value_of is not None:
            return lambda place: value_of(Job(snapshot, jobs[place]))
        elif (numbers := results.by_name.get(key)) is not None:
            return lambda place: numbers.get(jobs[place])
        elif results.pending:
            # It may be the name of one that was not read yet.
            return None
    column = values.column(key)
    ranks, codes = column.ranks(), column.codes
    return lambda place: ranks[codes[place]] if codes[place] else None
