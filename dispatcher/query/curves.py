"""Curves of metrics: those of one job, along its steps or the seconds of training, and the mean over several. Pure.

A job counts from its first to its last point, between two of them on a straight line. NaN and infinity are no points;
where they were is kept apart.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from dispatcher.query.groups import in_order
from dispatcher.query.metrics import Series
from dispatcher.query.numbers import mean, std

STEP: Final = "step"
# Seconds of training, earlier attempts included.
WALL: Final = "wall_s"
# More points than a picture has pixels across.
_MOST_POINTS: Final = 2_000


class Curve:
    """One metric of a job, in the order of `x`, its steps or seconds; `nan` is where it has no finite value."""

    def __init__(self, xs: Iterable[float] = (), values: Iterable[float] = ()) -> None:
        self.x = array("d")
        self.y = array("d")
        self.nan = array("d")
        for x, value in zip(xs, values, strict=True):
            if math.isfinite(value):
                self.x.append(x)
                self.y.append(value)
            else:
                self.nan.append(x)

    def at(self, x: float) -> float | None:
        """The value at x, or on a straight line between two points; None beyond them, and where a NaN is between.

        Of several at the same x, the last.
        """
        place = bisect.bisect_right(self.x, x)
        if place and self.x[place - 1] == x:
            return self.y[place - 1]
        if not 0 < place < len(self.x):
            return None
        begin, end = self.x[place - 1], self.x[place]
        hole = bisect.bisect_right(self.nan, begin)
        if hole < len(self.nan) and self.nan[hole] < end:
            return None
        before, after = self.y[place - 1], self.y[place]
        value = before + (after - before) * (x - begin) / (end - begin)
        return value if math.isfinite(value) else None

    def slices(self, edges: list[float]) -> list[tuple[int, int]]:
        """The points from each edge to the next one."""
        places = [bisect.bisect_left(self.x, edge) for edge in edges[:-1]]
        places.append(bisect.bisect_right(self.x, edges[-1]))
        return list(itertools.pairwise(places))


class MeanCurve(msgspec.Struct, frozen=True):
    """The mean and the standard deviation of a sample (0 for one job) over `n` of the `of` jobs of a group.

    `counts` is how many of the jobs each mean is over; `nan` is where a job has no finite value.
    """

    key: tuple[str, ...]
    of: int
    n: int
    x: list[float]
    means: list[float]
    stds: list[float]
    counts: list[int]
    nan: list[float]

    @property
    def end(self) -> int:
        """Up to which point all jobs with the metric are in the mean."""
        return next((place for place, count in enumerate(self.counts) if count < self.n), len(self.counts))


def mean_curve(
    key: tuple[str, ...], of: int, curves: Sequence[Curve], x: Sequence[float], values: Sequence[Sequence[float]]
) -> MeanCurve:
    """The mean of some curves, which have these values at each x; where there are none, it has no point."""
    kept = [(at, numbers) for at, numbers in zip(x, values, strict=True) if numbers]
    return MeanCurve(
        key,
        of,
        len(curves),
        [at for at, _ in kept],
        [mean(numbers) or 0.0 for _, numbers in kept],
        [std(numbers) or 0.0 for _, numbers in kept],
        [len(numbers) for _, numbers in kept],
        sorted({at for curve in curves for at in curve.nan}),
    )


def mean_curves(groups: Mapping[str, tuple[str, ...]], series: Iterable[Series]) -> list[MeanCurve]:
    """A curve per group; `groups` has the key of each job's group. Groups without the metric have one without points.

    Of more steps than a picture shows, some are left out, not the first and the last.
    """
    members: dict[tuple[str, ...], list[Curve]] = {key: [] for key in groups.values()}
    of: dict[tuple[str, ...], int] = {}
    for key in groups.values():
        of[key] = of.get(key, 0) + 1
    for one in series:
        members[groups[one.job_id]].append(Curve(one.steps, one.values))
    found = []
    for key in in_order(members):
        steps = _thinned(sorted({step for curve in members[key] for step in (*curve.x, *curve.nan)}))
        found.append(mean_curve(key, of[key], members[key], steps, _at_steps(members[key], steps)))
    return found


def mean_within(key: tuple[str, ...], of: int, curves: Sequence[Curve], width: int) -> MeanCurve:
    """The mean of some curves in at most `width` points: at each x that they have, else as many pixels."""
    x = sorted({at for curve in curves for at in _few(curve, width)})
    if len(x) <= width:
        return mean_curve(key, of, curves, x, _at_steps(curves, x))
    pixels = edges(x[0], x[-1], width)
    return mean_curve(key, of, curves, pixels[:-1], _at_pixels(curves, pixels))


def _few(curve: Curve, width: int) -> Sequence[float]:
    """Where it has points; of more than there is room for, enough to see that, and its ends."""
    return curve.x if len(curve.x) <= width else [*curve.x[: width + 1], curve.x[-1]]


def _at_steps(curves: Sequence[Curve], steps: Sequence[float]) -> list[list[float]]:
    """The values at each step."""
    values: list[list[float]] = [[] for _ in steps]
    for curve in curves:
        for place, step in enumerate(steps):
            value = curve.at(step)
            if value is not None:
                values[place].append(value)
    return values


def _at_pixels(curves: Sequence[Curve], pixels: list[float]) -> list[list[float]]:
    """The values at each pixel: of each job the mean of what it has logged there."""
    values: list[list[float]] = [[] for _ in pixels[:-1]]
    for curve in curves:
        for pixel, (a, b) in enumerate(curve.slices(pixels)):
            value = math.fsum(curve.y[a:b]) / (b - a) if a < b else curve.at(pixels[pixel])
            if value is not None:
                values[pixel].append(value)
    return values


def edges(first: float, last: float, width: int) -> list[float]:
    """The edges of `width` pixels from the first to the last value."""
    return [first + (last - first) * pixel / width for pixel in range(width)] + [last]


def _thinned(steps: list[float]) -> list[float]:
    """At most so many steps as there are pixels, the first and the last among them."""
    if len(steps) <= _MOST_POINTS:
        return steps
    every = (len(steps) - 1) / (_MOST_POINTS - 1)
    return [steps[round(number * every)] for number in range(_MOST_POINTS)]


def along(series: Series, x: str) -> Curve | None:
    """The points of a metric along its steps, or along the seconds of training; None where it has no seconds."""
    return Curve(series.steps, series.values) if x == STEP else _by_wall(series)


def has_times(series: Series) -> bool:
    return any(map(math.isfinite, series.wall_s))


def _by_wall(read: Series) -> Curve | None:
    """The points by seconds; one of a line without them lies between its neighbours, or is left out at the ends.

    None where no line has seconds.
    """
    if not has_times(read):
        return None
    timed = [(step, at) for step, at in zip(read.steps, read.wall_s, strict=True) if math.isfinite(at)]
    wall = Curve(*zip(*timed, strict=True))
    points = []
    for step, at, value in zip(read.steps, read.wall_s, read.values, strict=True):
        second = at if math.isfinite(at) else wall.at(step)
        if second is not None:
            points.append((second, value))
    points.sort(key=operator.itemgetter(0))
    return Curve(*zip(*points, strict=True))
