"""Trainer: a training of any model, on any mesh, from any data, that resumes bit for bit."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dispatcher import contract
from dispatcher.contract import SPEED
from dispatcher.errors import ConfigError, UsageError
from dispatcher.runtime import adapters, collectives
from dispatcher.runtime.checkpoint import Contents, RandomState, Restored, Retention
from dispatcher.runtime.configuration import configure
from dispatcher.runtime.execution import Topology
from dispatcher.runtime.jobs.basic import Row
from dispatcher.runtime.jobs.batch_size_finder import FoundBatchSize, find_batch_size
from dispatcher.runtime.jobs.model_job import ModelJob
from dispatcher.runtime.jobs.saved_config import check_fields
from dispatcher.runtime.metrics import MetricsLog
from dispatcher.runtime.optimizers import OptimizerConfig, make_optimizer
from dispatcher.runtime.parameters import AbstractModel, Arrays
from dispatcher.runtime.roles import Role
from dispatcher.runtime.schedules import ScheduleConfig, make_schedule
from dispatcher.runtime.sharding import put, shape
from dispatcher.runtime.training import divergence, surroundings
from dispatcher.runtime.training.averages import statistics_of_averages
from dispatcher.runtime.training.compiled import Action, Block, at_step
from dispatcher.runtime.training.config import AUTO, Microbatching, TrainingConfig
from dispatcher.runtime.training.data import (
    Reader,
    Source,
    Streamed,
    check_data,
    check_source,
    make_reader,
    on_mesh,
    position_fits,
    row_shape,
)
from dispatcher.runtime.training.evaluation import Evaluator, check_best
from dispatcher.runtime.training.identity import DATA, Identity, Origin, identities, tell_unknown
from dispatcher.runtime.training.loop import BEST_NAME, Loop
from dispatcher.runtime.training.model_arrays import kept_arrays, load_arrays
from dispatcher.runtime.training.placement import batch_shards, make_mesh, tracing
from dispatcher.runtime.training.policy import Policy
from dispatcher.runtime.training.setup import Setup
from dispatcher.runtime.training.state import MODEL, OPTIMIZER, State
from dispatcher.runtime.training.values import LEARNING_RATE, LOSS, Mean, Value, loss_and_metrics, read

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)

_log = logging.getLogger(__name__)


class Trainer(ModelJob[C, M], Generic[C, M]):
    """A training that resumes bit for bit, whatever ended the attempt before. The user writes:

        @job("lab/digits")
        class Digits(Trainer):
            BEST = ("held_out/accuracy", "max")

            def make_model(self, rngs):
                return Classifier(rngs=rngs)

            def data(self):
                return Arrays({"image": images, "label": labels})

            def evaluations(self):
                return {"held_out": Arrays({"image": other_images, "label": other_labels})}

            def loss(self, model, batch, rngs):
                logits = model(batch["image"])
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
                return losses, {"accuracy": logits.argmax(-1) == batch["label"]}

    A loss and a metric are a `Value`: float[rows], a value for each row, or (totals, weights), float[rows] each, whose
    mean is the sum of all totals over the sum of all weights. A loss may also be float[], the mean over the rows of a
    batch without padding.

    `TRAINABLE` is the nnx filter of the variables that are trained. `BEST` names the metric of an evaluation by which
    the checkpoint `best` is chosen, and whether its smallest or largest value is the best; it is not used where there
    are no evaluations. `AXIS_RULES` map the logical axes of the model's partition specs to axes of the mesh. `UNIT` is
    what the weights of the loss count, for the metric `speed/UNIT_per_s`.

    `state` is the training state, `steps_done` the number of steps made, `model_config` the instance of the first of
    `model_classes`.
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
        self.topology: Topology = spec.topology or Topology.detect()
        self.state: State | None = None
        self.steps_done = 0
        # The latest metrics, and the step and the value of the best checkpoint.
        self.measured: dict[str, float] = {}
        self.best: tuple[int, float] | None = None
        # Of the next batch in the data; metrics of this step when its evaluation was interrupted.
        self.position: Any = None
        self.pending_metrics: dict[str, float] | None = None
        # The data of `run`, and those of the checkpoint that `position` comes from.
        self._identities: dict[str, Identity] | None = None
        self._origin: Origin | None = None
        # The rows that `run` trains on, and the step whose averages have statistics of their own.
        self._rows: Source | Streamed | None = None
        self._calibrated: int | None = None
        self._setup: Setup | None = None
        self._evaluator: Evaluator | None = None
        self._found_batch_size: FoundBatchSize | None = None
        self._roles: Mapping[str, Role] | None = None

    # What a user writes or replaces.

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

    # What it does.

    @property
    def done(self) -> bool:
        latest = type(self).latest(self.spec)
        return latest is not None and latest.step >= self.training.steps and self.saved_row() is not None

    def run(self) -> Row | None:
        """Train from the last checkpoint to the last step; exits with 75 when the job is preempted."""
        self.prepare()
        found = self._found_batch_size
        with found.forget_on_oom() if found is not None else contextlib.nullcontext():
            self._resume_or_begin()
            data = self._rows = self.data()
            self._check_data(data)
            reader = self._reader(data)
            if self.main_process():
                # The result of a shorter training would count as this one's as soon as the last step is saved.
                self.spec.result_path(contract.RESULT_FILE).unlink(missing_ok=True)
            with self._open_log() as log:
                if self._preemption is not None:
                    self._preemption.defer_exit(self.training.preemption_timeout_s)
                policy = self._policy()
                self.evaluator.is_exiting = policy.is_exiting
                try:
                    Loop(self, reader, log, policy).run()
                finally:
                    self.evaluator.is_exiting = lambda: False
                # A failure to commit the last step is raised in here, like any other.
                self.wait()
        return self.result()

    def update(self, batch: Any) -> dict[str, float]:
        """Make one step by hand on a batch of host arrays [batch_size, ...], with the bits of `run`; its metrics.

        FloatingPointError when it was not finite, unless such steps are skipped: then the state is of no use.
        """
        self.begin()
        mesh = self.setup.mesh
        placed = on_mesh(batch, mesh, microbatches=self.setup.microbatching.accumulation_steps)
        block = self.run_block(placed, 1, Policy(mesh).requested)
        if int(block.action) == Action.ABORT:
            raise divergence.block_error(self, self.steps_done, block)
        return read(at_step(block.metrics, 0))

    def evaluated(self) -> dict[str, float]:
        """The metrics of the current model on all `evaluations`, by `EVALUATION/METRIC`."""
        return self.evaluator(self.model_to_evaluate())

    def restore_from_path(self, rel_path: str) -> None:
        """Continue a training of the same model: state, step, position in the data, random state.

        From another run's checkpoint the search for the best checkpoint starts over.
        """
        self.prepare()
        restored = self.load_from_path(rel_path, self.setup.layout.abstract.tree)
        self.check_model(restored)
        is_own = rel_path.startswith(self.path_of(""))
        self._take_over(restored, is_own=is_own)
        if not is_own:
            self.best = self.pending_metrics = None

    def hold_model(self, arrays: Arrays, steps_done: int) -> None:
        """Make a state of a model's arrays alone, which can be evaluated and not trained."""
        self._hold({MODEL: arrays, OPTIMIZER: None}, steps_done)

    def load_model(self, rel_path: str, like: Any = None) -> Arrays:
        """The arrays of the model in another training's checkpoint, by name: for `start_from`.

        `like(rngs)` makes a model like that one, where this training's model differs.
        """
        setup = self.setup
        if like is None:
            model = setup.layout.model
        else:
            with tracing(setup.mesh, setup.placement.rules):
                model = AbstractModel.made_by(lambda: like(nnx.Rngs(self.training.seed)))
        target = kept_arrays(model, setup.placement, self.training.precision)
        arrays, restored = load_arrays(self, rel_path, target, averaged=False)
        if like is None:
            self.check_model(restored)
        return arrays

    # Its parts.

    def prepare(self) -> None:
        """Set up the mesh, the form of the model, the optimizer and the compiled functions; no arrays are made."""
        if self._setup is not None:
            return
        surroundings.keep_compiled(self.spec)
        mesh = make_mesh(self.topology, self.training.mesh)
        # First of all: the search for a batch size needs devices on which this process holds nothing.
        microbatching = self._choose_microbatching(mesh)
        self.prepare_on(mesh, microbatching)

    def prepare_on(self, mesh: Any, microbatching: Microbatching, *, trains: bool = True) -> None:
        """As `prepare`, on this mesh and with these microbatches; `trains`: false to evaluate only."""
        self._setup = setup = Setup.of(self, mesh, microbatching)
        self._evaluator = Evaluator(setup.compiled, self._sources(), mesh, microbatching.microbatch_size)
        names = self._evaluator.names()
        # What an extended `evaluated` adds is known only when it has run; errors of the other metrics are raised here.
        check_best(self.BEST, names if type(self).evaluated is Trainer.evaluated else [])
        if self.main_process():
            _log.info("%s: %s\n%s", self.spec.name, dict(mesh.shape), setup.table(trains=trains))
            if found := adapters.report(setup.layout.model):
                _log.info("%s: adapters\n%s", self.spec.name, found)
            unknown = setup.unknown_roles() if trains else None
            if unknown is not None:
                _log.warning("%s: %s", self.spec.name, unknown)
            if trains:
                surroundings.tell_inexact(self.spec.hardware.platform)

    def begin(self) -> None:
        """Prepare, and make the state unless one was restored."""
        self.prepare()
        if self.state is None:
            self.state = self.fresh_state()
            faults = self.setup.compiled.nonfinite_arrays(self.state)
            if faults:
                raise divergence.start_error(faults, "before the first step")

    def fresh_state(self) -> State:
        """The state at step 0."""
        setup = self.setup
        with tracing(setup.mesh, setup.placement.rules):
            state = setup.layout.new()
        params, variables = setup.layout.split(setup.layout.on_mesh(self.start_from()))
        return state.replace(
            params=state.params | params,
            variables=state.variables | variables,
            ema=state.ema | setup.layout.averages(params | variables) if state.ema else {},
        )

    def probe_batch_size(self, per_device: int, accumulation_steps: int) -> None:
        """Make two steps with `per_device` rows at a time on each device, to see whether they fit into memory."""
        mesh = make_mesh(self.topology, self.training.mesh)
        size = per_device * batch_shards(mesh)
        self.prepare_on(mesh, Microbatching(accumulation_steps, size))
        self.begin()
        reader = make_reader(
            self.data(), accumulation_steps * size, mesh, seed=self.training.seed, microbatches=accumulation_steps
        )
        host, _ = reader.following(1)()
        for _ in range(2):
            self.run_block(reader.on_devices(host, mesh, 1), 1, Policy(mesh).requested)
        jax.block_until_ready(self.live_state)  # type: ignore[no-untyped-call]

    @property
    def setup(self) -> Setup:
        """The mesh, the form of the model and the compiled functions; prepared on first use."""
        self.prepare()
        assert self._setup is not None, "prepare makes it"
        return self._setup

    @property
    def evaluator(self) -> Evaluator:
        """Evaluates arrays of the model."""
        self.prepare()
        assert self._evaluator is not None, "prepare makes it"
        return self._evaluator

    @property
    def roles(self) -> Mapping[str, Role]:
        """What each of the model's variables is, by name: a kernel, a bias, a scale, an embedding, or unknown."""
        if self._roles is None:
            self.prepare()
            assert self._roles is not None, "prepare makes it"
        return self._roles

    @property
    def live_state(self) -> State:
        """The current state; the next step deletes its arrays."""
        if self.state is None:
            raise UsageError(f"{self.spec.name}: there is no state yet: call begin() first")
        return self.state

    @property
    def axis_rules(self) -> Mapping[str, Any]:
        """The rules of the logical axes: AXIS_RULES, and those of the configuration over them."""
        return {**self.AXIS_RULES, **self.training.axis_rules}

    @property
    def reads_each_step(self) -> bool:
        """Whether `on_step` is replaced, so that the metrics of each step are read."""
        return getattr(self.on_step, "__func__", None) is not Trainer.on_step

    @property
    def configuration_in_force(self) -> Any:
        """The configuration that the trainer was made with."""
        return self._config or {}

    def model_to_evaluate(self) -> Arrays:
        """The arrays of the model with which evaluations compute: averages, where there are any."""
        self.calibrate()
        state = self.live_state
        model = state.model
        return model | {name: array.astype(model[name].dtype) for name, array in state.ema.items()}

    def calibrate(self) -> None:
        """Give averaged parameters statistics of normalization of their own, from the first rows of the training.

        Without this they have averages of the parameters' statistics, as they keep them where rows are streamed or
        the step is the user's own.
        """
        state, layout = self.live_state, self.setup.layout
        own_step = type(self).step is not Trainer.step
        if not state.ema or layout.averaged == layout.trained or self._calibrated == self.steps_done or own_step:
            return
        rows = self._rows if self._rows is not None else self.data()
        if not isinstance(rows, Streamed):
            self._calibrated = self.steps_done
            self.state = state.replace(ema=state.ema | statistics_of_averages(self, rows))

    def uses_best(self, evaluated: Mapping[str, float]) -> bool:
        """Whether an evaluation has to give BEST: without `evaluations` its default means nothing."""
        return bool(evaluated) and (self.BEST != Trainer.BEST or bool(self.evaluator.sources))

    def run_block(self, batch: Any, steps: int, requested: jax.Array) -> Block:
        """Make `steps` steps on a batch that is on the devices."""
        self.state, block = self.setup.compiled.steps(self.live_state, batch, requested, steps=steps)
        self.steps_done += steps
        return block

    def step_flops(self, batch: Any, steps: int) -> float | None:
        """The operations of one step of a block."""
        one = 0 if steps == 1 else 1
        return self.flops(jax.tree.map(lambda array: shape(array.shape[one:], array.dtype), batch))

    def hold_roles(self, roles: Mapping[str, Role]) -> None:
        """Keep the roles of the model's variables, for `optimizer`."""
        self._roles = roles

    def known_schedule(self) -> optax.Schedule | None:
        """The schedule of `optimizer`; None where that is replaced."""
        return self.schedule() if type(self).optimizer is Trainer.optimizer else None

    def known_optimizer(self) -> OptimizerConfig | None:
        """The settings of `optimizer`; None where it or its state is replaced."""
        replaced = type(self).optimizer, type(self).init_optimizer
        return self._optimization[0] if replaced == (Trainer.optimizer, Trainer.init_optimizer) else None

    def save_state(self, *, name: str | None = None, pending_metrics: Mapping[str, float] | None = None) -> None:
        """Begin to save everything that the next step depends on; a checkpoint with a `name` is not resumable.

        `pending_metrics` are logged once this step is evaluated. FloatingPointError when the state is not finite.
        """
        faults = self.setup.compiled.nonfinite_arrays(self.live_state)
        if faults:
            raise divergence.state_error(faults, self.steps_done, self.training.steps, self.last_saved())
        measured = self.measured | dict(pending_metrics or {})
        self.save(
            name or f"step-{self.steps_done:08d}",
            self.live_state.tree,
            step=self.steps_done,
            metadata={
                "best": self.best,
                "measured": self.measured,
                "pending_metrics": pending_metrics,
                "surroundings": self._surroundings(),
                "data": self._identities,
            },
            metrics={key: value for key, value in measured.items() if math.isfinite(value)},
            beside=Contents(position=self.position, random=RandomState.capture(self.live_state.key)),
            resumable=name is None,
        )

    def last_saved(self) -> str | None:
        """The URL of the last checkpoint, None when nothing was saved yet. Collective."""
        self.wait()
        latest: str | None = collectives.broadcast_result(self._latest_url)
        return latest

    def _latest_url(self) -> str | None:
        latest = type(self).latest(self.spec)
        return None if latest is None else latest.url

    def _sources(self) -> dict[str, Source]:
        found = self.evaluations()
        if not isinstance(found, Mapping):
            raise ConfigError(f"evaluations() is {type(found).__name__}: expected sources by name, {{name: Source}}")
        for name, source in found.items():
            check_source(source, f"evaluations()[{name!r}]")
        return dict(found)

    def _check_data(self, data: Any) -> None:
        """Compare the data with those of the checkpoint from which the training goes on.

        ConfigError when it resumes, they differ, and that is not accepted.
        """
        check_data(data)
        random = RandomState.capture()
        now = self._identities = collectives.broadcast_result(lambda: identities(data, self.evaluator.sources))
        # Rows were read that may have drawn some: an attempt that resumes must not draw others than one that goes on.
        random.restore()
        if self._origin is None:
            if self.main_process():
                tell_unknown(now)
            return
        found = self._origin.compared(now)
        if self._origin.is_own and found.different and not self.accept_changes:
            raise ConfigError(self._origin.refusal(found))
        if self.main_process():
            self._origin.tell(found)
        if found.different.keys() - {DATA}:
            # Its value is one of other rows.
            self.best = None
        if DATA in found.different and not (self._origin.is_own and position_fits(self.position, data)):
            self.position = None

    def _reader(self, data: Any) -> Reader:
        return make_reader(
            data,
            self.training.batch_size,
            self.setup.mesh,
            seed=self.training.seed,
            microbatches=self.setup.microbatching.accumulation_steps,
            position=self.position,
        )

    def _policy(self) -> Policy:
        # The clock of one process decides for all.
        interval_s = self.training.save_interval_s if self.main_process() else None
        return Policy(self.setup.mesh, self._preemption, interval_s=interval_s, saving=lambda: self.saving)

    def _choose_microbatching(self, mesh: Any) -> Microbatching:
        training, shards = self.training, batch_shards(mesh)
        if training.per_device_batch_size != AUTO:
            return Microbatching.of(training.batch_size, training.per_device_batch_size, shards)
        self._found_batch_size = find_batch_size(
            type(self),
            self.configuration_in_force,
            self.spec,
            self.topology,
            shards=shards,
            batch_size=training.batch_size,
            shapes={"row": row_shape(self.data()), **Setup.of(self, mesh, Microbatching(1, shards)).held()},
        )
        return Microbatching.within(training.batch_size, self._found_batch_size.rows, shards)

    def _resume_or_begin(self) -> None:
        """Resume from this job's latest checkpoint; without one, keep what was restored or make the state."""
        resumed = self.resume(self.setup.layout.abstract.tree)
        if resumed is not None:
            check_fields(type(self), resumed.contents, resumed.ref.url, model_only=True)
            self._take_over(resumed, is_own=True)
            if self.best is not None and not collectives.broadcast_result(self._has_best):
                # The run was rewound to before the best checkpoint, which is gone: the search starts over.
                self.best = None
            _log.info("%s: resuming from step %d of %d", self.spec.name, self.steps_done, self.training.steps)
        self.begin()

    def _has_best(self) -> bool:
        """Whether there is a checkpoint `best` of the best step or of a later one."""
        found = [ref for ref in type(self).checkpoints(self.spec) if ref.name == BEST_NAME]
        return self.best is not None and any(ref.step >= self.best[0] for ref in found)

    def _take_over(self, restored: Restored, *, is_own: bool) -> None:
        """Continue from what a checkpoint holds; `is_own`: one of this run, which resumes."""
        contents = restored.contents
        metadata = contents.metadata
        self._hold(restored.tree, restored.ref.step, contents.random.restore() if contents.random is not None else None)
        if is_own:
            surroundings.tell_differences(metadata.get("surroundings"), self._surroundings(), restored.ref.url)
        self._origin = Origin(restored.ref.url, metadata.get("data") or {}, is_own)
        self.measured = dict(metadata.get("measured") or {})
        self.best = (metadata["best"][0], metadata["best"][1]) if metadata.get("best") else None
        self.pending_metrics = metadata.get("pending_metrics")
        self.position = contents.position

    def _surroundings(self) -> dict[str, Any]:
        """What the bits of the next step depend on beside code, settings and data."""
        schedule = self.known_schedule()
        rate = {} if schedule is None else {LEARNING_RATE: float(schedule(jnp.int32(self.steps_done)))}
        return surroundings.found() | rate

    def _hold(self, tree: Mapping[str, Any], steps_done: int, key: jax.Array | None = None) -> None:
        layout = self.setup.layout
        key = jax.random.key(self.training.seed) if key is None else key
        step = put(np.asarray(steps_done, np.int32), layout.shardings.step)
        self.state = layout.with_tree(tree, step, put(key, layout.shardings.key))
        self.steps_done = steps_done

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[MetricsLog | None]:
        """The metrics log of this attempt on the first process, None on the others."""
        if not self.main_process():
            yield None
            return
        with contextlib.ExitStack() as stack:
            sinks: tuple[Any, ...] = ()
            if self.training.wandb:
                from dispatcher.runtime.wandb_log import WandbLog

                sinks = (stack.enter_context(contextlib.closing(WandbLog(self.spec))),)
            # The line of a step whose evaluation is pending is written again.
            resumed_step = self.steps_done if self.pending_metrics is None else self.steps_done - 1
            yield stack.enter_context(MetricsLog.of(self.spec, resumed_step=resumed_step, sinks=sinks))
