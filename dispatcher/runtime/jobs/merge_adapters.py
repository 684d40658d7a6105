"""MergeAdapters: the base model with trained adapters merged, as a checkpoint."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import jax

from dispatcher.errors import ConfigError
from dispatcher.runtime.adapters import adapted, merged
from dispatcher.runtime.jobs.basic import Row
from dispatcher.runtime.jobs.evaluation import EvaluationJob
from dispatcher.runtime.training.state import MODEL
from dispatcher.runtime.training.trainer import Trainer

C = TypeVar("C")

MERGED: Final = "merged"


class MergeAdapters(EvaluationJob[C]):
    """Merges the adapters of a trainer's model, and saves what is then a base model. The user writes:

        @job("lab/lora/merge")
        class MergeLora(MergeAdapters):
            TRAINER = Lora

    It is restored from a checkpoint of the trainer. Its own checkpoint `merged` has the arrays of the base model by
    their names there, for jobs that know nothing of adapters. Its row has the `step`, and the number of `layers`.
    """

    def run(self) -> Row:
        self._check_restored()
        model = self.trainer.setup.layout.model
        layers = adapted(model.merge(model.shapes()))
        if not layers:
            raise ConfigError(f"the model of {self.TRAINER.__qualname__} has no adapters: there is nothing to merge")
        arrays = jax.jit(lambda arrays: merged(model, arrays))(self.trainer.live_state.model)
        self.save(MERGED, {MODEL: arrays}, step=self.trainer.steps_done)
        return {"step": self.trainer.steps_done, "layers": len(layers)}

    def _check_trainer(self, trainer: Trainer[Any, Any]) -> None:
        """It needs no evaluations."""
