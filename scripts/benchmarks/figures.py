"""Samples, ratios, targets, and the figures that the table shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Rounds = list[list[float]]


class BenchError(Exception):
    """What was to be measured did not happen as it should: a figure would be a lie."""


class Skipped(Exception):
    """A row or a comparison that cannot be had here; says why, and how to have it."""


@dataclass(frozen=True)
class Spread:
    """The median of some samples, with the smallest and the largest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        return cls(statistics.median(samples), min(samples), max(samples))

    def __str__(self) -> str:
        return f"{shown(self.median)} ({shown(self.least)}-{shown(self.most)})"


@dataclass(frozen=True)
class Target:
    """A promise: the ratio, or the figure itself where it has a unit, is at most or at least `limit`."""

    limit: float
    at_least: bool = False
    unit: str = ""

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {shown(self.limit)}{self.unit and ' ' + self.unit}"


# By the figures as the table names them at their full size. docs/measurements.md lists them too; a test compares both.
TARGETS: Final[Mapping[str, Target]] = {
    "claim, 1,200 entries": Target(2.0),
    "claim, 100,000 entries": Target(1.2),
    "claims per second, 1,200 entries": Target(10, at_least=True),
    "claims per second, 100,000 entries": Target(500, at_least=True),
    "16 processes, 2,000 entries": Target(0.6, at_least=True),
    "slot turnover, poll interval 30 s": Target(20, unit="ms"),
    "1,000 x /bin/true on 2 slots": Target(1.0, at_least=True),
    "dispatcher status, 1,200 entries": Target(3.0),
    "memory of an idle dispatcher, 100,000 entries": Target(100, unit="MiB"),
    "opening, 100,000 entries, 400,000 lines": Target(3, unit="s"),
    "memory of a pod, 1,000,000 entries": Target(700, unit="MiB"),
    "dispatcher status, 1,000,000 entries": Target(3, unit="s"),
    "a step of Trainer": Target(1.02),
    "a short step, 20 a call": Target(1.1),
    "save() of 1 GB in 200 leaves": Target(1.2),
    "save and restore 1 GB in 200 leaves": Target(1.05),
    "200 submissions to SLURM, from their files to their ids": Target(10, at_least=True),
    "remote calls for each poll, 200 submissions in flight": Target(1.05, unit="calls"),
    "from the end of a job to its record": Target(2, unit="s"),
    "slot turnover beside a host that hangs": Target(1.5),
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table. `judged` is what the target is about when it is not the ratio."""

    what: str
    ours: str = ""
    against: str = ""
    ratio: Spread | None = None
    target: Target | None = None
    judged: float | None = None
    note: str = ""
    samples: Mapping[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one, or when nothing could be measured."""
        value = self.judged if self.judged is not None else self.ratio.median if self.ratio is not None else None
        return None if self.target is None or value is None else self.target.is_met(value)


def interleave(arms: Mapping[str, Callable[[], list[float]]], rounds: int, turns: int = 1) -> dict[str, Rounds]:
    """The samples of every arm, round by round. In a round each arm has `turns` turns.

    Every other turn goes backwards, so that no arm is always first.
    """
    samples: dict[str, Rounds] = {name: [[] for _ in range(rounds)] for name in arms}
    for turn in range(rounds * turns):
        for name in list(arms) if turn % 2 == 0 else list(reversed(arms)):
            samples[name][turn // turns] += arms[name]()
    return samples


def ratio(ours: Rounds, theirs: Rounds) -> Spread:
    """Our time as a multiple of theirs, round by round."""
    return Spread.of([statistics.median(a) / statistics.median(b) for a, b in zip(ours, theirs, strict=True)])


def median_of(rounds: Rounds) -> float:
    """The median of all samples of all rounds."""
    return statistics.median([sample for samples in rounds for sample in samples])


def percentile(samples: Sequence[float], percent: int) -> float:
    """The smallest sample that is not below `percent` % of them."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def shown(number: float) -> str:
    """Three digits that matter."""
    if number and abs(number) < 0.01:
        return f"{number:.2g}"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def milliseconds(seconds: float) -> str:
    return f"{shown(seconds * 1000)} ms"
