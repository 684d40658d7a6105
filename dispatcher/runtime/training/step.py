"""One step of a training: gradients over microbatches, the update, and what was not finite. All of it is traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from dispatcher.errors import ConfigError
from dispatcher.runtime import sharding
from dispatcher.runtime.model_state import Watch, carried, strongly_typed
from dispatcher.runtime.parameters import AbstractModel, Arrays
from dispatcher.runtime.training.config import Microbatching
from dispatcher.runtime.training.placement import batch_axes, batch_shards
from dispatcher.runtime.training.precision import Precision, summed
from dispatcher.runtime.training.state import State
from dispatcher.runtime.training.updating import ValueFn, conjugated, updated
from dispatcher.runtime.training.values import (
    GRAD_NORM,
    LEARNING_RATE,
    LOSS,
    SKIPPED,
    Mean,
    check_loss,
    loss_and_metrics,
    total,
)

# (model, batch, rngs) -> Value | (Value, {name: Value})
Loss = Callable[[Any, Any, nnx.Rngs], Any]


@dataclass(frozen=True)
class Gradients:
    """What a batch gives: the gradients of its mean loss by name, the loss and the metrics, and the model's variables
    that the loss has changed.

    The gradients are those that Optax expects: of complex parameters the conjugates of what `jax.grad` returns.
    `value_fn` gives the mean loss of the same batch, with the same random keys, for other parameters: to line searches.
    """

    gradients: Arrays
    loss: Mean
    metrics: Mapping[str, Mean]
    variables: Arrays
    value_fn: ValueFn | None = None


@dataclass(frozen=True)
class Updater:
    """The parts of a default step.

    `average` is the decay of averages, None: there are none. `skips`: a step whose loss or gradient is not
    finite changes nothing but its number. `schedule` is that of `optimizer`, None: it is not known.
    """

    model: AbstractModel
    parameters: frozenset[str]
    optimizer: optax.GradientTransformation
    microbatching: Microbatching
    mesh: Mesh
    precision: Precision
    average: float | None = None
    skips: bool = False
    schedule: optax.Schedule | None = None

    def merge(self, *arrays: Mapping[str, jax.Array]) -> Any:
        """The model as a loss gets it: its modes as it was made, its parameters in the type that computes."""
        given = {name: array for each in arrays for name, array in each.items()}
        return self.model.merge(self.precision.computing(given, self.parameters))

    def gradients(self, state: State, batch: Any, loss: Loss) -> Gradients:
        """The gradients of the mean loss over all rows of `batch`, microbatch by microbatch.

        Each microbatch starts with the variables that the one before has left. Everything is added up before it is
        divided, so that microbatches of different weights count as they should.
        """
        microbatch_loss = self._microbatch_loss(jax.random.fold_in(state.key, state.step), loss)

        def computing(arrays: Arrays) -> Arrays:
            return self.precision.computing(arrays, self.parameters)

        return _accumulated(microbatch_loss, state, self._split(batch), computing, self.model.bare_arrays)

    def _microbatch_loss(self, step_key: jax.Array, loss: Loss) -> Callable[..., Any]:
        """(params, variables, rows, number) -> the total of the loss, and its weight, metrics and changed variables."""

        def microbatch_loss(params: Arrays, variables: Arrays, rows: Any, number: jax.Array) -> Any:
            model = self.merge(params, variables)
            watch = Watch(model)
            rngs = nnx.Rngs(jax.random.fold_in(step_key, number))
            value, metrics = loss_and_metrics(loss(model, self.precision.batch(rows), rngs))
            check_loss(value)
            count = len(jax.tree.leaves(rows)[0])
            mean = total(LOSS, value, count, None)
            changed = {
                name: array.astype(variables[name].dtype) if name in self.parameters and name in variables else array
                for name, array in watch.changes().items()
            }
            means = {name: total(name, each, count, None) for name, each in metrics.items()}
            return mean.total, (mean.weight, means, changed)

        return microbatch_loss

    def apply(self, state: State, found: Gradients) -> tuple[State, dict[str, Mean]]:
        """The state after the optimizer's update, and the metrics of the step."""
        updates, opt_state = updated(
            self.optimizer,
            found.gradients,
            state.opt_state,
            state.params,
            value=_mean(found.loss),
            value_fn=found.value_fn,
        )
        params = optax.apply_updates(state.params, updates)
        squares = {name: _sum_of_squares(found.gradients[name]) for name in sorted(found.gradients)}
        new = self.finish(
            state,
            params=params,
            opt_state=opt_state,
            variables=found.variables,
            loss=found.loss,
            checked=squares,
        )
        norm = jnp.sqrt(sum(squares.values(), jnp.float32(0)))
        metrics = {LOSS: found.loss, GRAD_NORM: Mean.of(norm), **found.metrics}
        if self.skips:
            metrics[SKIPPED] = Mean.of(jnp.any(new.faults))
        updates_made = _updates_made(state.opt_state)
        if self.schedule is not None and updates_made is not None:
            metrics[LEARNING_RATE] = Mean.of(self.schedule(updates_made))
        return new, metrics

    def finish(
        self,
        state: State,
        *,
        params: Arrays,
        opt_state: Any,
        loss: jax.Array | Mean | None = None,
        variables: Mapping[str, jax.Array] | None = None,
        checked: Mapping[str, jax.Array] | None = None,
    ) -> State:
        """The state after a step: these parts, the averages, the step's number, and what was not finite.

        `variables` are those of the model that have changed. `checked` has a number for each of `params` that must be
        finite, such as the sum of the squares of its gradient; by default the sum of the squares of the parameter
        itself.
        """
        if params.keys() != state.params.keys():
            names = sorted(params.keys() ^ state.params.keys())
            raise ConfigError(
                f"finish(params=...): expected all of state.params and no others, which differ in: {', '.join(names)}"
            )
        faults = self._faults(loss, checked or {name: _sum_of_squares(params[name]) for name in params}, sorted(params))
        kept = state.variables | dict(variables or {})
        new = state.replace(
            params=params, opt_state=opt_state, variables=kept, ema=self._averaged(state, params | kept)
        )
        if self.skips:
            failed = jnp.any(faults)
            new = jax.tree.map(lambda old, now: jnp.where(failed, old, now), state.replace(key=0), new.replace(key=0))
        return new.replace(step=state.step + 1, key=state.key, faults=faults)

    def _faults(
        self, loss: jax.Array | Mean | None, numbers: Mapping[str, jax.Array], names: Sequence[str]
    ) -> jax.Array:
        """What is not finite, as `State.faults` has it: the loss, then the numbers with these names."""
        number = loss.total if isinstance(loss, Mean) else 0 if loss is None else loss
        observed = [jnp.asarray(number, jnp.float32), *(numbers.get(name, jnp.float32(0)) for name in names)]
        found: jax.Array = sharding.constrain(~jnp.isfinite(jnp.stack(observed)), sharding.replicated(self.mesh))
        return found

    def _averaged(self, state: State, arrays: Arrays) -> Arrays:
        if self.average is None:
            return state.ema
        # Else the averages are near the initial parameters for the first 1 / (1 - decay) steps.
        decay = jnp.minimum(self.average, (1.0 + state.step) / (10.0 + state.step))
        return {
            name: (old * decay + arrays[name].astype(old.dtype) * (1 - decay)).astype(old.dtype)
            for name, old in state.ema.items()
        }

    def _split(self, batch: Any) -> Any:
        """Rows [batch, ...] -> [accumulation_steps, microbatch_size, ...]: no row leaves its device (`placed_rows`)."""
        count, shards, axes = self.microbatching.accumulation_steps, batch_shards(self.mesh), batch_axes(self.mesh)

        def split(array: jax.Array) -> jax.Array:
            if count == 1:
                return array[None]
            apart = array.reshape(shards, count, -1, *array.shape[1:])
            apart = jnp.swapaxes(apart, 0, 1)
            apart = apart.reshape(count, -1, *array.shape[1:])
            spec = jax.sharding.PartitionSpec(None, axes)  # type: ignore[no-untyped-call]  # untyped in JAX
            placed: jax.Array = sharding.constrain(apart, jax.sharding.NamedSharding(self.mesh, spec))
            return placed

        return jax.tree.map(split, batch)


def passes(updater: Updater, batch: Any, loss: Loss) -> tuple[Callable[..., Any], Any]:
    """The pass of one microbatch, and what it is called with, after parameters and variables, for each."""
    microbatches = updater._split(batch)
    return updater._microbatch_loss(jax.random.key(0), loss), (microbatches, _numbers(microbatches))


def _numbers(microbatches: Any) -> jax.Array:
    return jnp.arange(len(jax.tree.leaves(microbatches)[0]))


def _accumulated(
    microbatch_loss: Callable[..., Any],
    state: State,
    microbatches: Any,
    computing: Callable[[Arrays], Arrays],
    bare_arrays: frozenset[str],
) -> Gradients:
    """The sums over all `microbatches`, arrays [accumulation_steps, rows, ...]; none of `bare_arrays` may change."""
    steps = len(jax.tree.leaves(microbatches)[0])
    first = jax.tree.map(lambda array: array[0], microbatches), jnp.int32(0)

    def changes(params: Arrays, variables: Arrays) -> Any:
        return microbatch_loss(params, variables, *first)[1][2]

    def kept_names(changed: Mapping[str, Any]) -> list[str]:
        # Compared in the types that compute: what a pass returns is no change only because it was converted before.
        before = computing(state.params), computing(state.variables)
        return carried(changes, changed.keys(), *before, bare_arrays)

    if steps == 1:
        return _of_one(microbatch_loss, state, first, kept_names)
    return _of_several(microbatch_loss, state, microbatches, first, kept_names)


def _of_one(microbatch_loss: Callable[..., Any], state: State, rows: Any, kept_names: Callable[..., Any]) -> Gradients:
    loss_total, backward, (weight, metrics, changed) = jax.vjp(
        lambda params: microbatch_loss(params, state.variables, *rows), state.params, has_aux=True
    )
    # Dividing the one cotangent is cheaper than dividing every gradient afterwards.
    (gradients,) = backward(jnp.ones_like(loss_total) / _divisor(weight))
    kept = {name: strongly_typed(changed[name]) for name in kept_names(changed)}

    def value_fn(params: Arrays) -> jax.Array:
        loss_total, (weight, _, _) = microbatch_loss(params, state.variables, *rows)
        return _mean(Mean(loss_total, weight))

    return Gradients(conjugated(gradients), Mean(loss_total, weight), metrics, kept, value_fn)


def _of_several(
    microbatch_loss: Callable[..., Any], state: State, microbatches: Any, first: Any, kept_names: Callable[..., Any]
) -> Gradients:
    _, (_, metric_shapes, changed_shapes) = jax.eval_shape(microbatch_loss, state.params, state.variables, *first)
    names = kept_names(changed_shapes)

    def accumulate(carry: Any, microbatch: Any) -> tuple[Any, None]:
        sums, kept = carry
        value_and_grad = jax.value_and_grad(microbatch_loss, has_aux=True)
        (loss_total, (weight, metrics, changed)), gradients = value_and_grad(
            state.params, state.variables | kept, *microbatch
        )
        kept = {name: strongly_typed(changed[name]) for name in names}
        return (jax.tree.map(jnp.add, sums, (Mean(loss_total, weight), metrics, gradients)), kept), None

    zeros = (
        Mean(jnp.float32(0), jnp.float32(0)),
        jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), metric_shapes),
        jax.tree.map(lambda array: jnp.zeros(array.shape, summed(array.dtype)), state.params),
    )
    start = zeros, {name: strongly_typed(state.variables[name]) for name in names}
    numbers = _numbers(microbatches)
    ((loss, metrics, gradients), kept), _ = jax.lax.scan(accumulate, start, (microbatches, numbers))
    divisor = _divisor(loss.weight)
    means = jax.tree.map(lambda array, kept: (array / divisor).astype(kept.dtype), gradients, state.params)

    def value_fn(params: Arrays) -> jax.Array:
        # Of each microbatch only what is passed on is kept for a gradient.
        @jax.checkpoint
        def add(carry: Any, microbatch: Any) -> tuple[Any, None]:
            so_far, kept = carry
            loss_total, (weight, _, changed) = microbatch_loss(params, state.variables | kept, *microbatch)
            kept = {name: jax.lax.stop_gradient(strongly_typed(changed[name])) for name in names}
            return (so_far + Mean(loss_total, weight), kept), None

        (found, _), _ = jax.lax.scan(add, (zeros[0], start[1]), (microbatches, numbers))
        return _mean(found)

    return Gradients(conjugated(means), loss, metrics, kept, value_fn)


def _mean(loss: Mean) -> jax.Array:
    return loss.total / _divisor(loss.weight)


def _divisor(weight: jax.Array) -> jax.Array:
    """A batch without any weight has no gradient, and its loss is NaN."""
    return jnp.where(weight == 0, 1, weight)


def _updates_made(opt_state: Any) -> jax.Array | None:
    """int32[], the place in its schedule of an optimizer that has one: steps that were left out do not count."""

    def is_schedules(node: Any) -> bool:
        return isinstance(node, optax.ScaleByScheduleState)

    states = [leaf for leaf in jax.tree.leaves(opt_state, is_leaf=is_schedules) if is_schedules(leaf)]
    return jnp.asarray(states[0].count) if states else None


def _sum_of_squares(array: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(array):
        array = jnp.abs(array)
    # The square of a float16 above 255 is infinite. Written as Optax writes it, so that it is computed once for both.
    return jnp.sum(array.astype(jnp.float32) ** 2)
