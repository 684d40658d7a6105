"""The loop of a training: blocks of steps, and between them evaluations, checkpoints, metrics, and the way out."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import jax

from dispatcher import contract
from dispatcher.runtime.metrics import MetricsLog
from dispatcher.runtime.training import divergence
from dispatcher.runtime.training.compiled import Action, Block, at_step, each_step
from dispatcher.runtime.training.data import Reader
from dispatcher.runtime.training.evaluation import EvaluationInterrupted, check_best, is_better, numbers
from dispatcher.runtime.training.loader import Loader
from dispatcher.runtime.training.skipped import SkippedSteps
from dispatcher.runtime.training.speed import PEAK_FLOPS, Stopwatch
from dispatcher.runtime.training.values import LOSS, read

if TYPE_CHECKING:
    from dispatcher.runtime.training.policy import Policy
    from dispatcher.runtime.training.trainer import Trainer

# The name of the checkpoint with the best value of `Trainer.BEST`.
BEST_NAME: Final = "best"
_PROFILE: Final = "profile"

_log = logging.getLogger(__name__)


class Loop:
    """Runs a trainer from its state to its last step. `log` is None on all processes but the first."""

    def __init__(self, trainer: Trainer[Any, Any], reader: Reader, log: MetricsLog | None, policy: Policy) -> None:
        self._trainer = trainer
        self._training = trainer.training
        self._log = log
        self._policy = policy
        self._watch = Stopwatch()
        self._skipped = SkippedSteps(trainer)
        self._loader = Loader(reader, trainer.setup.mesh, ahead=self._training.prefetch)
        self._previous: tuple[int, Block] | None = None
        # The block whose steps `on_step` has not seen.
        self._unseen: tuple[int, Block] | None = None
        # The metrics of a block that are only logged are read while the next one runs.
        self._unlogged: tuple[int, Block] | None = None
        self._reads_each_step = trainer.reads_each_step
        self._profiling = False
        self._checked = False
        self._flops: float | None = None

    def run(self) -> None:
        """Train to the last step; SystemExit 75 when the job is preempted."""
        with contextlib.closing(self._loader), self._profile_closed():
            if self._trainer.pending_metrics is not None:
                pending, self._trainer.pending_metrics = self._trainer.pending_metrics, None
                self._evaluate_and_log(pending)
            while self._trainer.steps_done < self._training.steps:
                self._block()

    def _block(self) -> None:
        trainer, training = self._trainer, self._training
        first, end = trainer.steps_done, training.block_end(trainer.steps_done)
        self._watch.go_on()
        loaded = self._loader.take(end - first, list(self._following(end)))
        self._profile(first, end)
        block = trainer.run_block(loaded.batch, end - first, self._policy.requested)
        if self._flops is None:
            self._flops = trainer.step_flops(loaded.batch, end - first) or math.nan
        trainer.position = loaded.position
        self._watch.waited(loaded.waited_s)
        # What the block before has brought is read now, so that the devices always have the next block queued.
        action = self._policy.after(None if self._previous is None else (first, self._previous[1].action))
        if action is Action.ABORT and self._previous is not None:
            raise divergence.block_error(trainer, *self._previous)
        self._call_on_step()
        if self._previous is not None:
            self._skipped.see(*self._previous)
        self._previous = self._unseen = end, block
        if self._unlogged is not None:
            self._write_metrics(self._unlogged[0], self._read(*self._unlogged))
            self._unlogged = None
        if not self._checked:
            self._check_variables(end, block)
        # Only now: what was read above are the speeds of the blocks before.
        self._watch.counted(end - first)
        self._after_block(end, block, action)

    def _after_block(self, end: int, block: Block, action: Action) -> None:
        training = self._training
        saving = action is not Action.CONTINUE or training.is_due(training.save_every, end)
        evaluating = training.is_due(training.eval_every, end)
        logging_due = training.is_due(training.log_every, end)
        if not saving and not evaluating:
            self._unlogged = (end, block) if logging_due else None
            return
        self._check(end, block)
        found = self._read(end, block) if logging_due else {}
        self._watch.pause()
        # Before they are saved: no later attempt makes these steps again.
        self._call_on_step()
        self._finish_block(found, saving=saving, evaluating=evaluating)
        if action is Action.EXIT and end < training.steps:
            self._exit_saved()

    def _finish_block(self, metrics: dict[str, float], *, saving: bool, evaluating: bool) -> None:
        if not evaluating:
            self._write_metrics(self._trainer.steps_done, metrics)
            if saving:
                self._save()
            return
        self._trainer.calibrate()
        # An evaluation may be slow or fail: the next attempt resumes here and starts with it.
        self._save(pending_metrics=metrics)
        self._evaluate_and_log(metrics)
        if self._trainer.retention().best:
            # Only now does the checkpoint have the metrics by which the best ones are kept.
            self._save()

    def _evaluate_and_log(self, metrics: dict[str, float]) -> None:
        """Evaluate, log the result together with `metrics`, save a new best checkpoint."""
        trainer = self._trainer
        try:
            evaluated = numbers(trainer.evaluated())
        except EvaluationInterrupted:
            # The step is saved, and the next attempt starts with its evaluation.
            self._exit_saved()
        self._write_metrics(trainer.steps_done, metrics | evaluated)
        best = trainer.BEST
        if best is None or not trainer.uses_best(evaluated):
            return
        check_best(best, list(evaluated))
        value = evaluated[best[0]]
        if not math.isfinite(value) and trainer.main_process():
            _log.warning("%s: step %d: %s is %s, never the best", trainer.spec.name, trainer.steps_done, best[0], value)
        if is_better(best, value, None if trainer.best is None else trainer.best[1]):
            trainer.best = (trainer.steps_done, value)
            self._save(name=BEST_NAME)

    def _save(self, *, name: str | None = None, pending_metrics: Mapping[str, float] | None = None) -> None:
        if self._log is not None:
            self._log.sync()
        self._trainer.save_state(name=name, pending_metrics=pending_metrics)
        if name is None:
            self._policy.saved(self._trainer.steps_done)

    def _write_metrics(self, step: int, metrics: dict[str, float]) -> None:
        if not metrics:
            return
        self._trainer.measured |= metrics
        if self._log is not None:
            self._log.log(step, metrics)
            self._log.progress(step, self._training.steps)

    def _check_variables(self, end: int, block: Block) -> None:
        """FloatingPointError when the model's variables are NaN after the first block: the first save may be far."""
        self._checked = True
        self._check(end, block)
        state = self._trainer.live_state
        faults = [name for name in self._trainer.setup.compiled.nonfinite_arrays(state) if name in state.variables]
        if faults:
            raise divergence.start_error(faults, f"after step {end}")

    def _check(self, end: int, block: Block) -> None:
        """Wait until a block has ended; FloatingPointError when it has diverged."""
        if int(block.action) == Action.ABORT:
            raise divergence.block_error(self._trainer, end, block)

    def _read(self, end: int, block: Block) -> dict[str, float]:
        """The metrics of the step `end`, the last one of `block`, and since those that were read before the speed and
        the number of skipped steps."""
        self._skipped.see(end, block)
        # Read whole: to take one step of each metric on the devices would be an operation for each.
        means = at_step(jax.device_get(dict(block.metrics)), -1)
        units = float(means[LOSS].weight) if LOSS in means else float(self._training.batch_size)
        speed = self._watch.read(
            rows=self._training.batch_size,
            units=units,
            unit=self._trainer.UNIT,
            flops=None if self._flops is None or math.isnan(self._flops) else self._flops,
            peak=self._peak(),
        )
        return read(means) | self._skipped.read(end) | speed

    def _peak(self) -> float | None:
        devices = self._trainer.setup.mesh.devices.reshape(-1)
        each = PEAK_FLOPS.get(devices[0].device_kind)
        return None if each is None else each * len(devices)

    def _call_on_step(self) -> None:
        """Call `on_step` for the steps that it has not seen."""
        if not self._reads_each_step or self._unseen is None:
            return
        (end, block), self._unseen = self._unseen, None
        steps = each_step(block.metrics)
        for number, means in enumerate(steps):
            self._trainer.on_step(end - len(steps) + number + 1, read(means))

    def _exit_saved(self) -> Any:
        trainer = self._trainer
        trainer.wait()
        _log.warning(
            "%s: preempted at step %d of %d, saved", trainer.spec.name, trainer.steps_done, self._training.steps
        )
        trainer.exit_preempted()

    def _following(self, step: int) -> Iterator[int]:
        """The numbers of steps of the blocks after `step`."""
        for _ in range(self._training.prefetch):
            if step >= self._training.steps:
                return
            end = self._training.block_end(step)
            yield end - step
            step = end

    def _profile(self, first: int, end: int) -> None:
        """Begin and end the trace around the steps that the configuration names."""
        wanted = self._training.profile
        if wanted is None or self._log is None:
            return
        if self._profiling and first >= wanted[1]:
            self._stop_profile()
        if not self._profiling and first < wanted[0] <= end:
            directory = contract.attempt_dir() or self._trainer.spec.result_path(_PROFILE).parent
            # The trace begins with this block, not with what is still queued.
            jax.block_until_ready(self._trainer.live_state.params)  # type: ignore[no-untyped-call]
            jax.profiler.start_trace(str(directory / _PROFILE))
            self._profiling = True

    def _stop_profile(self) -> None:
        jax.block_until_ready(self._trainer.live_state.params)  # type: ignore[no-untyped-call]
        jax.profiler.stop_trace()  # type: ignore[no-untyped-call]  # untyped in JAX
        self._profiling = False

    @contextlib.contextmanager
    def _profile_closed(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._profiling:
                # Without waiting for the state: after a step that failed its arrays are gone.
                jax.profiler.stop_trace()  # type: ignore[no-untyped-call]  # untyped in JAX
