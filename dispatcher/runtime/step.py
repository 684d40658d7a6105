"""The compiled programs of a training: one update, one look at a held-out batch, one look for what is not finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from dispatcher.runtime import sharding
from dispatcher.runtime.checkpoint.tree import named_leaves
from dispatcher.runtime.model_state import Watch, carried, strongly_typed
from dispatcher.runtime.parameters import Arrays, Skeleton, abstract, arrays_of
from dispatcher.runtime.stream import IGNORED

# Of a model, a batch and a key for dropout (None: evaluation): the summed loss in nats, and of how many predictions.
Loss = Callable[[Any, Any, jax.Array | None], tuple[jax.Array, jax.Array]]

# What one part of a batch gives: its loss, the number of predictions, what it has changed of the model.
_Part = tuple[jax.Array, tuple[jax.Array, Arrays]]

LOSS: Final = "loss"
GRADIENT_NORM: Final = "gradient_norm"
LEARNING_RATE: Final = "lr"
REQUEST: Final = "request"
NOT_FINITE: Final = "not_finite"


class Request(IntEnum):
    """What the training should do next. Each process asks for something, and all do the greatest."""

    GO_ON = 0
    SAVE = 1
    LEAVE = 2
    # What was computed is not finite: there is nothing to go on with.
    STOP = 3


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What the optimizer changes (`trained`) and its own state, and the rest of the model.

    Of the `rest` a step changes what the loss changes, such as the statistics of nnx.BatchNorm (`model_state`).
    """

    trained: Arrays
    rest: Arrays
    optimizer: Any


def negative_log_likelihood(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Summed over all places that count, in nats, and the number of these places.

    float32[rows, length, vocabulary], int32[rows, length] -> float32[], int32[]
    """
    counted = targets != IGNORED
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counted, targets, 0))
    return jnp.sum(losses, where=counted), jnp.sum(counted)


class Programs:
    """The programs of one model on one mesh, each compiled when it is first used.

    `trainable` is the kind of variables that the optimizer changes. `schedule` is the optimizer's, for the record.
    """

    def __init__(
        self,
        make: Callable[[], nnx.Module],
        loss: Loss,
        optimizer: optax.GradientTransformation,
        mesh: Mesh,
        *,
        schedule: optax.Schedule,
        trainable: type[nnx.Variable[Any]] = nnx.Param,
    ) -> None:
        self._make = make
        self._loss = loss
        self._optimizer = optimizer
        self._schedule = schedule
        self.mesh = mesh
        model = abstract(make)
        self.skeleton = Skeleton.of(model)
        self._trainable = frozenset(self.skeleton.names(trainable))
        # Of `_fresh` as a whole one would trace the model a second time, which takes as long as to load the programs.
        trained, rest = self.split(arrays_of(model))
        shapes = TrainState(trained, rest, jax.eval_shape(optimizer.init, trained))
        places = self.skeleton.shardings(mesh)
        self.shardings: Any = TrainState(
            trained={name: places[name] for name in shapes.trained},  # type: ignore[misc]  # where they live
            rest={name: places[name] for name in shapes.rest},  # type: ignore[misc]
            optimizer=sharding.like_parameters(shapes.optimizer, places, mesh),
        )
        self.target: TrainState = jax.tree.map(sharding.shape_at, shapes, self.shardings)
        # The old state's memory is used for the new one.
        self.update = jax.jit(self._update, donate_argnums=(0, 1))
        self.evaluate = jax.jit(self._evaluate)
        self._broken = jax.jit(self._not_finite)

    def init(self) -> TrainState:
        """A fresh state, made on the devices where it lives."""
        state: TrainState = jax.jit(self._fresh, out_shardings=self.shardings)()
        return state

    def split(self, arrays: Mapping[str, jax.Array]) -> tuple[Arrays, Arrays]:
        """The arrays that are trained, and the others."""
        trained = {name: array for name, array in arrays.items() if name in self._trainable}
        return trained, {name: array for name, array in arrays.items() if name not in self._trainable}

    def _fresh(self) -> TrainState:
        trained, rest = self.split(arrays_of(self._make()))
        return TrainState(trained, rest, self._optimizer.init(trained))

    def faults(self, state: TrainState) -> list[str]:
        """The names of the arrays that a training cannot go on with: not finite where trained, NaN elsewhere."""
        flags = self._broken(state)
        # One transfer for all.
        return sorted(name for name, flag in jax.device_get(flags).items() if flag)

    def faults_of(self, measured: Mapping[str, jax.Array]) -> list[str]:
        """What was not finite in an update: the loss, and the names of arrays whose gradients were not."""
        names = [LOSS, *sorted(self._trainable)]
        return [name for name, flag in zip(names, jax.device_get(measured[NOT_FINITE]), strict=True) if flag]

    def _update(
        self,
        trained: Arrays,
        moments: Any,
        rest: Arrays,
        batches: Any,
        key: jax.Array,
        step: jax.Array,
        request: jax.Array,
    ) -> tuple[Arrays, Any, Arrays, dict[str, jax.Array]]:
        """The state after the update from `batches`, arrays [parts, rows, ...], and what was measured on the way.

        Of the `rest` only what the loss has changed. `request` is int32[devices], what each process asks for; all are
        told the greatest, with no transfer of its own.
        """
        step_key = jax.random.fold_in(key, step)

        def part_loss(trained: Arrays, rest: Arrays, batch: Any, number: jax.Array) -> _Part:
            model = self.skeleton.rebuild(trained, rest, training=True)
            watch = Watch(model)
            nats, count = self._loss(model, batch, jax.random.fold_in(step_key, number))
            return nats, (count, watch.changes())

        nats, count, mean, changed = _differentiate(part_loss, trained, rest, batches, self.skeleton.outside)
        change, moments = self._optimizer.update(mean, moments, trained)
        loss = nats / count
        squares = [_sum_of_squares(mean[name]) for name in sorted(mean)]
        # The sums are there for the norm: whether all is finite costs one comparison for each array.
        broken = ~jnp.isfinite(jnp.stack([loss.astype(jnp.float32), *squares]))
        measured = {
            LOSS: loss,
            GRADIENT_NORM: jnp.sqrt(sum(squares, jnp.float32(0))),
            LEARNING_RATE: jnp.asarray(self._schedule(step)),
            REQUEST: jnp.maximum(jnp.max(request), jnp.where(jnp.any(broken), Request.STOP, Request.GO_ON)),
            NOT_FINITE: sharding.constrain(broken, sharding.replicated(self.mesh)),
        }
        trained = optax.apply_updates(trained, change)
        return (
            sharding.constrain(trained, self.shardings.trained),
            sharding.constrain(moments, self.shardings.optimizer),
            sharding.constrain(changed, {name: self.shardings.rest[name] for name in changed}),
            measured,
        )

    def _evaluate(self, trained: Arrays, rest: Arrays, batch: Any) -> tuple[jax.Array, jax.Array]:
        return self._loss(self.skeleton.rebuild(trained, rest), batch, None)

    def _not_finite(self, state: TrainState) -> dict[str, jax.Array]:
        """Masks may hold infinities, and so may an optimizer that has not seen anything yet."""
        flags = {name: ~jnp.all(jnp.isfinite(array)) for name, array in _inexact(state.trained).items()}
        others = {**state.rest, **{f"optimizer/{name}": leaf for name, leaf in named_leaves(state.optimizer).items()}}
        flags |= {name: jnp.any(jnp.isnan(array)) for name, array in _inexact(others).items()}
        constrained: dict[str, jax.Array] = sharding.constrain(flags, sharding.replicated(self.mesh))
        return constrained


def _sum_of_squares(array: jax.Array) -> jax.Array:
    # The square of a float16 above 255 is infinite.
    return jnp.sum(jnp.square(jnp.abs(array).astype(jnp.float32)))


def _inexact(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Those that hold fractions: others are always finite."""
    return {name: array for name, array in arrays.items() if jnp.issubdtype(array.dtype, jnp.inexact)}


def _differentiate(
    part_loss: Callable[..., _Part], trained: Arrays, rest: Arrays, batches: Any, outside: frozenset[str]
) -> tuple[jax.Array, jax.Array, Arrays, Arrays]:
    """The loss summed over `batches`, arrays [parts, rows, ...], the number of predictions, the mean's gradient.

    Last, what of the `rest` is changed, which is nothing of `outside`; each part begins with what the one before has
    left. Sums are taken over the parts before anything is divided, so that parts of different weight count right.
    """
    parts = jax.tree.leaves(batches)[0].shape[0]
    first = jax.tree.map(lambda array: array[0], batches), jnp.int32(0)

    def changes(trained: Arrays, rest: Arrays) -> Arrays:
        return part_loss(trained, rest, *first)[1][1]

    if parts == 1:
        nats, backwards, (count, changed) = jax.vjp(lambda t: part_loss(t, rest, *first), trained, has_aux=True)
        count = jnp.maximum(count, 1)
        # One number is divided on its way back through the model, where each gradient would have to be afterwards.
        (mean,) = backwards(jnp.ones_like(nats) / count)
        names = carried(changes, changed.keys(), trained, rest, outside)
        return nats, count, mean, {name: strongly_typed(changed[name]) for name in names}

    nats_shape, (count_shape, changed_shapes) = jax.eval_shape(part_loss, trained, rest, *first)
    names = carried(changes, changed_shapes.keys(), trained, rest, outside)

    def add(before: tuple[Any, Arrays], numbered: tuple[Any, jax.Array]) -> tuple[Any, None]:
        sums, state = before
        differentiate = jax.value_and_grad(part_loss, has_aux=True)
        (nats, (count, changed)), gradient = differentiate(trained, rest | state, *numbered)
        state = {name: strongly_typed(changed[name]) for name in names}
        return (jax.tree.map(jnp.add, sums, (nats, count, gradient)), state), None

    nothing = (
        jnp.zeros(nats_shape.shape, nats_shape.dtype),
        jnp.zeros(count_shape.shape, count_shape.dtype),
        jax.tree.map(jnp.zeros_like, trained),
    )
    begin = nothing, {name: strongly_typed(rest[name]) for name in names}
    ((nats, count, gradient), state), _ = jax.lax.scan(add, begin, (batches, jnp.arange(parts)))
    count = jnp.maximum(count, 1)
    return nats, count, jax.tree.map(lambda array: array / count, gradient), state
