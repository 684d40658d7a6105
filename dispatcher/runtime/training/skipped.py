"""Steps that are left out because they are not finite: counted between two logged ones, and told."""

from __future__ import annotations

import logging

import jax

from dispatcher.runtime.training.compiled import Block
from dispatcher.runtime.training.config import TrainingConfig
from dispatcher.runtime.training.values import SKIPPED

_log = logging.getLogger(__name__)


class SkippedSteps:
    """Counts the skipped steps of a training after step `begun`, block after block; does nothing where such a step
    stops the training. The log calls it `name`; None: this process logs nothing."""

    def __init__(self, training: TrainingConfig, begun: int, name: str | None) -> None:
        self._name = name
        self._steps = training.steps
        self._skips = training.not_finite == "skip"
        self._seen = begun
        self._count = 0

    def see(self, end: int, block: Block) -> None:
        """Count the steps of a block that ends at step `end`, once."""
        if not self._skips or end <= self._seen:
            return
        self._seen = end
        self._count += int(jax.device_get(block.faults).any(axis=1).sum())

    def read(self, end: int) -> dict[str, float]:
        """The number of skipped steps up to step `end` since the last call; the log has it, too."""
        if not self._skips:
            return {}
        count, self._count = self._count, 0
        if count and self._name is not None:
            _log.warning(
                "%s: up to step %d of %d the loss or a gradient was not finite %s, which changed nothing",
                self._name,
                end,
                self._steps,
                "in 1 step" if count == 1 else f"in {count} steps",
            )
        return {SKIPPED: float(count)}
