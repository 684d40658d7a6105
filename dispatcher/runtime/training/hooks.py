"""What a user writes or replaces of a trainer, with what each hook does by default."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import optax
from flax import nnx

from dispatcher.contract import SPEED
from dispatcher.errors import ConfigError
from dispatcher.runtime.checkpoint import Retention
from dispatcher.runtime.configuration import configure
from dispatcher.runtime.jobs.basic import Row
from dispatcher.runtime.jobs.model_job import ModelJob
from dispatcher.runtime.optimizers import OptimizerConfig, make_optimizer
from dispatcher.runtime.parameters import Arrays
from dispatcher.runtime.roles import Role
from dispatcher.runtime.schedules import ScheduleConfig, make_schedule
from dispatcher.runtime.training.config import TrainingConfig
from dispatcher.runtime.training.data import Source, Streamed
from dispatcher.runtime.training.setup import Setup
from dispatcher.runtime.training.state import State
from dispatcher.runtime.training.values import LOSS, Mean, Value, loss_and_metrics

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)


class TrainerHooks(ModelJob[C, M], Generic[C, M]):
    """The hooks of a Trainer, and what they may read.

    A loss and a metric are a `Value`: float[rows], a value for each row, or (totals, weights), float[rows] each, whose
    mean is the sum of all totals over the sum of all weights. A loss may also be float[], the mean over the rows of a
    batch without padding.

    `TRAINABLE` is the nnx filter of the variables that are trained. `BEST` names the metric of an evaluation by which
    the checkpoint `best` is chosen, and whether its smallest or largest value is the best; it is not used where there
    are no evaluations. `AXIS_RULES` map the logical axes of the model's partition specs to axes of the mesh. `UNIT` is
    what the weights of the loss count, for the metric `speed/UNIT_per_s`.
    """

    CONFIG: type[Any] = TrainingConfig
    TRAINABLE: ClassVar[nnx.filterlib.Filter] = nnx.Param
    BEST: ClassVar[tuple[str, Literal["min", "max"]] | None] = ("held_out/loss", "min")
    AXIS_RULES: ClassVar[Mapping[str, Any]] = {}
    UNIT: ClassVar[str] = "rows"

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.training = configure(TrainingConfig)
        self._optimization = configure(OptimizerConfig), configure(ScheduleConfig)
        self.steps_done = 0
        # The latest metrics, and the step and the value of the best checkpoint.
        self.measured: dict[str, float] = {}
        self.best: tuple[int, float] | None = None

    @property
    @abstractmethod
    def setup(self) -> Setup:
        """The mesh, the form of the model and the compiled functions; prepared on first use."""

    @property
    @abstractmethod
    def roles(self) -> Mapping[str, Role]:
        """What each of the model's variables is, by name: a kernel, a bias, a scale, an embedding, or unknown."""

    @classmethod
    def config(cls) -> type[Any] | Sequence[type[Any]]:
        """The dataclass of the job's own settings, or several, the first that of `args`; by default CONFIG."""
        return cls.CONFIG

    @classmethod
    def config_classes(cls) -> tuple[type[Any], ...]:
        """What `config` returns, and what every trainer is told."""
        return tuple(dict.fromkeys((*super().config_classes(), TrainingConfig, OptimizerConfig, ScheduleConfig)))

    def data(self) -> Source | Streamed:
        """The rows to train on."""
        raise NotImplementedError(f"{type(self).__qualname__} has no data(self), which returns the rows to train on")

    def loss(self, model: M, batch: Any, rngs: nnx.Rngs) -> Value | tuple[Value, dict[str, Value]]:
        """The loss of the rows of a batch, or the loss and metrics by name; traced.

        `rngs` has other keys in each step and microbatch. What the pass changes of the model's variables is kept.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no loss(self, model, batch, rngs)")

    def evaluations(self) -> Mapping[str, Source]:
        """The sources of rows to evaluate on, by name; none by default."""
        return {}

    def evaluate(self, model: M, batch: Any) -> Mapping[str, Value]:
        """The metrics of the rows of a batch; traced, with the model in evaluation mode. By default those of `loss`.

        What the pass changes of the model's variables is dropped. The random keys that the default gives to `loss` are
        the same each time.
        """
        value, metrics = loss_and_metrics(self.loss(model, batch, nnx.Rngs(self.training.seed)))
        return {LOSS: value, **metrics}

    def schedule(self) -> optax.Schedule:
        """The learning rate by step; by default the one that `optimization` in the configuration describes."""
        return make_schedule(self._optimization[1], self.training.steps)

    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer; by default the one that `optimization` in the configuration describes."""
        schedule = self.schedule()
        if not callable(schedule):
            raise ConfigError(
                f"schedule() is {schedule!r}: expected a function of the step: optax.constant_schedule(...)"
            )
        return make_optimizer(self._optimization[0], schedule, self.roles)

    def init_optimizer(self, params: Arrays) -> Any:
        """The optimizer's first state; replaced by a `step` that does not use `optimizer`, or uses several. Traced."""
        return self.optimizer().init(params)

    def step(self, state: State, batch: Any) -> tuple[State, Mapping[str, Mean]]:
        """The state after one step on a batch [batch_size, ...], and its metrics; traced.

        By default gradients of `loss` over all microbatches, then `optimizer`. An own one may use `gradients`, `merge`
        and `finish` of `self.setup.updater`.
        """
        updater = self.setup.updater
        return updater.apply(state, updater.gradients(state, batch, self.loss))

    def flops(self, batch: Any) -> float | None:
        """The operations of a step on a batch of such shapes, [batch_size, ...], for `speed/mfu`; None: unknown."""
        return None

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after each step, one block late, on every process; does nothing by default."""

    def start_from(self) -> Mapping[str, Any]:
        """Arrays by their names in the model that replace newly initialized ones; none by default."""
        return {}

    def retention(self) -> Retention:
        return self.training.retention

    def result(self) -> Row | None:
        """The row of the results table; by default the number of steps and the latest metrics, without speeds."""
        kept = {name: value for name, value in self.measured.items() if not name.startswith(SPEED)}
        if self.best is None or self.BEST is None:
            return {"steps": self.steps_done, **kept}
        return {"steps": self.steps_done, **kept, "best_step": self.best[0], f"best_{self.BEST[0]}": self.best[1]}
