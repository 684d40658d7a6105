"""Steps that are left out because they are not finite: counted between two logged ones, and told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import jax

from dispatcher.runtime.training.compiled import Block
from dispatcher.runtime.training.values import SKIPPED

if TYPE_CHECKING:
    from dispatcher.runtime.training.trainer import Trainer

_log = logging.getLogger(__name__)


class SkippedSteps:
    """Counts the skipped steps of a trainer, block after block; does nothing where such a step stops the training."""

    def __init__(self, trainer: Trainer[Any, Any]) -> None:
        self._trainer = trainer
        self._skips = trainer.training.not_finite == "skip"
        self._seen = trainer.steps_done
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
        if count and self._trainer.main_process():
            _log.warning(
                "%s: up to step %d of %d the loss or a gradient was not finite %s, which changed nothing",
                self._trainer.spec.name,
                end,
                self._trainer.training.steps,
                "in 1 step" if count == 1 else f"in {count} steps",
            )
        return {SKIPPED: float(count)}
