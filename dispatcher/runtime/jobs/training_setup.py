"""TrainingSetup: what a training consists of (model, data, loss, optimizer), and its state on the devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import jax
import numpy as np
import optax
from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime import sharding
from dispatcher.runtime.checkpoint import Retention
from dispatcher.runtime.configuration import configure
from dispatcher.runtime.execution import Topology
from dispatcher.runtime.jobs.agreement import Agreement
from dispatcher.runtime.jobs.batch_size_finder import FoundBatchSize, find_batch_size
from dispatcher.runtime.jobs.restoreable import RestoreableJob
from dispatcher.runtime.jobs.training_config import AUTO, DataConfig, Microbatching, TrainingConfig
from dispatcher.runtime.optimizers import OptimizerConfig, make_optimizer
from dispatcher.runtime.parameters import AbstractModel, Arrays, eval_shape
from dispatcher.runtime.schedules import ScheduleConfig, make_schedule
from dispatcher.runtime.step import CompiledSteps, TrainState, negative_log_likelihood
from dispatcher.runtime.stream import Batch, DataSource, Stream, TokenWindows, epoch_batches

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)

# The names under which a checkpoint has the model's arrays and the optimizer's state.
MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
EVAL_LOSS: Final = "eval_loss"


class EvaluationInterrupted(Exception):  # control flow, not a failure
    """The job was preempted during an evaluation."""


class TrainingSetup(RestoreableJob[C], Generic[C, M]):
    """The parts of a training that a subclass may replace, and the state that they make. `BaseTrainer` has the loop."""

    MODEL: type[Any]
    CONFIG: type[Any] = TrainingConfig
    # The type of the variables that the optimizer updates. Of all others those change that the loss changes.
    TRAINABLE: type[nnx.Variable[Any]] = nnx.Param

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.training = configure(TrainingConfig)
        self._configs = {
            cls: configure(cls) for cls in (OptimizerConfig, ScheduleConfig, DataConfig, self.MODEL.CONFIG)
        }
        self.topology: Topology = spec.topology or Topology.detect()
        self.key: jax.Array
        self.state: TrainState | None = None
        self._compiled_steps: CompiledSteps | None = None
        self._microbatching: Microbatching | None = None
        self._found_batch_size: FoundBatchSize | None = None
        self._agreement: Agreement | None = None

    @classmethod
    def config(cls) -> list[type[Any]]:
        classes = (cls.CONFIG, TrainingConfig, OptimizerConfig, ScheduleConfig, DataConfig, cls.MODEL.CONFIG)
        return list(dict.fromkeys(classes))

    @classmethod
    def model_classes(cls) -> tuple[type[Any], ...]:
        return (cls.MODEL.CONFIG,)

    def schedule(self) -> optax.Schedule:
        """The learning rate by step; by default the one that `optimization` in the configuration describes."""
        return make_schedule(self._configs[ScheduleConfig], self.training.steps)

    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer; by default the one that `optimization` in the configuration describes."""
        return make_optimizer(self._configs[OptimizerConfig], self.schedule())

    def make_model(self) -> M:
        """A new model; called inside jit."""
        model: M = self.MODEL(self.model_config, rngs=nnx.Rngs(self.training.seed))
        return model

    def start_from(self) -> Mapping[str, Any]:
        """Arrays by their names in the model that replace newly initialized ones; none by default."""
        return {}

    def load_model(self, rel_path: str, make_model: Callable[[], nnx.Module] | None = None) -> Arrays:
        """The arrays of the model in another training's checkpoint, by name: for `start_from`.

        `make_model` makes a model like that one, where this training's model differs.
        """
        model = self.compiled_steps.abstract_model if make_model is None else AbstractModel.of(eval_shape(make_model))
        target = model.abstract_arrays(self.topology.mesh)
        restored = self.load_from_path(rel_path, {MODEL: target}, partial=True)
        if make_model is None:
            self.check_model(restored)
        arrays: Arrays = restored.tree[MODEL]
        return arrays

    def train_source(self) -> DataSource:
        """The rows to train on; by default the tokens of the file `data.train`."""
        data = self._configs[DataConfig]
        if data.train is None:
            raise ConfigError("data.train: required, but not set: expected the path of an .npy file of tokens")
        return self._windows(data, data.train)

    def eval_source(self) -> DataSource | None:
        """The rows to evaluate on; by default the tokens of the file `data.eval`, None without one."""
        data = self._configs[DataConfig]
        return None if data.eval is None else self._windows(data, data.eval)

    def loss(self, model: M, batch: Any, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """The loss of a Batch in nats, summed over all targets, and the number of targets.

        In an update there is a `key`, and the model's layers are in training mode; changes of its variables are kept.
        In an evaluation `key` is None, layers are in evaluation mode, and changes are dropped.
        """
        forward: Any = model
        return negative_log_likelihood(forward(batch.inputs, segment_ids=batch.segment_ids, key=key), batch.targets)

    def evaluate(self) -> dict[str, float]:
        """Metrics of the current model, by name; by default the mean loss over `eval_source`, in nats."""
        source = self.eval_source()
        if source is None:
            return {}
        loss_sum, targets = self.total_loss(source)
        return {EVAL_LOSS: loss_sum / targets}

    def retention(self) -> Retention:
        return self.training.retention

    def prepare(self) -> None:
        """Set up microbatching, the abstract model, the optimizer and the compiled steps; no arrays are made."""
        if self._microbatching is None:
            # First of all: the search for a batch size needs devices on which this process holds nothing.
            self._microbatching = self._choose_microbatching()
        if self._compiled_steps is None:
            self.key = jax.random.key(self.training.seed)
            self._compiled_steps = CompiledSteps(
                self.make_model,
                self.loss,
                self.optimizer(),
                self.topology.mesh,
                schedule=self.schedule(),
                trainable=self.TRAINABLE,
            )
            self._agreement = Agreement(self.topology.mesh)

    def begin(self) -> None:
        """Prepare, and initialize the state unless one was restored."""
        self.prepare()
        if self.state is None:
            self.state = self.fresh_state()

    def fresh_state(self) -> TrainState:
        """The state at step 0."""
        return self._with_arrays(self.compiled_steps.init(), self.start_from())

    def probe_batch_size(self, per_device: int, accumulation_steps: int) -> None:
        """Make two updates with `per_device` rows at a time on each device, to see whether they fit into memory."""
        self._microbatching = Microbatching(accumulation_steps, per_device * self.topology.data_shards)
        self.begin()
        batch = Stream(self.train_source()).take(accumulation_steps * self.microbatching.microbatch_size)
        microbatches = self._shard_microbatches(batch)
        for step in range(2):
            self._update(microbatches, np.int32(step))
        jax.block_until_ready(self.live_state)  # type: ignore[no-untyped-call]

    @property
    def model_config(self) -> Any:
        """The model's configuration, of the dataclass MODEL.CONFIG."""
        return self._configs[self.MODEL.CONFIG]

    @property
    def configuration_in_force(self) -> Any:
        """The configuration that the trainer was made with."""
        return self._config or {}

    @property
    def compiled_steps(self) -> CompiledSteps:
        """The compiled steps and the abstract model; available after `prepare`."""
        assert self._compiled_steps is not None, "call prepare() first"
        return self._compiled_steps

    @property
    def microbatching(self) -> Microbatching:
        """How a batch is split into microbatches; available after `prepare`."""
        assert self._microbatching is not None, "call prepare() first"
        return self._microbatching

    @property
    def agreement(self) -> Agreement:
        """What all processes do next; available after `prepare`."""
        assert self._agreement is not None, "call prepare() first"
        return self._agreement

    @property
    def live_state(self) -> TrainState:
        """The current state; the next update deletes its arrays."""
        assert self.state is not None, "call begin() first"
        return self.state

    def total_loss(self, source: DataSource) -> tuple[float, int]:
        """The loss over the first epoch of `source`, summed in nats, and the number of targets."""
        loss_sum, targets = 0.0, 0
        for batch in epoch_batches(source, self.microbatching.microbatch_size):
            if self.agreement.is_exiting():
                raise EvaluationInterrupted
            sharded = sharding.shard_batch(batch, self.topology.mesh)
            state = self.live_state
            found = self.compiled_steps.evaluate(state.trainable, state.non_trainable, sharded)
            loss_sum += float(found[0])
            targets += int(found[1])
        if targets == 0:
            raise ConfigError("the evaluation data has no targets: every target is IGNORE_INDEX")
        return loss_sum, targets

    def tree(self, state: TrainState) -> dict[str, Any]:
        """`state` as it is saved, with the model as one dict: a reader need not know which arrays are trainable."""
        return {MODEL: state.trainable | state.non_trainable, OPTIMIZER: state.opt_state}

    def _shard_microbatches(self, batch: Batch) -> Batch:
        """Arrays [rows, ...] -> [accumulation_steps, microbatch_size, ...] on the mesh."""
        steps = self.microbatching.accumulation_steps
        microbatches = Batch(*(array.reshape(steps, -1, *array.shape[1:]) for array in batch))
        sharded: Batch = sharding.shard_batch(microbatches, self.topology.mesh, axis=1)
        return sharded

    def _update(self, microbatches: Batch, step: np.int32) -> dict[str, jax.Array]:
        """Make one update; its metrics, still on the devices."""
        state = self.live_state
        trainable, opt_state, changed, metrics = self.compiled_steps.update(
            state.trainable,
            state.opt_state,
            state.non_trainable,
            microbatches,
            self.key,
            step,
            self.agreement.requested,
        )
        self.state = TrainState(trainable, state.non_trainable | changed, opt_state)
        return dict(metrics)

    def _choose_microbatching(self) -> Microbatching:
        training, shards = self.training, self.topology.data_shards
        if training.per_device_batch_size != AUTO:
            return Microbatching.of(training.batch_size, training.per_device_batch_size, shards)
        self._found_batch_size = find_batch_size(
            type(self), self.configuration_in_force, self.spec, self.topology, training.batch_size
        )
        return Microbatching.within(training.batch_size, self._found_batch_size.rows, shards)

    def _with_arrays(self, state: TrainState, arrays: Mapping[str, Any]) -> TrainState:
        """`state` in which `arrays` replace those of the same names, with their shardings."""
        if not arrays:
            return state
        shardings = self.compiled_steps.shardings.trainable | self.compiled_steps.shardings.non_trainable
        unknown = sorted(arrays.keys() - shardings.keys())
        if unknown:
            raise ConfigError(f"the model has no arrays {', '.join(unknown)}")
        sharded = {name: jax.device_put(array, shardings[name]) for name, array in arrays.items()}
        trainable, non_trainable = self.compiled_steps.split(sharded)
        return TrainState(state.trainable | trainable, state.non_trainable | non_trainable, state.opt_state)

    def _windows(self, data: DataConfig, path: Any) -> TokenWindows:
        # A model of one's own may have neither.
        max_seq_len, vocab_size = (getattr(self.model_config, name, None) for name in ("max_seq_len", "vocab_size"))
        if max_seq_len is not None and data.seq_len > max_seq_len:
            raise ConfigError(
                f"data.seq_len = {data.seq_len}: expected at most {max_seq_len}, the model's model.max_seq_len"
            )
        file = self.spec.hardware.cluster.data / path
        return TokenWindows.from_file(file, data.seq_len, seed=self.training.seed, vocab_size=vocab_size)
