"""The state of a training on the devices, and its form in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp

from dispatcher.errors import ConfigError
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
    changes what the loss changes; `opt_state` is the optimizer's. `ema` has the averages of `params` and statistics of
    normalization (nnx.BatchStat) that fit them, and is empty where none are kept. `faults` bool[1 + params] tells what
    was not finite in the last step: the loss, then the gradient of each of `params` in the order of their names; it is
    not saved.
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


def check_same_form(before: State, after: Any, made_by: str) -> None:
    """ConfigError unless a step has returned a state with the arrays, shapes and types of the one that it was given.

    The next step, and a training that resumes, have no other.
    """
    if not isinstance(after, State):
        raise ConfigError(f"{made_by} returned {type(after).__qualname__}: expected (state, metrics)")
    old, new = _form(before), _form(after)
    faults = [f"{name}: removed" for name in sorted(old.keys() - new.keys())]
    faults += [f"{name}: added, {new[name]}" for name in sorted(new.keys() - old.keys())]
    faults += [
        f"{name}: {old[name]} before and {new[name]} after it{_hint(old[name], new[name])}"
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    ]
    if not faults and jax.tree.map(lambda _: 0, before) != jax.tree.map(lambda _: 0, after):
        faults = ["opt_state: other containers: " + str(jax.tree.structure(after.opt_state))[:200]]
    if faults:
        raise ConfigError.of(f"{made_by} returned a state of another form than it was given", faults)


def _hint(before: str, after: str) -> str:
    if after.startswith("complex") and not before.startswith("complex"):
        return ": wrap the optimizer in optax.contrib.split_real_and_imaginary"
    return ""


def _form(state: State) -> dict[str, str]:
    """Type and shape of each array, by name."""
    leaves = jax.tree_util.tree_leaves_with_path(state.replace(step=0, key=0, faults=0))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{jnp.asarray(leaf).dtype}{list(jnp.shape(leaf))}"
        for path, leaf in leaves
    }
