"""The compiled programs of a training: one update, and one look at a held-out batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from dispatcher.runtime import sharding
from dispatcher.runtime.parameters import Arrays, Skeleton, abstract, arrays_of
from dispatcher.runtime.stream import IGNORED

# Of a model, a batch and a key for dropout (None: no dropout): the summed loss in nats, and of how many predictions.
Loss = Callable[[Any, Any, jax.Array | None], tuple[jax.Array, jax.Array]]

LOSS: Final = "loss"
GRADIENT_NORM: Final = "gradient_norm"
LEARNING_RATE: Final = "lr"
WISH: Final = "wish"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What a training changes (`trained`, `optimizer`), and the rest of the model (`frozen`)."""

    trained: Arrays
    frozen: Arrays
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

    `trainable` is the kind of variables that are trained; all others stay as they are. `schedule` is the optimizer's,
    for the record.
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
        trained, frozen = self.split(arrays_of(model))
        shapes = TrainState(trained, frozen, jax.eval_shape(optimizer.init, trained))
        places = self.skeleton.shardings(mesh)
        self.shardings: Any = TrainState(
            trained={name: places[name] for name in shapes.trained},  # type: ignore[misc]  # where they live
            frozen={name: places[name] for name in shapes.frozen},  # type: ignore[misc]
            optimizer=sharding.like_parameters(shapes.optimizer, places, mesh),
        )
        self.target: TrainState = jax.tree.map(sharding.shape_at, shapes, self.shardings)
        # The old state's memory is used for the new one.
        self.update = jax.jit(self._update, donate_argnums=(0, 1))
        self.evaluate = jax.jit(self._evaluate)

    def init(self) -> TrainState:
        """A fresh state, made on the devices where it lives."""
        state: TrainState = jax.jit(self._fresh, out_shardings=self.shardings)()
        return state

    def split(self, arrays: Mapping[str, jax.Array]) -> tuple[Arrays, Arrays]:
        """The arrays that are trained, and the others."""
        trained = {name: array for name, array in arrays.items() if name in self._trainable}
        return trained, {name: array for name, array in arrays.items() if name not in self._trainable}

    def _fresh(self) -> TrainState:
        trained, frozen = self.split(arrays_of(self._make()))
        return TrainState(trained, frozen, self._optimizer.init(trained))

    def _update(
        self,
        trained: Arrays,
        moments: Any,
        frozen: Arrays,
        batches: Any,
        key: jax.Array,
        step: jax.Array,
        wish: jax.Array,
    ) -> tuple[Arrays, Any, dict[str, jax.Array]]:
        """The state after the update from `batches`, arrays [parts, rows, ...], and what was measured on the way.

        `wish` is int32[devices], what each process wishes; all are told the greatest, with no transfer of its own.
        """
        step_key = jax.random.fold_in(key, step)

        def part_loss(trained: Arrays, batch: Any, number: jax.Array) -> tuple[jax.Array, jax.Array]:
            model = self.skeleton.rebuild(trained, frozen)
            return self._loss(model, batch, jax.random.fold_in(step_key, number))

        nats, count, mean = _differentiate(part_loss, trained, batches)
        change, moments = self._optimizer.update(mean, moments, trained)
        measured = {
            LOSS: nats / count,
            GRADIENT_NORM: optax.tree.norm(mean),
            LEARNING_RATE: jnp.asarray(self._schedule(step)),
            WISH: jnp.max(wish),
        }
        trained = optax.apply_updates(trained, change)
        return (
            sharding.constrain(trained, self.shardings.trained),
            sharding.constrain(moments, self.shardings.optimizer),
            measured,
        )

    def _evaluate(self, trained: Arrays, frozen: Arrays, batch: Any) -> tuple[jax.Array, jax.Array]:
        return self._loss(self.skeleton.rebuild(trained, frozen), batch, None)


def _differentiate(
    part_loss: Callable[[Arrays, Any, jax.Array], tuple[jax.Array, jax.Array]], trained: Arrays, batches: Any
) -> tuple[jax.Array, jax.Array, Arrays]:
    """The loss summed over `batches`, arrays [parts, rows, ...], the number of predictions, the mean's gradient.

    Sums are taken over the parts before anything is divided, so that parts of different weight count right.
    """
    parts = jax.tree.leaves(batches)[0].shape[0]
    if parts == 1:
        only = jax.tree.map(lambda array: array[0], batches)
        nats, backwards, count = jax.vjp(lambda known: part_loss(known, only, jnp.int32(0)), trained, has_aux=True)
        count = jnp.maximum(count, 1)
        # One number is divided on its way back through the model, where each gradient would have to be afterwards.
        (mean,) = backwards(jnp.ones_like(nats) / count)
        return nats, count, mean

    def add(sums: Any, numbered: tuple[Any, jax.Array]) -> tuple[Any, None]:
        (nats, count), gradient = jax.value_and_grad(part_loss, has_aux=True)(trained, *numbered)
        return jax.tree.map(jnp.add, sums, (nats, count, gradient)), None

    shapes = jax.eval_shape(part_loss, trained, jax.tree.map(lambda array: array[0], batches), jnp.int32(0))
    nothing = (*jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), jax.tree.map(jnp.zeros_like, trained))
    (nats, count, gradient), _ = jax.lax.scan(add, nothing, (batches, jnp.arange(parts)))
    count = jnp.maximum(count, 1)
    return nats, count, jax.tree.map(lambda array: array / count, gradient)
