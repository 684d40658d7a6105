"""EvaluationJob: the evaluations of a trainer on a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from dispatcher.errors import ConfigError, UsageError
from dispatcher.runtime.configuration import configuration, configure
from dispatcher.runtime.jobs.basic import Row
from dispatcher.runtime.jobs.inference_config import InferenceConfig, mesh_sizes, rows_at_once
from dispatcher.runtime.jobs.restoreable import RestoreableJob
from dispatcher.runtime.training.config import Microbatching, TrainingConfig
from dispatcher.runtime.training.evaluation import numbers
from dispatcher.runtime.training.model_arrays import kept_arrays, load_arrays
from dispatcher.runtime.training.placement import batch_shards, make_mesh
from dispatcher.runtime.training.trainer import Trainer

C = TypeVar("C")


class EvaluationJob(RestoreableJob[C], Generic[C]):
    """Runs the `evaluations` of a trainer on a checkpoint of it. The user writes:

        @job("lab/digits/evaluate")
        class EvaluateDigits(EvaluationJob):
            TRAINER = Digits

    Its row has the `step` of the checkpoint and the metrics, such as `held_out/accuracy`. TRAINER may be a subclass of
    the trainer that saved it, with other `evaluations`, another `evaluate` or `evaluated`. The configuration is the
    trainer's, from the checkpoint, and `inference`.
    """

    TRAINER: type[Trainer[Any, Any]]

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.inference = configure(InferenceConfig)
        self.RENAMED_FROM = self.TRAINER.RENAMED_FROM  # type: ignore[misc]  # this object's
        self.trainer = self._make_trainer()

    @classmethod
    def config(cls) -> type[Any] | Sequence[type[Any]]:
        return (*cls.TRAINER.config_classes(), InferenceConfig)

    @classmethod
    def checkpoint_classes(cls) -> tuple[type[Any], ...]:
        return cls.TRAINER.config_classes()

    @classmethod
    def model_classes(cls) -> tuple[type[Any], ...]:
        return cls.TRAINER.model_classes()

    def restore_from_path(self, rel_path: str) -> None:
        """Load the model's arrays from a checkpoint of the trainer onto this job's mesh."""
        setup, training = self.trainer.setup, self.trainer.training
        target = kept_arrays(setup.layout.model, setup.placement, training.precision)
        arrays, restored = load_arrays(self, rel_path, target, averaged=self.inference.ema)
        self.check_model(restored)
        self.trainer.hold_model(arrays, restored.ref.step)

    def run(self) -> Row:
        self._check_restored()
        return {"step": self.trainer.steps_done, **numbers(self.trainer.evaluated())}

    def _check_restored(self) -> None:
        if self.trainer.state is None:
            raise UsageError(f"{self.spec.name}: there is no model yet: restore a checkpoint first")

    def _check_trainer(self, trainer: Trainer[Any, Any]) -> None:
        if not trainer.evaluations() and type(trainer).evaluated is Trainer.evaluated:
            raise ConfigError(f"{self.TRAINER.__qualname__}.evaluations() is empty: there is nothing to evaluate")

    def _make_trainer(self) -> Trainer[Any, Any]:
        with configuration(self._config or {}):
            trainer = self.TRAINER(self.spec)
        self._check_trainer(trainer)
        training = trainer.training
        sizes = mesh_sizes(self.inference.mesh, training.mesh, trainer.axis_rules)
        mesh = make_mesh(trainer.topology, sizes, where="inference.mesh")
        rows = self.inference.batch_size or _rows(training, batch_shards(mesh))
        trainer.prepare_on(mesh, Microbatching(1, rows_at_once(rows, batch_shards(mesh))), trains=False)
        return trainer


def _rows(training: TrainingConfig, shards: int) -> int:
    """As many rows as the training computes at once, which fit into memory."""
    per_device = training.per_device_batch_size
    return training.batch_size if per_device is None or per_device < 1 else per_device * shards
