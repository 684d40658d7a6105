"""What all processes of a training do after a step. Each asks for something, and all do the greatest."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dispatcher.runtime import sharding
from dispatcher.runtime.jobs.save_timer import SaveTimer
from dispatcher.runtime.preemption import Preemption
from dispatcher.runtime.step import REQUEST, Request

_greatest = jax.jit(jnp.max)


class Agreement:
    """Go on, save, leave or stop: what this process asks for travels with an update, and the answer comes with it.

    `preemption` says whether this process was told to leave; `timer` is only one process's, since clocks differ.
    """

    def __init__(self, mesh: Mesh, preemption: Preemption | None = None, timer: SaveTimer | None = None) -> None:
        self._preemption = preemption
        self._timer = timer or SaveTimer(None)
        self._arrays = {each: sharding.for_each_device(each, mesh) for each in Request}
        self._alone = jax.process_count() == 1
        # The step of the last checkpoint that a restart goes on from, as far as this process has saved any.
        self._saved_step = 0

    @property
    def asked(self) -> jax.Array:
        """What this process asks for, as an update takes it."""
        return self._arrays[self._asked()]

    def answer(self, step: int, before: Mapping[str, jax.Array] | None) -> Request:
        """What all processes do after `step`: what one of them has asked for in the step `before`, by its measures."""
        found = Request.GO_ON if before is None else Request(int(before[REQUEST]))
        if found is Request.STOP:
            return found
        if self._alone and self._is_told():
            return Request.LEAVE
        # Asked for before the last checkpoint was saved.
        answered = found is Request.SAVE and self._saved_step >= step - 1
        return Request.GO_ON if answered else found

    def is_leaving(self) -> bool:
        """Whether one of the processes was told to leave: all hear the same, and all have to ask."""
        if self._alone:
            return self._is_told()
        return bool(_greatest(self.asked) >= Request.LEAVE)

    def saved(self, step: int) -> None:
        """A checkpoint of `step` was saved that a restart goes on from."""
        self._saved_step = step
        self._timer.restart()

    def _asked(self) -> Request:
        if self._is_told():
            return Request.LEAVE
        return Request.SAVE if self._timer.due else Request.GO_ON

    def _is_told(self) -> bool:
        return self._preemption is not None and self._preemption.requested
