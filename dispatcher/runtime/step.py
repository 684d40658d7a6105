"""The compiled steps of a training: an update, the evaluation of a batch, a search for values that are not finite."""

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
from dispatcher.runtime.parameters import AbstractModel, Arrays, arrays_of, eval_shape
from dispatcher.runtime.stream import IGNORE_INDEX

# (model, batch, dropout key or None in an evaluation) -> the loss summed over all targets, in nats, and their number.
Loss = Callable[[Any, Any, jax.Array | None], tuple[jax.Array, jax.Array]]

# What one microbatch gives: its summed loss, the number of targets, the variables of the model that it has changed.
_MicrobatchResult = tuple[jax.Array, tuple[jax.Array, Arrays]]

LOSS: Final = "loss"
GRAD_NORM: Final = "grad_norm"
LEARNING_RATE: Final = "lr"
ACTION: Final = "action"
NOT_FINITE: Final = "not_finite"


class Action(IntEnum):
    """What the training does after a step. Each process requests one, and all take the greatest."""

    CONTINUE = 0
    SAVE = 1
    # Save and exit: the job is preempted.
    EXIT = 2
    # The loss or a gradient is not finite, so there is no state to continue from.
    ABORT = 3


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The variables that the optimizer updates (`trainable`), its own state, and the model's other variables.

    Of `non_trainable` a step changes what the loss changes, such as the statistics of nnx.BatchNorm (`model_state`).
    """

    trainable: Arrays
    non_trainable: Arrays
    opt_state: Any


def negative_log_likelihood(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss in nats, summed over all targets that are not IGNORE_INDEX, and the number of these targets.

    float32[batch, seq_len, vocab_size], int32[batch, seq_len] -> float32[], int32[]
    """
    counted = targets != IGNORE_INDEX
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counted, targets, 0))
    return jnp.sum(losses, where=counted), jnp.sum(counted)


class CompiledSteps:
    """The compiled steps of one model on one mesh, each compiled when it is first called.

    `trainable` is the type of the variables that the optimizer updates. `schedule` is the optimizer's, for the metrics.
    """

    def __init__(
        self,
        make_model: Callable[[], nnx.Module],
        loss: Loss,
        optimizer: optax.GradientTransformation,
        mesh: Mesh,
        *,
        schedule: optax.Schedule,
        trainable: type[nnx.Variable[Any]] = nnx.Param,
    ) -> None:
        self._make_model = make_model
        self._loss = loss
        self._optimizer = optimizer
        self._schedule = schedule
        self.mesh = mesh
        model = eval_shape(make_model)
        self.abstract_model = AbstractModel.of(model)
        self._trainable = frozenset(self.abstract_model.names(trainable))
        # eval_shape of `_init` would trace the model a second time, which takes as long as loading the compiled steps.
        params, others = self.split(arrays_of(model))
        shapes = TrainState(params, others, jax.eval_shape(optimizer.init, params))
        places = self.abstract_model.shardings(mesh)
        self.shardings: Any = TrainState(
            trainable={name: places[name] for name in shapes.trainable},  # type: ignore[misc]  # shardings, not arrays
            non_trainable={name: places[name] for name in shapes.non_trainable},  # type: ignore[misc]
            opt_state=sharding.optimizer_shardings(shapes.opt_state, places, mesh),
        )
        self.abstract_state: TrainState = jax.tree.map(sharding.abstract_array, shapes, self.shardings)
        # The old state's memory is reused for the new one.
        self.update = jax.jit(self._update, donate_argnums=(0, 1))
        self.evaluate = jax.jit(self._evaluate)
        self._flag_arrays = jax.jit(self._flag_not_finite)

    def init(self) -> TrainState:
        """A new state, computed on the devices that hold it."""
        state: TrainState = jax.jit(self._init, out_shardings=self.shardings)()
        return state

    def split(self, arrays: Mapping[str, jax.Array]) -> tuple[Arrays, Arrays]:
        """The trainable arrays, and the others."""
        trainable = {name: array for name, array in arrays.items() if name in self._trainable}
        return trainable, {name: array for name, array in arrays.items() if name not in self._trainable}

    def _init(self) -> TrainState:
        trainable, non_trainable = self.split(arrays_of(self._make_model()))
        return TrainState(trainable, non_trainable, self._optimizer.init(trainable))

    def nonfinite_arrays(self, state: TrainState) -> list[str]:
        """The names of arrays that a training cannot continue from: not finite if trainable, NaN in any other."""
        flags = self._flag_arrays(state)
        # One transfer for all.
        return sorted(name for name, flag in jax.device_get(flags).items() if flag)

    def nonfinite_gradients(self, metrics: Mapping[str, jax.Array]) -> list[str]:
        """What was not finite in an update: LOSS, and the names of the arrays whose gradients were not."""
        names = [LOSS, *sorted(self._trainable)]
        return [name for name, flag in zip(names, jax.device_get(metrics[NOT_FINITE]), strict=True) if flag]

    def _update(
        self,
        trainable: Arrays,
        opt_state: Any,
        non_trainable: Arrays,
        microbatches: Any,
        key: jax.Array,
        step: jax.Array,
        requested: jax.Array,
    ) -> tuple[Arrays, Any, Arrays, dict[str, jax.Array]]:
        """The state after one update, and its metrics; `microbatches` holds arrays [accumulation_steps, rows, ...].

        Of `non_trainable` only what the loss has changed is returned. `requested` is int32[devices], the Action that
        each process requests; the greatest is among the metrics, with no transfer of its own.
        """
        step_key = jax.random.fold_in(key, step)

        def microbatch_loss(
            trainable: Arrays, non_trainable: Arrays, batch: Any, number: jax.Array
        ) -> _MicrobatchResult:
            model = self.abstract_model.merge(trainable, non_trainable, training=True)
            watch = Watch(model)
            loss_sum, targets = self._loss(model, batch, jax.random.fold_in(step_key, number))
            return loss_sum, (targets, watch.changes())

        loss_sum, targets, gradients, changed = _accumulate_gradients(
            microbatch_loss, trainable, non_trainable, microbatches, self.abstract_model.bare_arrays
        )
        updates, opt_state = self._optimizer.update(gradients, opt_state, trainable)
        loss = loss_sum / targets
        squares = [_sum_of_squares(gradients[name]) for name in sorted(gradients)]
        # The norm needs these sums anyway: checking them costs one comparison for each array.
        not_finite = ~jnp.isfinite(jnp.stack([loss.astype(jnp.float32), *squares]))
        metrics = {
            LOSS: loss,
            GRAD_NORM: jnp.sqrt(sum(squares, jnp.float32(0))),
            LEARNING_RATE: jnp.asarray(self._schedule(step)),
            ACTION: jnp.maximum(jnp.max(requested), jnp.where(jnp.any(not_finite), Action.ABORT, Action.CONTINUE)),
            NOT_FINITE: sharding.constrain(not_finite, sharding.replicated(self.mesh)),
        }
        trainable = optax.apply_updates(trainable, updates)
        return (
            sharding.constrain(trainable, self.shardings.trainable),
            sharding.constrain(opt_state, self.shardings.opt_state),
            sharding.constrain(changed, {name: self.shardings.non_trainable[name] for name in changed}),
            metrics,
        )

    def _evaluate(self, trainable: Arrays, non_trainable: Arrays, batch: Any) -> tuple[jax.Array, jax.Array]:
        return self._loss(self.abstract_model.merge(trainable, non_trainable), batch, None)

    def _flag_not_finite(self, state: TrainState) -> dict[str, jax.Array]:
        """For each array whether it must not be saved; masks and a new optimizer state may hold infinities."""
        flags = {name: ~jnp.all(jnp.isfinite(array)) for name, array in _inexact(state.trainable).items()}
        opt_state = {f"optimizer/{name}": leaf for name, leaf in named_leaves(state.opt_state).items()}
        others = _inexact({**state.non_trainable, **opt_state})
        flags |= {name: jnp.any(jnp.isnan(array)) for name, array in others.items()}
        constrained: dict[str, jax.Array] = sharding.constrain(flags, sharding.replicated(self.mesh))
        return constrained


def _sum_of_squares(array: jax.Array) -> jax.Array:
    # The square of a float16 above 255 is infinite.
    return jnp.sum(jnp.square(jnp.abs(array).astype(jnp.float32)))


def _inexact(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The floating-point and complex arrays; all others are always finite."""
    return {name: array for name, array in arrays.items() if jnp.issubdtype(array.dtype, jnp.inexact)}


def _accumulate_gradients(
    microbatch_loss: Callable[..., _MicrobatchResult],
    trainable: Arrays,
    non_trainable: Arrays,
    microbatches: Any,
    bare_arrays: frozenset[str],
) -> tuple[jax.Array, jax.Array, Arrays, Arrays]:
    """The loss summed over all `microbatches`, the number of targets, the gradients of the mean loss.

    Last, the variables of `non_trainable` that were changed, none of which may be in `bare_arrays`; each microbatch
    starts with what the one before has left. Everything is summed before it is divided, so that microbatches with
    different numbers of targets are weighted correctly.
    """
    accumulation_steps = jax.tree.leaves(microbatches)[0].shape[0]
    first = jax.tree.map(lambda array: array[0], microbatches), jnp.int32(0)

    def changes(trainable: Arrays, non_trainable: Arrays) -> Arrays:
        return microbatch_loss(trainable, non_trainable, *first)[1][1]

    if accumulation_steps == 1:
        loss_sum, backward, (targets, changed) = jax.vjp(
            lambda params: microbatch_loss(params, non_trainable, *first), trainable, has_aux=True
        )
        targets = jnp.maximum(targets, 1)
        # Dividing the one cotangent is cheaper than dividing every gradient afterwards.
        (gradients,) = backward(jnp.ones_like(loss_sum) / targets)
        names = carried(changes, changed.keys(), trainable, non_trainable, bare_arrays)
        return loss_sum, targets, gradients, {name: strongly_typed(changed[name]) for name in names}

    loss_shape, (targets_shape, changed_shapes) = jax.eval_shape(microbatch_loss, trainable, non_trainable, *first)
    names = carried(changes, changed_shapes.keys(), trainable, non_trainable, bare_arrays)

    def accumulate(carry: tuple[Any, Arrays], microbatch: tuple[Any, jax.Array]) -> tuple[Any, None]:
        sums, state = carry
        value_and_grad = jax.value_and_grad(microbatch_loss, has_aux=True)
        (loss_sum, (targets, changed)), gradients = value_and_grad(trainable, non_trainable | state, *microbatch)
        state = {name: strongly_typed(changed[name]) for name in names}
        return (jax.tree.map(jnp.add, sums, (loss_sum, targets, gradients)), state), None

    zeros = (
        jnp.zeros(loss_shape.shape, loss_shape.dtype),
        jnp.zeros(targets_shape.shape, targets_shape.dtype),
        jax.tree.map(jnp.zeros_like, trainable),
    )
    start = zeros, {name: strongly_typed(non_trainable[name]) for name in names}
    numbered = microbatches, jnp.arange(accumulation_steps)
    ((loss_sum, targets, gradients), state), _ = jax.lax.scan(accumulate, start, numbered)
    targets = jnp.maximum(targets, 1)
    return loss_sum, targets, jax.tree.map(lambda array: array / targets, gradients), state
