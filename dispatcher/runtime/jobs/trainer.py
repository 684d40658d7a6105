"""BaseTrainer: the training loop."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, NoReturn, TypeVar

import jax
import numpy as np
import optax
from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime import collectives, sharding
from dispatcher.runtime.checkpoint import Contents, RandomState, Restored, Retention
from dispatcher.runtime.configuration import configure
from dispatcher.runtime.execution import Topology
from dispatcher.runtime.jobs import divergence
from dispatcher.runtime.jobs.agreement import Agreement
from dispatcher.runtime.jobs.basic import RESULT, Row
from dispatcher.runtime.jobs.fitting import Fit, find_batch_size
from dispatcher.runtime.jobs.restoreable import RestoreableJob
from dispatcher.runtime.jobs.save_timer import SaveTimer
from dispatcher.runtime.jobs.training_config import FIND, DataConfig, Portions, TrainingConfig
from dispatcher.runtime.metrics import MetricsLog
from dispatcher.runtime.optimizers import OptimizerConfig, make_optimizer
from dispatcher.runtime.parameters import Arrays, Skeleton, abstract
from dispatcher.runtime.schedules import ScheduleConfig, make_schedule
from dispatcher.runtime.step import (
    GRADIENT_NORM,
    LEARNING_RATE,
    LOSS,
    REQUEST,
    Programs,
    Request,
    TrainState,
    negative_log_likelihood,
)
from dispatcher.runtime.stream import Batch, Source, Stream, TokenWindows, whole_epoch

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)

BEST: Final = "best"
MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
HELD_OUT_LOSS: Final = "held_out_loss"

_log = logging.getLogger(__name__)


class _CutOffError(Exception):
    """Told to leave in the middle of an evaluation."""


class BaseTrainer(RestoreableJob[C], Generic[C, M]):
    """A training that goes on where it was, bit for bit, whatever ended the attempt before. The user writes:

        @job("lab/train/linear")
        class Linear(BaseTrainer[LinearConfig, Transformer]):
            MODEL = Transformer
            CONFIG = LinearConfig

            def schedule(self):
                return optax.linear_schedule(self.args.peak, 0.0, self.training.steps)

    MODEL is a Flax module made as `MODEL(config, rngs=...)`, where `config` is of the dataclass `MODEL.CONFIG`.
    CONFIG is what this job can be told besides (`args`); a job that adds nothing leaves it out. What else may be
    replaced: `source`, `held_out`, `loss`, `evaluate`, `optimizer`, `make_model`, `start_from`, `result`.

    `state` is what is trained, `step` how many updates it has had.
    """

    MODEL: type[Any]
    CONFIG: type[Any] = TrainingConfig
    # The kind of variables that the optimizer changes. Of all others those change that the loss changes.
    TRAINABLE: type[nnx.Variable[Any]] = nnx.Param

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.training = configure(TrainingConfig)
        self._configs = {
            cls: configure(cls) for cls in (OptimizerConfig, ScheduleConfig, DataConfig, self.MODEL.CONFIG)
        }
        self.topology: Topology = spec.topology or Topology.detect()
        self.key: jax.Array
        self.step = 0
        self.state: TrainState | None = None
        # What was measured last, and the step and value of the best checkpoint.
        self.measured: dict[str, float] = {}
        self.best: tuple[int, float] | None = None
        self._programs: Programs | None = None
        self._portions: Portions | None = None
        self._position: Any = None
        # What belongs to the step reached, whose evaluation was cut off.
        self._unmeasured: dict[str, float] | None = None
        self._fit: Fit | None = None
        self._agreement: Agreement | None = None

    @classmethod
    def config(cls) -> list[type[Any]]:
        classes = (cls.CONFIG, TrainingConfig, OptimizerConfig, ScheduleConfig, DataConfig, cls.MODEL.CONFIG)
        return list(dict.fromkeys(classes))

    @classmethod
    def model_classes(cls) -> tuple[type[Any], ...]:
        return (cls.MODEL.CONFIG,)

    # What a training consists of.

    def schedule(self) -> optax.Schedule:
        """The learning rate over the steps; by default what `optimization` in the configuration says."""
        return make_schedule(self._configs[ScheduleConfig], self.training.steps)

    def optimizer(self) -> optax.GradientTransformation:
        """What makes updates of gradients; by default what `optimization` in the configuration says."""
        return make_optimizer(self._configs[OptimizerConfig], self.schedule())

    def make_model(self) -> M:
        """A fresh model; called inside of a compiled program."""
        model: M = self.MODEL(self.model_config, rngs=nnx.Rngs(self.training.seed))
        return model

    def start_from(self) -> Mapping[str, Any]:
        """Arrays that take the place of fresh ones, by their names in the model; none by default."""
        return {}

    def load_model(self, rel_path: str, make: Callable[[], nnx.Module] | None = None) -> Arrays:
        """The model in another training's checkpoint, arrays by name: for `start_from`.

        `make` makes a model like that one, where this training's is another.
        """
        skeleton = self.programs.skeleton if make is None else Skeleton.of(abstract(make))
        target = skeleton.target(self.topology.mesh)
        restored = self.load_from_path(rel_path, {MODEL: target}, partial=True)
        if make is None:
            self.check_model(restored)
        arrays: Arrays = restored.tree[MODEL]
        return arrays

    def source(self) -> Source:
        """The rows to train on; by default the tokens of the file that `data.train` names."""
        data = self._configs[DataConfig]
        if data.train is None:
            raise ConfigError("data.train: not said: expected the path of an .npy file of tokens")
        return self._windows(data, data.train)

    def held_out(self) -> Source | None:
        """The rows to evaluate on; by default the tokens of the file that `data.held_out` names, if it names one."""
        data = self._configs[DataConfig]
        return None if data.held_out is None else self._windows(data, data.held_out)

    def loss(self, model: M, batch: Any, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """The summed loss of a Batch in nats and the number of predictions.

        In an update there is a `key`, and the model's layers are in training mode: what they change of its variables
        counts. In an evaluation there is none, layers are in evaluation mode, and the model stays as it is.
        """
        forward: Any = model
        return negative_log_likelihood(forward(batch.inputs, segments=batch.segments, key=key), batch.targets)

    def evaluate(self) -> dict[str, float]:
        """What the model is worth now, by name; by default the loss on what `held_out` gives, in nats."""
        source = self.held_out()
        if source is None:
            return {}
        nats, count = self.total_loss(source)
        return {HELD_OUT_LOSS: nats / count}

    def result(self) -> Row | None:
        """The row of the results table; by default the steps and what was measured last."""
        best = {} if self.best is None else {"best_step": self.best[0], f"best_{HELD_OUT_LOSS}": self.best[1]}
        return {"steps": self.step, **self.measured, **best}

    # How it goes.

    def retention(self) -> Retention:
        return self.training.retention

    @property
    def done(self) -> bool:
        latest = type(self).latest(self.spec)
        return latest is not None and latest.step >= self.training.steps and self.kept_row() is not None

    def run(self) -> Row | None:
        """Train from where the last checkpoint stands to the last step; exits with 75 when it is told to leave."""
        self.prepare()
        with self._fit.trusted() if self._fit is not None else contextlib.nullcontext():
            self._go_on()
            stream = Stream(self.source())
            if self._position is not None:
                stream.seek(self._position)
            if self.main_process():
                # That of a shorter training would stand for this one as soon as the last step is saved.
                self.spec.result_path(RESULT).unlink(missing_ok=True)
            with self._open_log() as log:
                if self._preemption is not None:
                    self._preemption.hold(self.training.preemption_s)
                # The clock of one process decides for all.
                timer = SaveTimer(self.training.save_interval_s if self.main_process() else None)
                self._agreement = Agreement(self.topology.mesh, self._preemption, timer)
                self._train(stream, log)
                # The last step is worth as much as the others.
                self.wait()
        return self.result()

    def restore_from_path(self, rel_path: str) -> None:
        """Take up a training of the same model: its state, its step, where its data stands, its random numbers.

        What was measured so far is another's when the path is; then the search for the best begins anew.
        """
        self.prepare()
        self._take_up(self.load_from_path(rel_path, self.tree(self.programs.target)))
        if not rel_path.startswith(self.path_of("")):
            self.best = self._unmeasured = None

    def prepare(self) -> None:
        """Set up the programs: how many rows at once, the model without its arrays, the optimizer."""
        if self._portions is None:
            # Before anything is put onto a device: where memory is found out, this process must not hold any.
            self._portions = self._choose_portions()
        if self._programs is None:
            self.key = jax.random.key(self.training.seed)
            self._programs = Programs(
                self.make_model,
                self.loss,
                self.optimizer(),
                self.topology.mesh,
                schedule=self.schedule(),
                trainable=self.TRAINABLE,
            )
            self._agreement = Agreement(self.topology.mesh)

    def begin(self) -> None:
        """Prepare, and have a state: the one that was restored, else a fresh one."""
        self.prepare()
        if self.state is None:
            self.state = self.fresh_state()

    def fresh_state(self) -> TrainState:
        """The state that a training begins with."""
        return self._filled(self.programs.init(), self.start_from())

    @property
    def model_config(self) -> Any:
        """The model's configuration, of the dataclass MODEL.CONFIG."""
        return self._configs[self.MODEL.CONFIG]

    def try_portions(self, per_device: int, parts: int) -> None:
        """Make two updates of `parts` parts with `per_device` rows on each device, to see whether they fit."""
        self._portions = Portions(parts, per_device * self.topology.data_shards)
        self.begin()
        rows = Stream(self.source()).take(self.portions.parts * self.portions.rows)
        batch = sharding.put_rows(self._in_parts(rows), self.topology.mesh, axis=1)
        for step in range(2):
            self._update(batch, np.int32(step))
        jax.block_until_ready(self.live_state)  # type: ignore[no-untyped-call]

    @property
    def configuration_in_force(self) -> Any:
        """The configuration that the trainer was made with."""
        return self._config or {}

    @property
    def programs(self) -> Programs:
        """The compiled programs, and the model without its arrays; known once the training is prepared."""
        assert self._programs is not None, "prepare() comes first"
        return self._programs

    @property
    def portions(self) -> Portions:
        """How a batch is computed; known once the training is prepared."""
        assert self._portions is not None, "prepare() comes first"
        return self._portions

    @property
    def agreement(self) -> Agreement:
        """What all processes do next; known once the training is prepared."""
        assert self._agreement is not None, "prepare() comes first"
        return self._agreement

    @property
    def live_state(self) -> TrainState:
        """The state as it is now; its arrays are gone after the next update."""
        assert self.state is not None, "begin() comes first"
        return self.state

    def total_loss(self, source: Source) -> tuple[float, int]:
        """The loss over the first epoch of `source`: summed in nats, and over how many predictions."""
        nats, count = 0.0, 0
        for batch in whole_epoch(source, self.portions.rows):
            if self.agreement.is_leaving():
                raise _CutOffError
            placed = sharding.put_rows(batch, self.topology.mesh)
            part = self.programs.evaluate(self.live_state.trained, self.live_state.rest, placed)
            nats += float(part[0])
            count += int(part[1])
        if count == 0:
            raise ConfigError("there is nothing to predict in the held-out data")
        return nats, count

    def _train(self, stream: Stream, log: MetricsLog | None) -> None:
        training = self.training
        before: dict[str, jax.Array] | None = None
        # What only the log waits for is read one step late, too.
        late: tuple[int, dict[str, jax.Array]] | None = None
        if self._unmeasured is not None:
            found, self._unmeasured = self._unmeasured, None
            self._conclude(stream, log, found)
        while self.step < training.steps:
            batch = sharding.put_rows(self._in_parts(stream.take(training.batch_size)), self.topology.mesh, axis=1)
            measured = self._update(batch, np.int32(self.step))
            self.step += 1
            # Looked at one step late, so that the devices always have the next one to do.
            request = self.agreement.answer(self.step, before)
            if request is Request.STOP and before is not None:
                raise self._diverged(self.step - 1, before)
            before = measured
            if late is not None:
                self._note(log, late[0], self._read(*late))
                late = None
            leaving = request is Request.LEAVE
            saving = request is not Request.GO_ON or training.is_due(training.save_every, self.step)
            evaluating = training.is_due(training.evaluate_every, self.step)
            due = training.is_due(training.log_every, self.step)
            if due and not saving and not evaluating:
                late = self.step, measured
                continue
            found = self._read(self.step, measured) if saving or evaluating or due else {}
            self._finish_step(stream, log, found if due else {}, saving=saving)
            if leaving and self.step < training.steps:
                self._leave()

    def _finish_step(self, stream: Stream, log: MetricsLog | None, found: dict[str, float], *, saving: bool) -> None:
        """Save and evaluate, where this step is one to do so, and log."""
        if not self.training.is_due(self.training.evaluate_every, self.step):
            self._conclude(stream, log, found)
            if saving:
                self._save(stream, log)
            return
        # An evaluation may take long, and may fail: whoever goes on from here begins with it.
        self._save(stream, log, unmeasured=found)
        self._conclude(stream, log, found)
        if self.retention().best:
            # Which checkpoints are the best cannot be told without what was measured.
            self._save(stream, log)

    def _leave(self) -> NoReturn:
        self.wait()
        _log.warning("%s: preempted at step %d of %d, saved", self.spec.name, self.step, self.training.steps)
        self.leave()

    def _update(self, batch: Batch, step: np.int32) -> dict[str, jax.Array]:
        state = self.live_state
        words = (state.trained, state.optimizer, state.rest, batch, self.key, step, self.agreement.asked)
        trained, moments, changed, measured = self.programs.update(*words)
        self.state = TrainState(trained, state.rest | changed, moments)
        return dict(measured)

    def _choose_portions(self) -> Portions:
        training, shards = self.training, self.topology.data_shards
        if training.per_device_batch_size != FIND:
            return Portions.of(training.batch_size, training.per_device_batch_size, shards)
        self._fit = find_batch_size(
            type(self), self.configuration_in_force, self.spec, self.topology, training.batch_size
        )
        return Portions.fitting(training.batch_size, self._fit.rows, shards)

    def _read(self, step: int, measured: Mapping[str, jax.Array]) -> dict[str, float]:
        """What was measured in the update to `step`, off the devices; FloatingPointError when it has diverged."""
        if int(measured[REQUEST]) == Request.STOP:
            raise self._diverged(step, measured)
        return {name: float(measured[name]) for name in (LOSS, GRADIENT_NORM, LEARNING_RATE)}

    def _diverged(self, step: int, measured: Mapping[str, jax.Array]) -> FloatingPointError:
        loss, lr = float(measured[LOSS]), float(measured[LEARNING_RATE])
        faults = self.programs.faults_of(measured)
        return divergence.step_error(faults, step, self.training.steps, loss, lr, self._last_saved())

    def _check_finite(self) -> None:
        """Raise a FloatingPointError when the state cannot be gone on with: it must not become a checkpoint."""
        faults = self.programs.faults(self.live_state)
        if faults:
            raise divergence.state_error(faults, self.step, self.training.steps, self._last_saved())

    def _last_saved(self) -> str | None:
        """Where the last checkpoint is; None when nothing was saved yet. All processes together."""
        self.wait()
        saved: str | None = collectives.broadcast_result(
            lambda: None if (ref := type(self).latest(self.spec)) is None else ref.url
        )
        return saved

    def _conclude(self, stream: Stream, log: MetricsLog | None, found: dict[str, float]) -> None:
        """Evaluate, where this step is one to do so, and log that together with `found`."""
        try:
            evaluated = self.evaluate() if self.training.is_due(self.training.evaluate_every, self.step) else {}
        except _CutOffError:
            # Whoever goes on from here evaluates first.
            self._leave()
        self._note(log, self.step, found | evaluated)
        value = evaluated.get(HELD_OUT_LOSS)
        # NaN must never become the best value.
        if value is not None and math.isfinite(value) and (self.best is None or value < self.best[1]):
            self.best = (self.step, value)
            self._save(stream, log, name=BEST)

    def _note(self, log: MetricsLog | None, step: int, found: dict[str, float]) -> None:
        if not found:
            return
        self.measured |= found
        if log is not None:
            log.log(step, found)
            log.progress(step, self.training.steps)

    def _save(
        self,
        stream: Stream,
        log: MetricsLog | None,
        *,
        name: str | None = None,
        unmeasured: Mapping[str, float] | None = None,
    ) -> None:
        """Begin to save all that the next step depends on; under a name it is not what a restart goes on from.

        `unmeasured` is what the log will say of this step once it is evaluated.
        """
        self._check_finite()
        if log is not None:
            log.sync()
        measured = self.measured | dict(unmeasured or {})
        self.save(
            name or f"step-{self.step:08d}",
            self.tree(self.live_state),
            step=self.step,
            metadata={"best": self.best, "measured": self.measured, "unmeasured": unmeasured},
            metrics={key: value for key, value in measured.items() if math.isfinite(value)},
            beside=Contents(position=stream.position, random=RandomState.capture(self.key)),
            resumable=name is None,
        )
        if name is None:
            self.agreement.saved(self.step)

    def _go_on(self) -> None:
        """Take up the latest checkpoint of this job; without one, what was restored or a fresh state."""
        self.prepare()
        resumed = self.resume(self.tree(self.programs.target))
        if resumed is not None:
            self._take_up(resumed)
            if self.best is not None and not collectives.broadcast_result(self._has_best):
                # Somebody went back behind it: the next one that is evaluated is the best that there is.
                self.best = None
            _log.info("%s: going on from step %d of %d", self.spec.name, self.step, self.training.steps)
        self.begin()

    def _has_best(self) -> bool:
        """Whether the checkpoint `best` is there: of the step that is the best known, or of a later one."""
        found = [ref for ref in type(self).checkpoints(self.spec) if ref.name == BEST]
        return self.best is not None and any(ref.step >= self.best[0] for ref in found)

    def _take_up(self, restored: Restored) -> None:
        self.check_model(restored)
        said = restored.contents.metadata
        trained, rest = self.programs.split(restored.tree[MODEL])
        self.state = TrainState(trained, rest, restored.tree[OPTIMIZER])
        self.step = restored.ref.step
        self.measured = dict(said.get("measured") or {})
        self.best = (said["best"][0], said["best"][1]) if said.get("best") else None
        self._unmeasured = said.get("unmeasured")
        self._position = restored.contents.position
        key = restored.contents.random.restore() if restored.contents.random is not None else None
        self.key = self.key if key is None else key

    def _filled(self, state: TrainState, arrays: Mapping[str, Any]) -> TrainState:
        """`state` with `arrays` in place of those of the same names, each where it lives on the mesh."""
        if not arrays:
            return state
        places = self.programs.shardings.trained | self.programs.shardings.rest
        unknown = sorted(arrays.keys() - places.keys())
        if unknown:
            raise ConfigError(f"the model has no arrays {', '.join(unknown)}")
        placed = {name: jax.device_put(array, places[name]) for name, array in arrays.items()}
        trained, rest = self.programs.split(placed)
        return TrainState(state.trained | trained, state.rest | rest, state.optimizer)

    def _in_parts(self, batch: Batch) -> Batch:
        """[rows, ...] -> [parts, rows of a part, ...]."""
        parts = self.portions.parts
        return Batch(*(array.reshape(parts, -1, *array.shape[1:]) for array in batch))

    def tree(self, state: TrainState) -> dict[str, Any]:
        """`state` as it is saved: the model as a whole, so that others can read it without knowing what is trained."""
        return {MODEL: state.trained | state.rest, OPTIMIZER: state.optimizer}

    def _windows(self, data: DataConfig, path: Any) -> TokenWindows:
        # Of a model of one's own neither need be known.
        context, vocabulary = (getattr(self.model_config, name, None) for name in ("context", "vocabulary"))
        if context is not None and data.length > context:
            raise ConfigError(f"data.length = {data.length}: the model reads {context} tokens (model.context)")
        file = self.spec.hardware.cluster.data / path
        return TokenWindows.from_file(file, data.length, seed=self.training.seed, vocabulary=vocabulary)

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[MetricsLog | None]:
        """The log of this attempt, on the first process."""
        if not self.main_process():
            yield None
            return
        with contextlib.ExitStack() as stack:
            sinks: tuple[Any, ...] = ()
            if self.training.wandb:
                from dispatcher.runtime.wandb_log import WandbLog

                sinks = (stack.enter_context(contextlib.closing(WandbLog(self.spec))),)
            # A line of a step that is evaluated again is written again.
            resumed_step = self.step if self._unmeasured is None else self.step - 1
            yield stack.enter_context(MetricsLog.of(self.spec, resumed_step=resumed_step, sinks=sinks))
