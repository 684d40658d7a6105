"""Curves of several jobs with their mean and spread, and a parameter against a result."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.base.values import group_label, identity
from dispatcher.errors import StateError, UsageError, nearest
from dispatcher.report.pivot import mean, std
from dispatcher.report.results.rows import no_value_text
from dispatcher.web.answers import encode
from dispatcher.web.board import Board
from dispatcher.web.columns import Filter, sort_key
from dispatcher.web.curves import MetricFile, MetricFiles, Series, edges, short

MOST_JOBS: Final = 200
_MOST_GROUPS: Final = 24
# Points of all groups together.
_POINTS: Final = 9_000
_MOST_POINTS: Final = 4_000
_SCATTER_BYTES: Final = 900_000
# Characters of a value in the name of a group.
_LABEL: Final = 100
_MISSING: Final = 500


class Chosen(msgspec.Struct, frozen=True):
    """The jobs to compare: each with the directory of its last attempt and the values of the keys it is grouped by."""

    jobs: list[tuple[str, Path, tuple[Any, ...]]]
    # How many jobs match, if not all of them are compared.
    total: int
    # Jobs that have not run.
    not_run: int


def choose(board: Board, ids: Sequence[str], wanted: Filter, by: Sequence[str]) -> Chosen:
    """The jobs of these ids, else of the filter. Raises UsageError for an unknown one."""
    records, columns = board.snapshot.records, board.columns
    unknown = [job for job in ids if job not in records]
    if unknown:
        raise UsageError(f"unknown job {unknown[0]!r}{nearest(unknown[0], [j for j in ids if j in records])}")
    jobs = list(dict.fromkeys(ids)) if ids else board.select(wanted)
    for key in by:
        columns.column(key)
    ran = [job for job in jobs if records[job].attempt] if len(jobs) <= 10 * MOST_JOBS else _first_that_ran(board, jobs)
    chosen = [
        (
            job,
            board.layout.attempt(job, records[job].attempt).directory,
            tuple(board.snapshot.value(job, key) for key in by),
        )
        for job in ran[:MOST_JOBS]
    ]
    return Chosen(chosen, len(jobs), max(0, len(jobs) - len(ran)) if len(jobs) <= 10 * MOST_JOBS else 0)


def _first_that_ran(board: Board, jobs: Sequence[str]) -> list[str]:
    found = []
    for job in jobs:
        if board.snapshot.records[job].attempt:
            found.append(job)
            if len(found) == MOST_JOBS:
                break
    return found


def compare(
    files: MetricFiles, chosen: Chosen, metric: str | None, by: Sequence[str], width: int, until_s: float
) -> dict[str, Any]:
    """One curve for each combination of values of the keys `by`: mean and spread (one deviation) over its jobs.

    Where the jobs have at most `width` different steps, these are the points, else as many pixels. A job counts from
    its first to its last step, between two of them on a straight line; `counts` says how many do. Without `metric`
    only `names` is told.
    """
    read: list[tuple[str, tuple[Any, ...], MetricFile]] = []
    unread: list[str] = []
    pending = without = 0
    for job, directory, values in chosen.jobs:
        try:
            found = files.read(directory, until_s)
        except StateError:
            # Jobs write these files: that of one must not hide those of the others.
            unread.append(job)
            continue
        if found is None:
            without += 1
            continue
        pending += not found.is_whole
        read.append((job, values, found))
    names = list(dict.fromkeys(name for _, _, file in read for name in file.names))
    if metric is not None and metric not in names and read and not pending:
        raise UsageError(f"no job of these has the metric {metric!r}{nearest(metric, names)}")
    if not read and unread:
        raise StateError(_unread_text(unread))
    groups: dict[tuple[Hashable, ...], list[tuple[str, Series]]] = {}
    of_groups: dict[tuple[Hashable, ...], tuple[Any, ...]] = {}
    for job, values, file in read:
        series = None if metric is None else file.series(metric)
        if series is None:
            without += metric is not None
            continue
        key = tuple(map(identity, values))
        groups.setdefault(key, []).append((job, series))
        of_groups[key] = values
    order = sorted(groups, key=lambda key: tuple(map(sort_key, of_groups[key])))
    names_of = [group_label(of_groups[key][place] for key in order) for place in range(len(by))]
    shown = order[:_MOST_GROUPS]
    width = max(10, min(width, _POINTS // max(1, len(shown))))
    cut = [
        f"{chosen.total} jobs match, {len(chosen.jobs)} are compared" if chosen.total > len(chosen.jobs) else "",
        f"{len(order)} groups, {len(shown)} are shown" if len(order) > len(shown) else "",
        _unread_text(unread) if unread else "",
    ]
    return {
        "metric": metric,
        "by": by,
        "names": names[:500],
        "groups": [_group(_label(by, names_of, of_groups[key]), groups[key], width) for key in shown],
        "without": without,
        "not_run": chosen.not_run,
        "pending": pending,
        "cut": "; ".join(filter(None, cut)) or None,
    }


def _unread_text(jobs: Sequence[str]) -> str:
    """That the metrics of these jobs are left out; a job's own page says why."""
    return f"{counted(len(jobs), 'job')} whose metrics are in no plain file or cannot be read: {first_names(jobs)}"


def _label(by: Sequence[str], names: Sequence[Callable[[object], str]], values: tuple[Any, ...]) -> str:
    parts = zip(by, names, values, strict=True)
    return ", ".join(f"{key}={'-' if value is None else name(value)[:_LABEL]}" for key, name, value in parts)


def _group(label: str, jobs: list[tuple[str, Series]], width: int) -> dict[str, Any]:
    steps = sorted({x for _, series in jobs for x in _few(series, width)})
    of: dict[str, Any] = {"label": label, "jobs": [job for job, _ in jobs], "n": len(jobs)}
    if not steps:
        x, found = [], []
    elif len(steps) <= width:
        x, found = steps, _at_steps(jobs, steps)
    else:
        pixels = edges(steps[0], steps[-1], width)
        x, found = pixels[:-1], _at_pixels(jobs, pixels)
    kept = [(at, numbers) for at, numbers in zip(x, found, strict=True) if numbers]
    means = [mean(numbers) or 0.0 for _, numbers in kept]
    spreads = [std(numbers) or 0.0 for _, numbers in kept]
    nan = sorted({at for _, series in jobs for at in series.nan})
    return {
        **of,
        "x": [short(at) for at, _ in kept],
        "mean": list(map(short, means)),
        "low": [short(one - spread) for one, spread in zip(means, spreads, strict=True)],
        "high": [short(one + spread) for one, spread in zip(means, spreads, strict=True)],
        "counts": [len(numbers) for _, numbers in kept],
        "nan": [short(at) for at in nan[:: max(1, math.ceil(len(nan) / 100))]],
    }


def _few(series: Series, width: int) -> Sequence[float]:
    """The steps; of a series that has more than there is room for, enough to see that, and its ends."""
    return series.x if len(series.x) <= width else [*series.x[: width + 1], series.x[-1]]


def _at_steps(jobs: list[tuple[str, Series]], steps: Sequence[float]) -> list[list[float]]:
    """The values at each step."""
    values: list[list[float]] = [[] for _ in steps]
    for _, series in jobs:
        if not series.x:
            continue
        logged = dict(zip(series.x, series.y, strict=True))
        for place in range(bisect.bisect_left(steps, series.x[0]), bisect.bisect_right(steps, series.x[-1])):
            value = logged.get(steps[place])
            if value is None:
                value = series.between(steps[place])
            if value is not None:
                values[place].append(value)
    return values


def _at_pixels(jobs: list[tuple[str, Series]], pixels: list[float]) -> list[list[float]]:
    """The values at each pixel: of each job the mean of what it has logged there."""
    values: list[list[float]] = [[] for _ in pixels[:-1]]
    for _, series in jobs:
        for pixel, (a, b) in enumerate(series.slices(pixels)):
            value = math.fsum(series.y[a:b]) / (b - a) if a < b else series.between(pixels[pixel])
            if value is not None:
                values[pixel].append(value)
    return values


def scatter(board: Board, x: str, y: str, wanted: Filter) -> dict[str, Any]:
    """A key or result `x` against a result `y`, over the jobs of the filter; those without one of them are listed."""
    columns, results = board.columns, board.results
    places = board.places(wanted)
    of_y = results.by_name.get(y)
    if of_y is None and not results.pending:
        raise UsageError(no_value_text(y, results.names()))
    of_x = results.by_name.get(x) if x not in columns.keys else None
    column = columns.column(x) if of_x is None else None
    states = columns.column("state")
    points: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    lacking = total = size = 0
    for place in places:
        job = columns.jobs[place]
        at = of_x.get(job) if of_x is not None else column.values[column.codes[place]] if column is not None else None
        number = None if of_y is None else of_y.get(job)
        row = {"job": job, "x": _plain(at), "y": number, "state": states.values[states.codes[place]]}
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


def _plain(value: Any) -> Any:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value if value is None or isinstance(value, (int, float)) else text[:200]
