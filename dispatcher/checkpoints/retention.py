"""The choice of checkpoints to keep. Pure functions, without files."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from dispatcher.checkpoints.reference import CheckpointRef
from dispatcher.errors import UsageError


@dataclass(frozen=True)
class Retention:
    """Keep the `last` n, those whose step is a multiple of `every`, and the `best` n by `metric`.

    A checkpoint that was saved with `resumable=False` has a name chosen by its job, and is never removed.
    """

    last: int = 3
    every: int | None = None
    best: int = 0
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError(f"retention: last = {self.last}: expected 1 or more checkpoints to keep")
        if self.every is not None and self.every < 1:
            raise UsageError(f"retention: every = {self.every}: expected a number of steps, 1 or more, or None")
        if self.best < 0:
            raise UsageError(f"retention: best = {self.best}: expected 0 or more")
        if self.mode not in ("min", "max"):
            raise UsageError(f"retention: mode = {self.mode!r}: expected 'min' or 'max'")

    def superfluous(self, checkpoints: Sequence[CheckpointRef], protected: Collection[str] = ()) -> list[CheckpointRef]:
        """The checkpoints to remove, the oldest first; those named in `protected` are kept."""
        series = sorted((each for each in checkpoints if each.resumable), key=lambda each: each.order)
        kept = {each.name for each in series[-self.last :]} | set(protected)
        if self.every is not None:
            kept |= {each.name for each in series if each.step % self.every == 0}
        kept |= {each.name for each in self._ranked(series)[: self.best]}
        return [each for each in series if each.name not in kept]

    def _ranked(self, series: Sequence[CheckpointRef]) -> list[CheckpointRef]:
        """The checkpoints with the metric, the best first; of equal ones the newer first."""
        sign = 1 if self.mode == "min" else -1

        def rank(each: CheckpointRef) -> float:
            value = each.metrics.get(self.metric)
            return math.inf if value is None else sign * value

        measured = [each for each in reversed(series) if math.isfinite(rank(each))]
        return sorted(measured, key=rank)
