"""What all processes of a training do after a step: each requests an Action, and all take the greatest."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dispatcher.runtime import sharding
from dispatcher.runtime.jobs.save_timer import SaveTimer
from dispatcher.runtime.preemption import Preemption
from dispatcher.runtime.step import ACTION, Action

_greatest = jax.jit(jnp.max)


class Agreement:
    """Requests travel with an update, and its metrics carry the answer: there is no transfer of its own.

    `preemption` reports whether this process was preempted. `timer` is set on one process only, since clocks differ.
    """

    def __init__(self, mesh: Mesh, preemption: Preemption | None = None, timer: SaveTimer | None = None) -> None:
        self._preemption = preemption
        self._timer = timer or SaveTimer(None)
        self._arrays = {action: sharding.per_device_value(action, mesh) for action in Action}
        self._single_process = jax.process_count() == 1
        # The step of the last resumable checkpoint that this process has saved.
        self._saved_step = 0

    @property
    def requested(self) -> jax.Array:
        """What this process requests, int32[devices], as an update takes it."""
        return self._arrays[self._request()]

    def action_after(self, step: int, previous_metrics: Mapping[str, jax.Array] | None) -> Action:
        """What all processes do after `step`: the greatest request among the metrics of the step before it."""
        agreed = Action.CONTINUE if previous_metrics is None else Action(int(previous_metrics[ACTION]))
        if agreed is Action.ABORT:
            return agreed
        if self._single_process and self._is_preempted():
            return Action.EXIT
        # Requested before the last checkpoint was saved.
        fulfilled = agreed is Action.SAVE and self._saved_step >= step - 1
        return Action.CONTINUE if fulfilled else agreed

    def is_exiting(self) -> bool:
        """Whether any process was preempted. Collective: all processes call it and get the same answer."""
        if self._single_process:
            return self._is_preempted()
        return bool(_greatest(self.requested) >= Action.EXIT)

    def saved(self, step: int) -> None:
        """Note that a resumable checkpoint of `step` was saved."""
        self._saved_step = step
        self._timer.restart()

    def _request(self) -> Action:
        if self._is_preempted():
            return Action.EXIT
        return Action.SAVE if self._timer.due else Action.CONTINUE

    def _is_preempted(self) -> bool:
        return self._preemption is not None and self._preemption.requested
