"""Curves of several jobs with their mean and spread, a parameter against a result, and what parameters explain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.errors import StateError, UsageError, nearest
from dispatcher.query.comparing import ComparedJobs, chosen_groups
from dispatcher.query.curves import MeanCurve, mean_within
from dispatcher.query.numbers import mean
from dispatcher.query.parameters import of_parameters
from dispatcher.web.answers import encode
from dispatcher.web.board import Board, Filter
from dispatcher.web.curves import MetricFile, MetricFiles, short

# Points of all groups together.
_POINTS: Final = 9_000
_MOST_POINTS: Final = 4_000
_SCATTER_BYTES: Final = 900_000
# Characters of a value in the name of a group.
_LABEL: Final = 100
_MISSING: Final = 500


def choose(board: Board, ids: Sequence[str], wanted: Filter, by: Sequence[str], first: int = 0) -> ComparedJobs:
    """The jobs of these ids, else of the filter, grouped. Raises UsageError for an unknown one."""
    records = board.snapshot.records
    unknown = [job for job in ids if job not in records]
    if unknown:
        raise UsageError(f"unknown job {unknown[0]!r}{nearest(unknown[0], [j for j in ids if j in records])}")
    places = board.columns.places_of(ids) if ids else board.places(wanted)
    return chosen_groups(
        board.columns, places, by, first, lambda job: board.layout.attempt(job, records[job].attempt).directory
    )


def compare(
    files: MetricFiles, chosen: ComparedJobs, metric: str | None, x: str, width: int, until_s: float
) -> dict[str, Any]:
    """One curve for each group: mean and spread (one deviation) over its jobs, by `x`, a step or seconds of training.

    Where the jobs have at most `width` different steps, these are the points, else as many pixels. A job counts from
    its first to its last step, between two of them on a straight line; `counts` says how many do. Without `metric`
    the answer has only `names`. `absent` are groups without a job that has the metric.
    """
    found = _read(files, chosen, until_s)
    names = list(dict.fromkeys(name for file in found.files.values() for name in file.names))
    if metric is not None and metric not in names and found.files and not found.pending:
        raise UsageError(f"no job of these has the metric {metric!r}{nearest(metric, names)}")
    if not found.files and found.unread:
        raise StateError(_unread_text(found.unread))
    width = max(10, min(width, _POINTS // max(1, len(chosen.groups))))
    groups, absent, untimed = [], [], 0
    without = found.without
    for group, label in zip(chosen.groups, _labels(chosen), strict=True):
        read = [(job, found.files[job]) for job, _ in group.jobs if job in found.files]
        with_it = [(job, file) for job, file in read if metric is not None and metric in file.names]
        if metric is not None:
            without += len(read) - len(with_it)
        placed = [(job, one) for job, file in with_it if (one := file.series(metric or "", x)) is not None]
        untimed += len(with_it) - len(placed)
        if placed:
            made = mean_within((), group.ran, [curve for _, curve in placed], width)
            groups.append({"label": label, "of": group.ran, **_curve([job for job, _ in placed], made)})
        elif metric is not None and not found.pending:
            absent.append(label)
    damaged = [job for job, file in found.files.items() if file.failures]
    cut = [
        chosen.cut,
        _unread_text(found.unread) if found.unread else "",
        f"{counted(len(damaged), 'job')} with a file of an attempt that cannot be read: {first_names(damaged)}"
        if damaged
        else "",
        f"{counted(untimed, 'job')} without times (wall_s)" if untimed else "",
    ]
    return {
        "metric": metric,
        "by": chosen.by,
        "x_name": x,
        "names": names[:500],
        "groups": groups,
        "absent": absent,
        "first": chosen.first,
        "at_once": len(chosen.groups),
        "total_groups": chosen.total_groups,
        "without": without,
        "not_run": chosen.not_run,
        "pending": found.pending,
        "cut": "; ".join(filter(None, cut)) or None,
    }


class _Read(msgspec.Struct):
    """The metrics by job; how many have none, which cannot be read, how many are not read to the end."""

    files: dict[str, MetricFile]
    without: int = 0
    unread: list[str] = []
    pending: int = 0


def _read(files: MetricFiles, chosen: ComparedJobs, until_s: float) -> _Read:
    read = _Read({})
    for group in chosen.groups:
        for job, directory in group.jobs:
            try:
                found = files.read(directory, until_s)
            except StateError:
                # Jobs write these files: that of one must not hide those of the others.
                read.unread.append(job)
                continue
            if found is None:
                read.without += 1
                continue
            read.pending += not found.is_whole
            read.files[job] = found
    return read


def _unread_text(jobs: Sequence[str]) -> str:
    """That the metrics of these jobs are left out; a job's own page says why."""
    return f"{counted(len(jobs), 'job')} whose metrics are in no plain file or cannot be read: {first_names(jobs)}"


def _labels(chosen: ComparedJobs) -> list[str]:
    """What the groups are called; those that are alike as far as there is room are numbered."""
    alike: Counter[str] = Counter()
    found = []
    for group in chosen.groups:
        parts = zip(chosen.by, group.values, group.labels, strict=True)
        label = ", ".join(f"{key}={'-' if value is None else _brief(name)}" for key, value, name in parts)
        alike[label] += 1
        found.append(label if alike[label] == 1 else f"{label} ({alike[label]})")
    return found


def _brief(text: str) -> str:
    return text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"


def _curve(jobs: Sequence[str], found: MeanCurve) -> dict[str, Any]:
    band = list(zip(found.means, found.stds, strict=True))
    return {
        "jobs": jobs,
        "n": found.n,
        "x": list(map(short, found.x)),
        "mean": list(map(short, found.means)),
        "low": [short(one - spread) for one, spread in band],
        "high": [short(one + spread) for one, spread in band],
        "counts": found.counts,
        "nan": list(map(short, found.nan[:: max(1, math.ceil(len(found.nan) / 100))])),
    }


def scatter(board: Board, x: str, y: str, wanted: Filter) -> dict[str, Any]:
    """A key or result `x` against a result `y`, over the jobs of the filter; those without one of them are listed."""
    columns, results = board.columns, board.results
    places = board.places(wanted)
    of_y = results.numbers(y)
    of_x = results.by_name.get(x) if x not in columns.keys else None
    column = columns.column(x) if of_x is None else None
    labels = column.labels if column is not None else ()
    states = columns.column("state")
    points: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    lacking = total = size = 0
    for place in places:
        job = columns.jobs[place]
        at = of_x.get(job) if of_x is not None else labels[column.codes[place]] if column is not None else None
        number = of_y.get(job)
        row = {"job": job, "x": at, "y": number, "state": states.values[states.codes[place]]}
        if at is None or number is None or not math.isfinite(number):
            lacking += 1
            if len(missing) < _MISSING and size < _SCATTER_BYTES:
                size += len(encode(row))
                missing.append(row)
        else:
            total += 1
            if len(points) < _MOST_POINTS and size < _SCATTER_BYTES:
                size += len(encode(row))
                points.append(row)
    numbers = [point["y"] for point in points]
    cut = f"{total} points, the first {len(points)} are shown" if total > len(points) else None
    return {
        "x": x,
        "y": y,
        "points": points,
        "missing": missing,
        "missing_total": lacking,
        "mean": mean(numbers),
        "cut": cut,
        "results_pending": results.pending,
    }


def parameters(board: Board, y: str, wanted: Filter) -> dict[str, Any]:
    """The importance of all parameters for the result `y`, and the values of some jobs."""
    results = board.results
    found = of_parameters(board.columns, results.numbers(y), board.places(wanted))
    return {"y": y, **msgspec.structs.asdict(found), "results_pending": results.pending}
