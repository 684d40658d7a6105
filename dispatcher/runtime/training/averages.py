"""The statistics of normalization of averaged parameters: a training's running ones are those of the latest parameters.

A layer gives the statistics of a batch as a part of its running ones: `momentum * old + (1 - momentum) * new`. Passes
with two different old ones tell the momentum, so that no kind of layer must be known: it is one number for an array.
What a pass changes in another way, such as the vector of nn.SpectralNorm, keeps the average of the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp

from dispatcher.runtime.parameters import Arrays
from dispatcher.runtime.training.data import make_reader
from dispatcher.runtime.training.state import State
from dispatcher.runtime.training.step import Loss, Updater, passes

if TYPE_CHECKING:
    from dispatcher.runtime.training.trainer import Trainer

# From the rows of so many batches, if there are as many.
_BATCHES: Final = 64


def statistics_of_averages(trainer: Trainer[Any, Any], rows: Any) -> Arrays:
    """The statistics that the averaged parameters have on the first `rows` of a training. Collective."""
    setup, training = trainer.setup, trainer.training
    count = min(_BATCHES, -(-len(rows) // training.batch_size))
    reader = make_reader(
        rows,
        training.batch_size,
        setup.mesh,
        seed=training.seed,
        microbatches=setup.microbatching.accumulation_steps,
    )
    sums: Arrays | None = None
    for _ in range(count):
        host, _ = reader.following(1)()
        found = setup.compiled.batch_moments(trainer.live_state, reader.on_devices(host, setup.mesh, 1))
        sums = found if sums is None else jax.tree.map(jnp.add, sums, found)
    means = {name: array / count for name, array in (sums or {}).items()}
    placed: Arrays = jax.device_put(
        {name: array - _square(name, means) for name, array in means.items()},
        {name: setup.layout.shardings.ema[name] for name in means},
    )
    return placed


def batch_moments(updater: Updater, state: State, batch: Any, loss: Loss) -> Arrays:
    """The statistics that the averaged parameters have on a batch, with second moments in place of variances: variances
    of parts do not add up. Traced."""
    params = {name: state.ema[name].astype(array.dtype) for name, array in state.params.items()}
    # Not the averages: what was computed for this step before must come out again.
    averaged = {name: array for name, array in state.ema.items() if name not in params}
    old = {name: state.variables[name].astype(array.dtype) for name, array in averaged.items()}
    one_pass, microbatches = passes(updater, batch, loss)

    def of_microbatch(microbatch: Any) -> Arrays:
        def after(before: Arrays) -> Arrays:
            typed = {name: array.astype(state.variables[name].dtype) for name, array in before.items()}
            changed = one_pass(params, state.variables | typed, *microbatch)[1][2]
            return {name: changed.get(name, typed[name]).astype(array.dtype) for name, array in before.items()}

        first = after(old)
        # A layer that only uses its statistics must have its own, else those behind it get other inputs.
        far = {name: jnp.where(first[name] == array, 0, 1 + jnp.abs(array)) for name, array in old.items()}
        second = after({name: array + far[name] for name, array in old.items()})
        new = {name: _new(old[name], first[name], second[name], far[name], averaged[name]) for name in old}
        return {name: array + _square(name, new) for name, array in new.items()}

    moments = jax.lax.map(of_microbatch, microbatches)
    return {name: jnp.mean(array, axis=0) for name, array in moments.items()}


def _new(old: jax.Array, first: jax.Array, second: jax.Array, far: jax.Array, otherwise: jax.Array) -> jax.Array:
    """The statistics of a batch, which have led from `old` to `first`, and from `old + far` to `second`; `otherwise`
    where no momentum leads all of the array there."""
    distance = jnp.maximum(far, 1)
    found = (second - first) / distance
    rounding = 1e-3 + 4e-7 * jnp.maximum(jnp.abs(first), jnp.abs(second)) / distance
    low = jnp.max(found - rounding, initial=-jnp.inf, where=far != 0)
    high = jnp.min(found + rounding, initial=jnp.inf, where=far != 0)
    momentum = (low + high) / 2
    known = (low <= high) & (momentum > -1e-4) & (momentum < 0.9999)
    new = jnp.where(known, (first - momentum * old) / jnp.where(known, 1 - momentum, 1), otherwise)
    return jnp.where(far == 0, old, new)


def _square(name: str, arrays: Mapping[str, jax.Array]) -> jax.Array | float:
    """Of the mean beside a variance; 0 beside anything else."""
    layer, _, last = name.rpartition("/")
    mean = arrays.get(f"{layer}/mean" if layer else "mean") if last == "var" else None
    return 0.0 if mean is None or mean.shape != arrays[name].shape else jnp.square(mean)
