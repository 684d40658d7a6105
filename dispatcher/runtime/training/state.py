"""The state of a training on the devices, and its form in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import jax

from dispatcher.runtime.parameters import Arrays

# The names under which a checkpoint has the model's arrays, the optimizer's state and the averaged parameters.
MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
EMA: Final = "ema"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """All that a step depends on, and all that it changes.

    `step` int32[] is the number of steps done, `key` the random key that every step derives its own from. `params` are
    the variables that are trained (`Trainer.TRAINABLE`), by name; `variables` the model's others, of which a step
    changes what the loss changes; `opt_state` is the optimizer's. `ema` has the averages of `params`, and is empty
    where none are kept. `faults` bool[1 + params] tells what was not finite in the last step: the loss, then the
    gradient of each of `params` in the order of their names; it is not saved.
    """

    step: jax.Array
    key: jax.Array
    params: Arrays
    variables: Arrays
    opt_state: Any
    ema: Arrays
    faults: jax.Array

    def replace(self, **changes: Any) -> State:
        """The state with these fields."""
        return replace(self, **changes)

    @property
    def model(self) -> Arrays:
        """All of the model's arrays."""
        return self.params | self.variables

    @property
    def tree(self) -> dict[str, Any]:
        """What a checkpoint has; a reader need not know which of the model's arrays are trained."""
        averaged = {EMA: self.ema} if self.ema else {}
        return {MODEL: self.model, OPTIMIZER: self.opt_state, **averaged}
