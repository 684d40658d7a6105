"""The compiled functions of a training: new states, blocks of steps, evaluations, a search for what is not finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime import sharding
from dispatcher.runtime.checkpoint.tree import named_leaves
from dispatcher.runtime.device_types import converted
from dispatcher.runtime.parameters import AbstractModel, Arrays, arrays_of, evaluating
from dispatcher.runtime.training.config import TrainingConfig
from dispatcher.runtime.training.placement import Placement, tracing
from dispatcher.runtime.training.precision import Precision, parameter_names, summed
from dispatcher.runtime.training.state import EMA, MODEL, OPTIMIZER, State, check_same_form
from dispatcher.runtime.training.values import LOSS, Mean, means_of, total

# (state, batch) -> the state after one step, and its metrics.
Step = Callable[[State, Any], tuple[State, Mapping[str, Mean]]]
# (model, batch) -> the metrics of each row.
Evaluate = Callable[[Any, Any], Mapping[str, Any]]


class Action(IntEnum):
    """What the training does after a block of steps. Each process requests one, and all take the greatest."""

    CONTINUE = 0
    SAVE = 1
    # Save and exit: the job is preempted.
    EXIT = 2
    # The loss or a gradient is not finite, so there is no state to continue from.
    ABORT = 3


class Block(NamedTuple):
    """What a call of the compiled steps returns besides the state: metrics [steps] each, the agreed Action, and
    State.faults after each step, bool[steps, 1 + params]."""

    metrics: dict[str, Mean]
    action: jax.Array
    faults: jax.Array


class StateLayout:
    """The arrays of a State: how they are made, their shapes, and their places on the mesh."""

    def __init__(
        self,
        make_model: Callable[[], nnx.Module],
        model: AbstractModel,
        placement: Placement,
        *,
        trained: frozenset[str],
        init_optimizer: Callable[[Arrays], Any],
        training: TrainingConfig,
    ) -> None:
        self._make_model = make_model
        self._init_optimizer = init_optimizer
        self._training = training
        self._parameters = parameter_names(model.variables)
        self.model = model
        self.trained = trained
        statistics = model.names(lambda _, variable: isinstance(variable, nnx.BatchStat))
        # What `training.ema` keeps beside the state: averaged parameters have other statistics than the latest ones.
        self.averaged = trained.union(
            name for name in statistics if jnp.issubdtype(model.shapes()[name].dtype, jnp.floating)
        )
        self.placement = placement
        self.mesh = placement.mesh
        self.places = placement.shardings(model.variables)
        # eval_shape of `_make` would trace the model a second time, which takes as long as loading the compiled steps.
        shapes = jax.eval_shape(self._from_arrays, model.shapes())
        self.shardings: Any = State(
            step=sharding.replicated(self.mesh),  # type: ignore[arg-type]  # shardings in place of arrays
            key=sharding.replicated(self.mesh),  # type: ignore[arg-type]
            params={name: self.places[name] for name in shapes.params},  # type: ignore[misc]
            variables={name: self.places[name] for name in shapes.variables},  # type: ignore[misc]
            opt_state=sharding.optimizer_shardings(shapes.opt_state, self.places, self.mesh),
            ema={name: self.places[name] for name in shapes.ema},  # type: ignore[misc]
            faults=sharding.replicated(self.mesh),  # type: ignore[arg-type]
        )
        self.abstract: State = jax.tree.map(sharding.abstract_array, shapes, self.shardings)

    def new(self) -> State:
        """The state at step 0, computed on the devices that hold it."""
        made: State = jax.jit(self._make, out_shardings=self.shardings)()
        return made

    def held(self) -> dict[str, Any]:
        """Type and shape of what a device holds of each array of the state, by name, and the mesh."""
        leaves = jax.tree_util.tree_leaves_with_path(self.abstract)
        arrays = {
            jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.sharding.shard_shape(leaf.shape))}"
            for path, leaf in leaves
        }
        return {"mesh": dict(self.mesh.shape), "arrays": arrays}

    def split(self, arrays: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        """The arrays that are trained, and the others."""
        params = {name: array for name, array in arrays.items() if name in self.trained}
        return params, {name: array for name, array in arrays.items() if name not in self.trained}

    def averages(self, arrays: Arrays) -> Arrays:
        """The averages before the first step: copies, because an array that is donated twice is an error."""
        return {name: jnp.array(array, summed(array.dtype)) for name, array in arrays.items() if name in self.averaged}

    def with_tree(self, tree: Mapping[str, Any], step: jax.Array, key: jax.Array) -> State:
        """The state that the tree of a checkpoint holds."""
        params, variables = self.split(tree[MODEL])
        faults = jax.device_put(np.zeros(1 + len(params), bool), self.shardings.faults)
        return State(step, key, params, variables, tree[OPTIMIZER], tree.get(EMA, {}), faults)

    def on_mesh(self, arrays: Mapping[str, Any]) -> Arrays:
        """Arrays of the model with their types and at their places; ConfigError for other names and shapes, and for
        values that those types do not have."""
        expected = self.abstract.model
        unknown = sorted(arrays.keys() - expected.keys())
        if unknown:
            raise ConfigError(f"the model has no arrays {', '.join(unknown)}")
        faults = [
            f"{name}: {list(np.shape(array))} for {list(expected[name].shape)}"
            for name, array in sorted(arrays.items())
            if np.shape(array) != expected[name].shape
        ]
        if faults:
            raise ConfigError(f"arrays that the model has in another shape: {', '.join(faults)}")
        return {
            name: sharding.put(_in_type(name, array, expected[name].dtype), self.places[name]).astype(
                expected[name].dtype
            )
            for name, array in arrays.items()
        }

    def _make(self) -> State:
        return self._from_arrays(arrays_of(self._make_model()))

    def _from_arrays(self, arrays: Arrays) -> State:
        params, variables = self.split(self._training.precision.stored(arrays, self._parameters))
        return State(
            step=jnp.int32(0),
            key=jax.random.key(self._training.seed),
            params=params,
            variables=variables,
            opt_state=self._init_optimizer(params),
            ema=self.averages(params | variables) if self._training.ema is not None else {},
            faults=jnp.zeros(1 + len(params), bool),
        )


class CompiledTraining:
    """The compiled functions, each compiled when it is first called, all traced under the mesh and the axis rules."""

    def __init__(
        self,
        layout: StateLayout,
        step: Step,
        evaluate: Evaluate,
        moments: Callable[[State, Any], Arrays],
        *,
        precision: Precision,
        stops: bool,
    ) -> None:
        self.layout = layout
        self._step = step
        self._evaluate_rows = evaluate
        self._rules = layout.placement.rules
        self._precision = precision
        self._stops = stops
        self._parameters = parameter_names(layout.model.variables)
        # The old state's memory is reused for the new one.
        self._steps = jax.jit(self._run_steps, static_argnames="steps", donate_argnums=0)
        self._evaluate = jax.jit(self._evaluate_batch)
        self._batch_moments = jax.jit(moments)
        self._flag_state = jax.jit(self._flag_not_finite)

    def steps(self, state: State, batch: Any, requested: jax.Array, *, steps: int) -> tuple[State, Block]:
        """`steps` steps on `batch`, [rows, ...] for one and [steps, rows, ...] for several; `state` is used up.

        `requested` is int32[devices], the Action that each process requests; the greatest is returned, with no
        transfer of its own.
        """
        with tracing(self.layout.mesh, self._rules):
            found: tuple[State, Block] = self._steps(state, batch, requested, steps=steps)
        return found

    def evaluate(self, model: Arrays, batch: Any, real: jax.Array | None) -> dict[str, Mean]:
        """The metrics of a batch, whose rows count where `real` is true; None: all of them."""
        with tracing(self.layout.mesh, self._rules):
            found: dict[str, Mean] = self._evaluate(model, batch, real)
        return found

    def batch_moments(self, state: State, batch: Any) -> Arrays:
        """See `averages.batch_moments`."""
        with tracing(self.layout.mesh, self._rules):
            found: Arrays = self._batch_moments(state, batch)
        return found

    def metric_names(self, batch: Any, *, padded: bool) -> list[str]:
        """What an evaluation of a batch of such shapes gives; nothing is computed."""
        real = sharding.shape(jax.tree.leaves(batch)[0].shape[:1], bool) if padded else None
        with tracing(self.layout.mesh, self._rules):
            shapes = jax.eval_shape(self._evaluate_batch, self.layout.abstract.model, batch, real)
        return sorted(shapes)

    def nonfinite_arrays(self, state: State) -> list[str]:
        """The names of arrays that a training cannot continue from: not finite if trained, NaN in any other."""
        flags = self._flag_state(state)
        # One transfer for all.
        return sorted(name for name, flag in jax.device_get(flags).items() if flag)

    def fault_names(self, faults: Any) -> list[str]:
        """What was not finite in a step, by name: LOSS, and the parameters whose gradients were not."""
        names = [LOSS, *sorted(self.layout.abstract.params)]
        return [name for name, flag in zip(names, faults, strict=True) if flag]

    def _run_steps(self, state: State, batch: Any, requested: jax.Array, *, steps: int) -> tuple[State, Block]:
        if steps == 1:
            state, found = self._one(state, batch)
            metrics, faults = jax.tree.map(lambda array: array[None], found)
        else:
            state, (metrics, faults) = jax.lax.scan(self._one, state, batch)
        asked = jnp.max(requested)
        if self._stops:
            asked = jnp.maximum(asked, jnp.where(jnp.any(faults), Action.ABORT, Action.CONTINUE))
        return state, Block(metrics, asked, faults)

    def _one(self, state: State, batch: Any) -> tuple[State, tuple[dict[str, Mean], jax.Array]]:
        made_by = f"{getattr(self._step, '__qualname__', 'step')}()"
        returned = self._step(state, batch)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            raise ConfigError(f"{made_by} returned {type(returned).__qualname__}: expected (state, metrics by name)")
        new, metrics = returned
        check_same_form(state, new, made_by)
        # A step of the user's own need not count.
        placed: State = sharding.constrain(new.replace(step=state.step + 1), self.layout.shardings)
        return placed, (means_of(metrics), placed.faults)

    def _evaluate_batch(self, arrays: Arrays, batch: Any, real: jax.Array | None) -> dict[str, Mean]:
        rows = len(jax.tree.leaves(batch)[0])
        model = evaluating(self.layout.model.merge(self._precision.computing(arrays, self._parameters)))
        values = self._evaluate_rows(model, self._precision.batch(batch))
        return {name: total(name, value, rows, real) for name, value in values.items()}

    def _flag_not_finite(self, state: State) -> dict[str, jax.Array]:
        """For each array whether it must not be saved; masks and a new optimizer state may hold infinities."""
        flags = {name: ~jnp.all(jnp.isfinite(array)) for name, array in _inexact(state.params).items()}
        opt_state = {f"{OPTIMIZER}/{name}": leaf for name, leaf in named_leaves(state.opt_state).items()}
        others = _inexact({**state.variables, **opt_state})
        flags |= {name: jnp.any(jnp.isnan(array)) for name, array in others.items()}
        constrained: dict[str, jax.Array] = sharding.constrain(flags, sharding.replicated(self.layout.mesh))
        return constrained


def at_step(metrics: Mapping[str, Mean], place: int) -> dict[str, Mean]:
    """The metrics of the step at this place of a block; -1: its last."""
    return {name: jax.tree.map(lambda numbers: numbers[place], mean) for name, mean in metrics.items()}


def each_step(metrics: Mapping[str, Mean]) -> Sequence[dict[str, Mean]]:
    """The metrics of each step of a block, read from the devices."""
    host: dict[str, Mean] = jax.device_get(dict(metrics))
    count = len(next(iter(host.values())).total) if host else 0
    return [{name: Mean(mean.total[i], mean.weight[i]) for name, mean in host.items()} for i in range(count)]


def _in_type(name: str, array: Any, kind: Any) -> Any:
    """An array in the type `kind`, unless it is on devices and can be rounded there."""
    rounded = isinstance(array, jax.Array) and not jnp.issubdtype(kind, jnp.integer)
    return array if rounded or getattr(array, "dtype", None) == kind else converted(name, np.asarray(array), kind)


def _inexact(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The floating-point and complex arrays; all others are always finite."""
    return {name: array for name, array in arrays.items() if jnp.issubdtype(array.dtype, jnp.inexact)}
