"""Evaluations: the metrics of a model over all rows of named sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dispatcher.errors import ConfigError, nearest
from dispatcher.runtime.parameters import Arrays
from dispatcher.runtime.training.compiled import CompiledTraining
from dispatcher.runtime.training.data import EvaluationBatch, evaluation_batches, read_batch, shapes_of_rows
from dispatcher.runtime.training.placement import batch_shards
from dispatcher.runtime.training.values import Mean

# A metric and whether a small or a large value of it is good.
Best = tuple[str, str]


class EvaluationInterrupted(Exception):  # control flow, not a failure
    """The job was preempted during an evaluation."""


class Evaluator:
    """Evaluates arrays of a model on `sources`, those of the hook `evaluations`, in batches of `rows` rows.

    `is_exiting` is asked before each batch, and ends an evaluation with EvaluationInterrupted.
    """

    def __init__(self, compiled: CompiledTraining, sources: Mapping[str, Any], mesh: Mesh, rows: int) -> None:
        self._compiled = compiled
        self.sources = sources
        self._mesh = mesh
        self._rows = rows
        self.is_exiting: Callable[[], bool] = lambda: False

    def __call__(self, model: Arrays) -> dict[str, float]:
        """The means over all rows, by `EVALUATION/METRIC`."""
        return {
            f"{name}/{metric}": value
            for name, source in self.sources.items()
            for metric, value in self.means(model, source).items()
        }

    def means(self, model: Arrays, source: Any) -> dict[str, float]:
        """The means over all rows of one source, by name."""
        sums: dict[str, tuple[float, float]] = {}
        for found in self._results(model, source):
            for name, mean in found.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = before[0] + float(mean.total), before[1] + float(mean.weight)
        return {name: total / weight if weight else math.nan for name, (total, weight) in sums.items()}

    def _results(self, model: Arrays, source: Any) -> Iterator[dict[str, Mean]]:
        """What each batch gives, read one batch late, so that the devices always have the next one queued."""
        before: dict[str, Mean] | None = None
        for batch, real in self._batches(source):
            found = self._compiled.evaluate(model, batch, real)
            if before is not None:
                yield jax.device_get(before)
            before = found
        if before is not None:
            yield jax.device_get(before)

    def _batches(self, source: Any) -> Iterator[EvaluationBatch]:
        for batch in evaluation_batches(source, self._batch_rows(source), self._mesh):
            if self.is_exiting():
                raise EvaluationInterrupted
            yield batch

    def _batch_rows(self, source: Any) -> int:
        """Of a small source no batch has more rows than it must."""
        shards = batch_shards(self._mesh)
        return min(self._rows, -(-len(source) // shards) * shards)

    def names(self) -> list[str]:
        """What an evaluation gives, by `EVALUATION/METRIC`; one row of each source is read, and nothing is computed."""
        found = []
        for name, source in self.sources.items():
            rows = self._batch_rows(source)
            batch = shapes_of_rows(read_batch(source, np.zeros(1, np.int64)), rows)
            metrics = self._compiled.metric_names(batch, padded=bool(len(source) % rows))
            found += [f"{name}/{metric}" for metric in metrics]
        return found


def check_best(best: Best | None, names: list[str]) -> None:
    """ConfigError when the metric of the best checkpoint is none of `names`, if there are any, or its direction is
    unknown."""
    if best is None:
        return
    if isinstance(best, str) or len(best) != 2 or best[1] not in ("min", "max"):
        raise ConfigError(f"BEST = {best!r}: expected a metric and 'min' or 'max': ('held_out/loss', 'min'), or None")
    if names and best[0] not in names:
        raise ConfigError(
            f"BEST = {best!r}: no evaluation gives {best[0]!r}{nearest(best[0], names)}, or None "
            "for no best checkpoint (a metric that is not computed each time is NaN the other times)"
        )


def numbers(evaluated: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that `evaluated` returned, as numbers; TypeError names one that is no single number."""
    for name, value in evaluated.items():
        array = np.asarray(value)
        if array.ndim or array.dtype.kind not in "biuf":
            seen = f"an array {list(array.shape)}" if array.ndim else type(value).__name__
            raise TypeError(f"evaluated(): {name!r} is {seen}: expected a single number")
    return {name: float(value) for name, value in evaluated.items()}


def is_better(best: Best, value: float, than: float | None) -> bool:
    """Whether a value of the metric is better than the best one so far; NaN never is."""
    if not math.isfinite(value):
        return False
    return than is None or (value < than if best[1] == "min" else value > than)
