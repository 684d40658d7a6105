"""How parameters and a result go together, over many jobs: how much of the result each parameter explains, and the
values of jobs side by side (parallel coordinates).

The importance of a parameter is how much of the order of the jobs by their result it explains by itself: epsilon
squared (T. L. Kelley, 1935) of the ranks of the results between the jobs with different values of it. It does not grow
with the number of values, and a job that has diverged counts no more than the worst of the others. Numbers of many
values are taken in bins of as many jobs each. What two parameters do only together is in neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.query.values import JobValues

# More jobs are sampled: what is asked for is an estimate.
_MOST_JOBS: Final = 4_000
_MOST_LINES: Final = 400
_MOST_AXES: Final = 10
_MOST_KEYS: Final = 200
_MOST_VALUES: Final = 60_000
# A number with more values is taken in bins of this many jobs at least.
_BINS: Final = 8
_BIN_JOBS: Final = 5
# Texts with more values make no axis that people can read.
_MOST_NAMES: Final = 30


class Importance(msgspec.Struct, frozen=True):
    """What one parameter explains.

    share: of the order of the jobs, 0 to 1; None where each job has a value of its own.
    trend: the rank correlation, -1 to 1; None for what is no number.
    """

    key: str
    values: int
    share: float | None
    trend: float | None


class Parameters(msgspec.Struct, frozen=True):
    """What parameters explain of a result, the greatest share first, and the values of some jobs.

    `jobs` have the result, `missing` lack it, `sampled` of those that have it were looked at. `constant` are the
    parameters with one value. Each of `rows` is a job, its values of the parameters `axes`, and its result.
    """

    jobs: int
    missing: int
    sampled: int
    importance: list[Importance]
    constant: list[str]
    axes: list[str]
    rows: list[dict[str, Any]]


def of_parameters(values: JobValues, of_y: Mapping[str, float], places: Sequence[int]) -> Parameters:
    """The importance of all parameters for the results `of_y` of the jobs at these places."""
    jobs = values.jobs
    having = [place for place in places if jobs[place] in of_y]
    known = list(values.keys.items())[:_MOST_KEYS]
    # All of this holds up other answers: with more parameters fewer jobs.
    chosen = values.sample(having, min(_MOST_JOBS, _MOST_VALUES // max(1, len(known))))
    of_jobs = ranked([of_y[jobs[place]] for place in chosen])
    found, constant = [], []
    for key, column in known:
        codes = [column.codes[place] for place in chosen]
        one = importance(key, [column.values[code] for code in codes], codes, of_jobs)
        if one.values > 1:
            found.append(one)
        elif any(codes):
            constant.append(key)
    found.sort(key=lambda one: (one.share is None, -(one.share or 0.0)))
    axes = [one.key for one in found if _is_axis(one)][:_MOST_AXES]
    keys = [(values.keys[key].codes, values.keys[key].labels) for key in axes]
    rows = [
        {
            "job": jobs[place],
            "values": [labels[codes[place]] for codes, labels in keys],
            "y": of_y[jobs[place]],
        }
        for place in values.sample(chosen, _MOST_LINES)
    ]
    return Parameters(len(having), len(places) - len(having), len(chosen), found, constant, axes, rows)


def _is_axis(one: Importance) -> bool:
    return one.trend is not None or one.values <= _MOST_NAMES


def importance(key: str, values: Sequence[Any], codes: Sequence[int], results: Sequence[float]) -> Importance:
    """What a parameter explains of results with these ranks; `codes` are equal where its values are."""
    different = len(set(codes))
    if different < 2:
        return Importance(key, different, None, None)
    given = [place for place, value in enumerate(values) if value is not None]
    if not all(_is_number(values[place]) for place in given):
        return Importance(key, different, explained(codes, results), None)
    groups = list(codes)
    ranks = ranked([values[place] for place in given])
    if different > _BINS:
        for place, group in zip(given, _bins(ranks), strict=True):
            # Apart from the codes of those without a value.
            groups[place] = -1 - group
    trend = rank_correlation(ranks, results if len(given) == len(values) else ranked([results[n] for n in given]))
    return Importance(key, different, explained(groups, results), trend or 0.0)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def explained(groups: Sequence[int], ranks: Sequence[float]) -> float | None:
    """Epsilon squared of the ranks between groups; None where each is a group of its own."""
    members: dict[int, list[float]] = {}
    for group, rank in zip(groups, ranks, strict=True):
        members.setdefault(group, []).append(rank)
    rest = len(ranks) - len(members)
    if rest < 1:
        return None
    middle = (len(ranks) + 1) / 2
    total = math.fsum((rank - middle) ** 2 for rank in ranks)
    between = math.fsum(len(of) * (math.fsum(of) / len(of) - middle) ** 2 for of in members.values())
    if total == 0.0:
        return 0.0
    within = max(0.0, total - between) / rest
    return min(1.0, max(0.0, (between - (len(members) - 1) * within) / total))


def _bins(ranks: Sequence[float]) -> list[int]:
    """For each rank its bin; equal ones are in one bin."""
    count = max(2, min(_BINS, len(ranks) // _BIN_JOBS))
    return [min(count - 1, int((rank - 0.5) * count / len(ranks))) for rank in ranks]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's coefficient of what has these ranks; None where one of both is constant."""
    middle = (len(one) + 1) / 2
    products = math.fsum((a - middle) * (b - middle) for a, b in zip(one, other, strict=True))
    size = math.fsum((a - middle) ** 2 for a in one) * math.fsum((b - middle) ** 2 for b in other)
    return products / math.sqrt(size) if size > 0.0 else None


def ranked(values: Sequence[float]) -> list[float]:
    """The ranks of values, from 1 on; equal values have the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for place in order[begin:end]:
            ranks[place] = (begin + end + 1) / 2
        begin = end
    return ranks
