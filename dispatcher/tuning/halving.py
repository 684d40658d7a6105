"""Asynchronous successive halving: which trials go on beyond a rung. Pure.

A rung is a step at which trials are compared: min_step, min_step * reduction, and so on below max_step. A trial goes
on if its value is among the best 1/reduction of the values that are known at that rung when it gets there, its own
included, and of fewer than `reduction` if it is the best. Nothing is waited for. The rule is the stopping variant of
L. Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020), arXiv:1810.05934.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dispatcher.base.values import shown
from dispatcher.matrix.faults import Faults

_KEYS = ("metric", "min_step", "reduction", "max_step")


class Halving(msgspec.Struct, frozen=True, kw_only=True):
    """`metric` is a key of the lines of metrics.jsonl; steps as they have them."""

    metric: str
    min_step: int
    max_step: int
    reduction: int = 3

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


def read_halving(document: Mapping[str, Any], faults: Faults) -> Halving | None:
    """The key `halving` of a study; what is wrong with it is added to `faults`."""
    faults.keys(document, _KEYS, "halving.")
    metric = document.get("metric")
    if not isinstance(metric, str) or metric in ("", "step", "wall_s"):
        faults.append(f"halving.metric = {shown(metric)}: expected a metric of metrics.jsonl, as in val_loss")
    numbers = {}
    for key, least, default in (("min_step", 1, None), ("reduction", 2, 3), ("max_step", 1, None)):
        value = document.get(key, default)
        if type(value) is int and value >= least:
            numbers[key] = value
        else:
            faults.append(f"halving.{key} = {shown(value)}: expected a whole number, {least} or more")
    if len(numbers) < 3 or not isinstance(metric, str):
        return None
    if numbers["max_step"] <= numbers["min_step"]:
        faults.append(
            f"halving.max_step = {numbers['max_step']}: no rung is below it: expected more than min_step, "
            f"{numbers['min_step']}"
        )
        return None
    return Halving(metric=metric, **numbers)
