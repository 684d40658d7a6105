"""Tables of job states by the values of keys, and what tables of results aggregate with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dispatcher.base.values import group_label
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.states import State

Row = dict[str, Any]
Values = Sequence[float]


def count_states(snapshot: Snapshot) -> dict[str, int]:
    """The number of jobs in each state, for all states, in the order of a job's life."""
    return {state.value: snapshot.by_state.count(state) for state in State}


def states_by(snapshot: Snapshot, keys: Sequence[str]) -> list[Row]:
    """One row per combination of the keys' values: the values, a count per state that occurs, and the total."""
    used = [state for state, count in count_states(snapshot).items() if count]
    of_jobs = [[snapshot.value(job, key) for job in snapshot.records] for key in keys]
    texts = [map(group_label(values), values) for values in of_jobs]
    groups = zip(*texts, strict=True) if keys else itertools.repeat(())
    rows: dict[tuple[str, ...], Row] = {}
    for record, values in zip(snapshot.records.values(), groups, strict=bool(keys)):
        row = rows.get(values)
        if row is None:
            row = rows[values] = {**dict(zip(keys, values, strict=True)), **dict.fromkeys(used, 0), "total": 0}
        row[record.state] += 1
        row["total"] += 1
    return [rows[values] for values in sorted(rows, key=lambda values: tuple(map(natural, values)))]


def mean(values: Values) -> float | None:
    if not values:
        return None
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def std(values: Values) -> float | None:
    """The standard deviation of a sample (n - 1); None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = mean(values) or 0.0
    far = [value - middle for value in values]
    try:
        return math.sqrt(math.fsum(one**2 for one in far) / (len(values) - 1))
    except OverflowError:
        # The loss of a diverged training has a square beyond what a float holds.
        scale = max(map(abs, far))
        return scale * math.sqrt(math.fsum((one / scale) ** 2 for one in far) / (len(values) - 1))


def median(values: Values) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def natural(text: str) -> tuple[int, float, str]:
    """A sort key: numbers in numeric order, before words."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    # A NaN has no place among numbers.
    return (1, 0.0, text) if math.isnan(number) else (0, number, text)
