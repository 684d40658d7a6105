"""When a training saves or leaves: decided together by all processes, without a transfer of its own.

Each process requests an Action with every block of steps, and what comes back with the block's metrics is the greatest.
Checkpoints by time are requested by process 0 alone, because clocks differ, and never while a save is in progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dispatcher.runtime import sharding
from dispatcher.runtime.preemption import Preemption
from dispatcher.runtime.training.compiled import Action

_greatest = jax.jit(jnp.max)


class Policy:
    """`preemption` reports whether this process was preempted; `interval_s` is set on one process only.

    `saving` tells whether a save of this process is in progress.
    """

    def __init__(
        self,
        mesh: Mesh,
        preemption: Preemption | None = None,
        *,
        interval_s: float | None = None,
        saving: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._preemption = preemption
        self._interval_s = interval_s
        self._saving = saving
        self._clock = clock
        self._saved_at_s = clock()
        # The step of the last resumable checkpoint that this process has saved.
        self._saved_step = -1
        self._arrays = {action: sharding.per_device_value(action, mesh) for action in Action}
        self._single_process = jax.process_count() == 1

    @property
    def requested(self) -> jax.Array:
        """What this process requests, int32[devices], as a block of steps takes it."""
        return self._arrays[self._request()]

    def after(self, previous: tuple[int, jax.Array] | None) -> Action:
        """What all processes do now: what came back with the block before this one.

        `previous` is the step at which that block ended, and its action; None: there was none.
        """
        agreed = Action.CONTINUE if previous is None else Action(int(previous[1]))
        if agreed is Action.ABORT:
            return agreed
        if self._single_process and self._is_preempted():
            return Action.EXIT
        # Requested before the last checkpoint was saved.
        fulfilled = agreed is Action.SAVE and previous is not None and self._saved_step >= previous[0]
        return Action.CONTINUE if fulfilled else agreed

    def is_exiting(self) -> bool:
        """Whether any process was preempted. Collective: all processes call it and get the same answer."""
        if self._single_process:
            return self._is_preempted()
        return bool(_greatest(self.requested) >= Action.EXIT)

    def saved(self, step: int) -> None:
        """Note that a resumable checkpoint of `step` was saved."""
        self._saved_step = step
        self._saved_at_s = self._clock()

    def _request(self) -> Action:
        if self._is_preempted():
            return Action.EXIT
        due = self._interval_s is not None and self._clock() - self._saved_at_s >= self._interval_s
        return Action.SAVE if due and not self._saving() else Action.CONTINUE

    def _is_preempted(self) -> bool:
        return self._preemption is not None and self._preemption.requested
