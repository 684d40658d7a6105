"""Curves of several jobs with their mean and spread, and a parameter against a result."""

from __future__ import annotations

import bisect
import heapq
import math
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.base.values import group_label
from dispatcher.errors import StateError, UsageError, nearest
from dispatcher.query.pivot import mean, std
from dispatcher.query.results.rows import no_value_text
from dispatcher.web.answers import encode
from dispatcher.web.board import Board
from dispatcher.web.columns import Filter, sort_key
from dispatcher.web.curves import MetricFile, MetricFiles, Series, edges, short

MOST_JOBS: Final = 200
# So many groups are told apart by colour and dash.
MOST_GROUPS: Final = 24
# Points of all groups together.
_POINTS: Final = 9_000
_MOST_POINTS: Final = 4_000
_SCATTER_BYTES: Final = 900_000
# Characters of a value in the name of a group.
_LABEL: Final = 100
_MISSING: Final = 500


class Group(msgspec.Struct, frozen=True):
    """Jobs that have the same values of the keys: `ran` of them have run, `jobs` of these are compared."""

    values: tuple[Any, ...]
    ran: int
    jobs: list[tuple[str, Path]]


class Chosen(msgspec.Struct, frozen=True):
    """The jobs to compare, by group, each with the directory of its last attempt.

    groups: those by the keys `by` from number `first` on that have run, of `total_groups`.
    not_run: jobs that match and have not run.
    """

    by: Sequence[str]
    groups: list[Group]
    first: int
    total_groups: int
    not_run: int

    @property
    def cut(self) -> str:
        """What of all that match is not compared; empty where everything is."""
        ran, compared = sum(group.ran for group in self.groups), sum(len(group.jobs) for group in self.groups)
        of = "of a group" if len(self.groups) == 1 else "of these groups"
        return f"{compared:,} of the {ran:,} jobs {of} are compared, the same number of each" if compared < ran else ""


def choose(board: Board, ids: Sequence[str], wanted: Filter, by: Sequence[str], first: int = 0) -> Chosen:
    """The jobs of these ids, else of the filter, grouped. Raises UsageError for an unknown one.

    Where there are too many, as many of each group are taken, whatever their order in the manifest. Which ones goes by
    their ids, so that a group keeps its jobs while others begin to run.
    """
    columns = board.columns
    records = board.snapshot.records
    unknown = [job for job in ids if job not in records]
    if unknown:
        raise UsageError(f"unknown job {unknown[0]!r}{nearest(unknown[0], [j for j in ids if j in records])}")
    places = columns.places_of(ids) if ids else board.places(wanted)
    by = columns.named(by)
    keys = [columns.column(key) for key in by]
    attempts = columns.column("attempt")
    has_run = [bool(value) for value in attempts.values]
    members: dict[tuple[int, ...], list[int]] = {}
    for place in places:
        if has_run[attempts.codes[place]]:
            members.setdefault(tuple(key.codes[place] for key in keys), []).append(place)
    values = {codes: tuple(key.values[code] for key, code in zip(keys, codes, strict=True)) for codes in members}
    order = sorted(members, key=lambda codes: tuple(map(sort_key, values[codes])))
    shown = order[first : first + MOST_GROUPS]
    shares = _shares([len(members[codes]) for codes in shown], MOST_JOBS)
    groups = [
        Group(values[codes], len(members[codes]), _directories(board, sample(columns.jobs, members[codes], share)))
        for codes, share in zip(shown, shares, strict=True)
    ]
    return Chosen(by, groups, first, len(order), len(places) - sum(map(len, members.values())))


def _shares(sizes: Sequence[int], most: int) -> list[int]:
    """How many of each group, at most `most` together: the same number, and all of a group that has fewer."""
    shares = [0] * len(sizes)
    for rank, place in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[place] = min(sizes[place], most // (len(sizes) - rank))
        most -= shares[place]
    return shares


def sample(jobs: Sequence[str], places: Sequence[int], number: int) -> Sequence[int]:
    """So many of the jobs at these places, in their order; by a hash of their ids, because neighbours are alike."""
    if number >= len(places):
        return places
    return sorted(heapq.nsmallest(number, places, key=lambda place: zlib.crc32(jobs[place].encode())))


def _directories(board: Board, places: Sequence[int]) -> list[tuple[str, Path]]:
    records = board.snapshot.records
    jobs = [board.columns.jobs[place] for place in places]
    return [(job, board.layout.attempt(job, records[job].attempt).directory) for job in jobs]


def compare(
    files: MetricFiles, chosen: Chosen, metric: str | None, x: str, width: int, until_s: float
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
            groups.append({"label": label, "of": group.ran, **_curve(placed, width)})
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


def _read(files: MetricFiles, chosen: Chosen, until_s: float) -> _Read:
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


def _labels(chosen: Chosen) -> list[str]:
    """What the groups are called; those that are alike as far as there is room are numbered."""
    names = [group_label(group.values[place] for group in chosen.groups) for place in range(len(chosen.by))]
    alike: Counter[str] = Counter()
    found = []
    for group in chosen.groups:
        parts = zip(chosen.by, names, group.values, strict=True)
        label = ", ".join(f"{key}={'-' if value is None else _brief(name(value))}" for key, name, value in parts)
        alike[label] += 1
        found.append(label if alike[label] == 1 else f"{label} ({alike[label]})")
    return found


def _brief(text: str) -> str:
    return text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"


def _curve(jobs: list[tuple[str, Series]], width: int) -> dict[str, Any]:
    steps = sorted({x for _, series in jobs for x in _few(series, width)})
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
        "jobs": [job for job, _ in jobs],
        "n": len(jobs),
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
    """The values at each step; of a step that a job has logged twice, the last."""
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
    labels = column.labels if column is not None else ()
    states = columns.column("state")
    points: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    lacking = total = size = 0
    for place in places:
        job = columns.jobs[place]
        at = of_x.get(job) if of_x is not None else labels[column.codes[place]] if column is not None else None
        number = None if of_y is None else of_y.get(job)
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
