"""Asynchronous successive halving: which trials go on beyond a rung. Pure.

A rung is a step at which trials are compared: min_step, min_step * reduction, and so on below max_step. A trial goes
on if its value is among the best 1/reduction of the values that are known at that rung when it gets there, its own
included, and of fewer than `reduction` if it is the best. Nothing is waited for. The rule is the stopping variant of
L. Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020), arXiv:1810.05934.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

import msgspec

from dispatcher.base.schema.faults import PartFault, PartsError
from dispatcher.base.schema.kinds import TEXT, Positive, number
from dispatcher.base.schema.types import Key, Value
from dispatcher.base.values import MOST, BadValueError


def _parse_metric(value: object) -> str:
    if not isinstance(value, str) or value in ("", "step", "wall_s"):
        raise BadValueError("expected a metric of metrics.jsonl, as in val_loss")
    return value


def _parse_reduction(value: object) -> int:
    if type(value) is not int or value < 2:
        raise BadValueError("expected a whole number, 2 or more")
    return value


class Halving(msgspec.Struct, frozen=True, kw_only=True):
    """When trials are stopped early: steps as the lines of metrics have them."""

    metric: Annotated[str, Value(_parse_metric, TEXT),
        Key("a key of the lines of the attempt's `metrics.jsonl` ([jobs in JAX](jax.md) write it): `{\"step\": 120, "
            "\"val_loss\": 2.31}`, or of the file that [`metrics`](templates.md#scripts-as-they-are) of its method "
            "names. Without that file, a metric of `report_progress`, as it was when a tuner looked"),
    ]  # fmt: skip
    min_step: Annotated[Positive, Key("the step of the first rung")]
    max_step: Annotated[Positive, Key("where trials end; no rung is at or above it")]
    reduction: Annotated[
        int,
        number(2, MOST, _parse_reduction),
        Key("the best 1/`reduction` go on, and the steps of the rungs grow by that"),
    ] = 3

    def __post_init__(self) -> None:
        if self.max_step <= self.min_step:
            why = f"no rung is below it: expected more than min_step, {self.min_step}"
            raise PartsError([PartFault(".max_step", self.max_step, why)])

    def rungs(self) -> list[int]:
        """The steps of all rungs, lowest first."""
        found, step = [], self.min_step
        while step < self.max_step:
            found.append(step)
            step *= self.reduction
        return found

    def goes_on(self, value: float | None, others: Iterable[float | None], goal: str) -> bool:
        """Whether a trial with this value goes on, where other trials had `others` at the same rung; None is NaN."""
        if value is None:
            return False
        worst = math.inf if goal == "min" else -math.inf
        known = sorted((worst if one is None else one for one in (*others, value)), reverse=goal == "max")
        last = known[max(1, len(known) // self.reduction) - 1]
        return value <= last if goal == "min" else value >= last
