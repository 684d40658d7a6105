"""Curves of a metric over steps, averaged over the jobs of a group. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dispatcher.query.metrics import Series
from dispatcher.query.pivot import mean, natural, std

# More points than a picture has pixels across.
_MOST_POINTS = 2_000


class MeanCurve(msgspec.Struct, frozen=True):
    """The mean and the standard deviation of a sample (0 for one job) by step, over `n` of `of` jobs.

    `counts` is how many of the jobs each mean is over; `nan_steps` are the steps at which a job has no finite value.
    """

    key: tuple[str, ...]
    steps: list[float]
    means: list[float]
    stds: list[float]
    counts: list[int]
    n: int
    of: int
    nan_steps: list[float]

    @property
    def end(self) -> int:
        """Up to which point all jobs with the metric are in the mean."""
        return next((place for place, count in enumerate(self.counts) if count < self.n), len(self.counts))


def mean_curves(groups: Mapping[str, tuple[str, ...]], series: Iterable[Series]) -> list[MeanCurve]:
    """A curve per group; `groups` has the key of each job's group. Groups without the metric have one without steps.

    Where jobs recorded different steps, a job counts from its first to its last one, with a straight line between two
    that it recorded; where a value is not finite, the job does not count.
    """
    members: dict[tuple[str, ...], list[Series]] = {key: [] for key in groups.values()}
    of: dict[tuple[str, ...], int] = {}
    for key in groups.values():
        of[key] = of.get(key, 0) + 1
    for one in series:
        members[groups[one.job_id]].append(one)
    ordered = sorted(members, key=lambda key: tuple(map(natural, key)))
    return [_curve(key, members[key], of[key]) for key in ordered]


def _curve(key: tuple[str, ...], members: Sequence[Series], of: int) -> MeanCurve:
    curve = MeanCurve(key, [], [], [], [], len(members), of, [])
    curve.nan_steps.extend(
        sorted({s for one in members for s, v in zip(one.steps, one.values, strict=True) if not math.isfinite(v)})
    )
    for step in _thinned(sorted({step for one in members for step in one.steps})):
        values = [value for one in members if (value := value_at(one, step)) is not None]
        if values:
            curve.steps.append(step)
            curve.means.append(mean(values) or 0.0)
            curve.stds.append(std(values) or 0.0)
            curve.counts.append(len(values))
    return curve


def value_at(series: Series, step: float) -> float | None:
    """The value at a step, on a straight line between two that were recorded; None beyond them and next to a NaN."""
    place = bisect_left(series.steps, step)
    if place == len(series.steps):
        return None
    after = series.values[place]
    if series.steps[place] == step:
        return after if math.isfinite(after) else None
    if place == 0:
        return None
    begin, end = series.steps[place - 1], series.steps[place]
    before = series.values[place - 1]
    value = before + (after - before) * (step - begin) / (end - begin)
    return value if math.isfinite(value) else None


def _thinned(steps: list[float]) -> list[float]:
    """At most so many steps as there are pixels, the first and the last among them."""
    if len(steps) <= _MOST_POINTS:
        return steps
    every = (len(steps) - 1) / (_MOST_POINTS - 1)
    return [steps[round(number * every)] for number in range(_MOST_POINTS)]
