"""BaseTrainer: the training loop."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, NoReturn, TypeVar

import jax
import numpy as np
from flax import nnx

from dispatcher.runtime import collectives
from dispatcher.runtime.checkpoint import Contents, RandomState, Restored
from dispatcher.runtime.jobs import divergence
from dispatcher.runtime.jobs.agreement import Agreement
from dispatcher.runtime.jobs.basic import RESULT, Row
from dispatcher.runtime.jobs.save_timer import SaveTimer
from dispatcher.runtime.jobs.training_setup import EVAL_LOSS, MODEL, OPTIMIZER, EvaluationInterrupted, TrainingSetup
from dispatcher.runtime.metrics import MetricsLog
from dispatcher.runtime.step import ACTION, GRAD_NORM, LEARNING_RATE, LOSS, Action, TrainState
from dispatcher.runtime.stream import Stream

C = TypeVar("C")
M = TypeVar("M", bound=nnx.Module)

# The name of the checkpoint with the smallest evaluation loss.
BEST: Final = "best"

_log = logging.getLogger(__name__)


class BaseTrainer(TrainingSetup[C, M], Generic[C, M]):
    """A training that resumes bit for bit, whatever ended the attempt before. The user writes:

        @job("lab/train/linear")
        class Linear(BaseTrainer[LinearConfig, Transformer]):
            MODEL = Transformer
            CONFIG = LinearConfig

            def schedule(self):
                return optax.linear_schedule(self.args.peak, 0.0, self.training.steps)

    MODEL is a Flax module that is made as `MODEL(config, rngs=...)`, where `config` is of the dataclass `MODEL.CONFIG`.
    CONFIG is the dataclass of this job's own settings (`args`); a job without any leaves it out. These methods may be
    replaced: `train_source`, `eval_source`, `loss`, `evaluate`, `optimizer`, `schedule`, `make_model`, `start_from`,
    `result` (see `TrainingSetup`).

    `state` is the training state, `step` the number of updates made.
    """

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.step = 0
        # The latest metrics, and the step and the evaluation loss of the best checkpoint.
        self.measured: dict[str, float] = {}
        self.best: tuple[int, float] | None = None
        self._position: Any = None
        # Metrics of the current step when its evaluation was interrupted; None when nothing is pending.
        self._pending_metrics: dict[str, float] | None = None

    def result(self) -> Row | None:
        """The row of the results table; by default the number of steps and the latest metrics."""
        best = {} if self.best is None else {"best_step": self.best[0], f"best_{EVAL_LOSS}": self.best[1]}
        return {"steps": self.step, **self.measured, **best}

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
            stream = Stream(self.train_source())
            if self._position is not None:
                stream.seek(self._position)
            if self.main_process():
                # The result of a shorter training would count as this one's as soon as the last step is saved.
                self.spec.result_path(RESULT).unlink(missing_ok=True)
            with self._open_log() as log:
                if self._preemption is not None:
                    self._preemption.defer_exit(self.training.preemption_timeout_s)
                # The clock of one process decides for all.
                timer = SaveTimer(self.training.save_interval_s if self.main_process() else None)
                self._agreement = Agreement(self.topology.mesh, self._preemption, timer)
                self._train(stream, log)
                # A failure to commit the last step is raised in here, like any other.
                self.wait()
        return self.result()

    def restore_from_path(self, rel_path: str) -> None:
        """Continue a training of the same model: state, step, position in the data, random state.

        From another run's checkpoint the search for the best checkpoint starts over.
        """
        self.prepare()
        self._take_over(self.load_from_path(rel_path, self.tree(self.compiled_steps.abstract_state)))
        if not rel_path.startswith(self.path_of("")):
            self.best = self._pending_metrics = None

    def _train(self, stream: Stream, log: MetricsLog | None) -> None:
        training = self.training
        previous: dict[str, jax.Array] | None = None
        # Metrics that are only logged are read one step late.
        unlogged: tuple[int, dict[str, jax.Array]] | None = None
        if self._pending_metrics is not None:
            pending, self._pending_metrics = self._pending_metrics, None
            self._evaluate_and_log(stream, log, pending)
        while self.step < training.steps:
            microbatches = self._shard_microbatches(stream.take(training.batch_size))
            metrics = self._update(microbatches, np.int32(self.step))
            self.step += 1
            # Read one step late, so that the devices always have the next step queued.
            action = self.agreement.action_after(self.step, previous)
            if action is Action.ABORT and previous is not None:
                raise self._diverged(self.step - 1, previous)
            previous = metrics
            if unlogged is not None:
                self._log_metrics(log, unlogged[0], self._read(*unlogged))
                unlogged = None
            saving = action is not Action.CONTINUE or training.is_due(training.save_every, self.step)
            evaluating = training.is_due(training.eval_every, self.step)
            logging_due = training.is_due(training.log_every, self.step)
            if logging_due and not saving and not evaluating:
                unlogged = self.step, metrics
                continue
            found = self._read(self.step, metrics) if saving or evaluating or logging_due else {}
            self._finish_step(stream, log, found if logging_due else {}, saving=saving)
            if action is Action.EXIT and self.step < training.steps:
                self._exit_saved()

    def _finish_step(self, stream: Stream, log: MetricsLog | None, metrics: dict[str, float], *, saving: bool) -> None:
        """Save, evaluate and log, whichever of them is due at this step."""
        if not self.training.is_due(self.training.eval_every, self.step):
            self._evaluate_and_log(stream, log, metrics)
            if saving:
                self._save(stream, log)
            return
        # An evaluation may be slow or fail: the next attempt resumes here and starts with it.
        self._save(stream, log, pending_metrics=metrics)
        self._evaluate_and_log(stream, log, metrics)
        if self.retention().best:
            # Only now does the checkpoint have the metrics by which the best ones are kept.
            self._save(stream, log)

    def _exit_saved(self) -> NoReturn:
        self.wait()
        _log.warning("%s: preempted at step %d of %d, saved", self.spec.name, self.step, self.training.steps)
        self.exit_preempted()

    def _read(self, step: int, metrics: Mapping[str, jax.Array]) -> dict[str, float]:
        """The metrics of the update to `step`, read from the devices; FloatingPointError when it has diverged."""
        if int(metrics[ACTION]) == Action.ABORT:
            raise self._diverged(step, metrics)
        return {name: float(metrics[name]) for name in (LOSS, GRAD_NORM, LEARNING_RATE)}

    def _diverged(self, step: int, metrics: Mapping[str, jax.Array]) -> FloatingPointError:
        loss, lr = float(metrics[LOSS]), float(metrics[LEARNING_RATE])
        faults = self.compiled_steps.nonfinite_gradients(metrics)
        return divergence.step_error(faults, step, self.training.steps, loss, lr, self._last_saved())

    def _check_finite(self) -> None:
        """Raise a FloatingPointError when the state is not finite: it must not become a checkpoint."""
        faults = self.compiled_steps.nonfinite_arrays(self.live_state)
        if faults:
            raise divergence.state_error(faults, self.step, self.training.steps, self._last_saved())

    def _last_saved(self) -> str | None:
        """The URL of the last checkpoint, None when nothing was saved yet. Collective."""
        self.wait()
        latest: str | None = collectives.broadcast_result(self._latest_url)
        return latest

    def _latest_url(self) -> str | None:
        latest = type(self).latest(self.spec)
        return None if latest is None else latest.url

    def _evaluate_and_log(self, stream: Stream, log: MetricsLog | None, metrics: dict[str, float]) -> None:
        """Evaluate if it is due at this step, log the result together with `metrics`, save a new best checkpoint."""
        try:
            evaluated = self.evaluate() if self.training.is_due(self.training.eval_every, self.step) else {}
        except EvaluationInterrupted:
            # The step is saved, and the next attempt starts with its evaluation.
            self._exit_saved()
        self._log_metrics(log, self.step, metrics | evaluated)
        value = evaluated.get(EVAL_LOSS)
        # NaN must never become the best value.
        if value is not None and math.isfinite(value) and (self.best is None or value < self.best[1]):
            self.best = (self.step, value)
            self._save(stream, log, name=BEST)

    def _log_metrics(self, log: MetricsLog | None, step: int, metrics: dict[str, float]) -> None:
        if not metrics:
            return
        self.measured |= metrics
        if log is not None:
            log.log(step, metrics)
            log.progress(step, self.training.steps)

    def _save(
        self,
        stream: Stream,
        log: MetricsLog | None,
        *,
        name: str | None = None,
        pending_metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Begin to save everything that the next step depends on; a checkpoint with a `name` is not resumable.

        `pending_metrics` are logged once this step is evaluated.
        """
        self._check_finite()
        if log is not None:
            log.sync()
        measured = self.measured | dict(pending_metrics or {})
        self.save(
            name or f"step-{self.step:08d}",
            self.tree(self.live_state),
            step=self.step,
            metadata={"best": self.best, "measured": self.measured, "pending_metrics": pending_metrics},
            metrics={key: value for key, value in measured.items() if math.isfinite(value)},
            beside=Contents(position=stream.position, random=RandomState.capture(self.key)),
            resumable=name is None,
        )
        if name is None:
            self.agreement.saved(self.step)

    def _resume_or_begin(self) -> None:
        """Resume from this job's latest checkpoint; without one, keep what was restored or initialize the state."""
        self.prepare()
        resumed = self.resume(self.tree(self.compiled_steps.abstract_state))
        if resumed is not None:
            self._take_over(resumed)
            if self.best is not None and not collectives.broadcast_result(self._has_best):
                # The run was rewound to before the best checkpoint, which is gone: the search starts over.
                self.best = None
            _log.info("%s: resuming from step %d of %d", self.spec.name, self.step, self.training.steps)
        self.begin()

    def _has_best(self) -> bool:
        """Whether there is a checkpoint `best` of the best step or of a later one."""
        found = [ref for ref in type(self).checkpoints(self.spec) if ref.name == BEST]
        return self.best is not None and any(ref.step >= self.best[0] for ref in found)

    def _take_over(self, restored: Restored) -> None:
        """Continue from what a checkpoint holds."""
        self.check_model(restored)
        metadata = restored.contents.metadata
        trainable, non_trainable = self.compiled_steps.split(restored.tree[MODEL])
        self.state = TrainState(trainable, non_trainable, restored.tree[OPTIMIZER])
        self.step = restored.ref.step
        self.measured = dict(metadata.get("measured") or {})
        self.best = (metadata["best"][0], metadata["best"][1]) if metadata.get("best") else None
        self._pending_metrics = metadata.get("pending_metrics")
        self._position = restored.contents.position
        key = restored.contents.random.restore() if restored.contents.random is not None else None
        self.key = self.key if key is None else key

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
            resumed_step = self.step if self._pending_metrics is None else self.step - 1
            yield stack.enter_context(MetricsLog.of(self.spec, resumed_step=resumed_step, sinks=sinks))
