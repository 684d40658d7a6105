"""What a training is made of on its devices: the mesh, the model's form, the step, the compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from tabulate import tabulate

from dispatcher.errors import ConfigError
from dispatcher.runtime.optimizers import OptimizerConfig
from dispatcher.runtime.parameters import TRANSIENT, AbstractModel, Arrays
from dispatcher.runtime.roles import ParameterKind
from dispatcher.runtime.training.averages import batch_moments
from dispatcher.runtime.training.compiled import CompiledTraining, Evaluate, StateLayout, Step
from dispatcher.runtime.training.config import Microbatching, TrainingConfig
from dispatcher.runtime.training.placement import Placement, placed
from dispatcher.runtime.training.precision import parameter_names
from dispatcher.runtime.training.step import Loss, Updater


def trained_names(model: AbstractModel, chosen: nnx.filterlib.Filter) -> frozenset[str]:
    """The names of the variables that `TRAINABLE` chooses; ConfigError if there are none, or one has no gradient."""
    names = model.names(chosen)
    if not names:
        kinds = sorted({type(variable).__name__ for _, variable in model.variables.values()})
        raise ConfigError(f"TRAINABLE = {chosen}: the model has no such variables: it has {', '.join(kinds) or 'none'}")
    shapes = model.shapes()
    others = [f"{name} ({shapes[name].dtype})" for name in names if not jnp.issubdtype(shapes[name].dtype, jnp.inexact)]
    if others:
        raise ConfigError(f"TRAINABLE = {chosen}: {', '.join(others)}: only floating-point numbers have gradients")
    return frozenset(names)


def new_model(make_model: Callable[[nnx.Rngs], Any], seed: int) -> nnx.Module:
    """A new model without caches; traced. ConfigError if what was made is none."""
    made = make_model(nnx.Rngs(seed))
    if not isinstance(made, nnx.Module):
        raise ConfigError(f"make_model returned {type(made).__qualname__}: expected a model, an nnx.Module")
    nnx.pop(made, TRANSIENT)
    return made


@dataclass(frozen=True)
class Hooks:
    """What a class of trainers decides of the compiled functions; `own_step`: that `step` is replaced.

    `settings` are those of the default optimizer, None where it is replaced, `schedule` is its learning rate.
    """

    loss: Loss
    evaluate: Evaluate
    step: Step
    own_step: bool
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule | None
    settings: OptimizerConfig | None


@dataclass(frozen=True)
class Setup:
    """The parts of a training that its hooks and its configuration decide; none of them holds an array."""

    hooks: Hooks
    layout: StateLayout
    updater: Updater
    compiled: CompiledTraining
    microbatching: Microbatching

    @classmethod
    def of(cls, hooks: Hooks, layout: StateLayout, training: TrainingConfig, microbatching: Microbatching) -> Setup:
        updater = Updater(
            model=layout.model,
            parameters=parameter_names(layout.model.variables),
            optimizer=hooks.optimizer,
            microbatching=microbatching,
            mesh=layout.mesh,
            precision=training.precision,
            average=training.ema,
            skips=training.not_finite == "skip",
            schedule=hooks.schedule,
        )
        compiled = CompiledTraining(
            layout,
            hooks.step,
            hooks.evaluate,
            lambda state, batch: batch_moments(updater, state, batch, hooks.loss),
            precision=training.precision,
            stops=training.not_finite == "stop",
        )
        return cls(hooks, layout, updater, compiled, microbatching)

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    @property
    def placement(self) -> Placement:
        return self.layout.placement

    def table(self, *, trains: bool = True) -> str:
        """The arrays of the model: name, shape, type, partition spec, bytes on each device; for a training with their
        roles, and how the default optimizer updates them, those that are not trained apart, and the bytes of the
        optimizer's state."""
        state = self.layout.abstract
        headers = ["array", "shape", "type", "sharded over", "bytes per device"]
        if trains:
            headers[3:3] = ["role"] if self.hooks.settings is None else ["role", "updated by"]
            texts = self._texts(state.params)
            rows = _rows(state.params, texts)
            others = _rows(state.variables, dict.fromkeys(state.variables, ("",) * (len(headers) - 5)))
            rows += [["not trained:"], *others] if others else []
            optimizer = {
                f"optimizer{jax.tree_util.keystr(path, simple=True, separator='/')}": leaf
                for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
            }
            total = sum(line.bytes_per_device for line in placed(optimizer))
            rows.append(["optimizer", *[""] * (len(headers) - 2), f"{total:,}"])
        else:
            rows = _rows(state.model)
        colalign = ("left",) * (len(headers) - 1) + ("right",)
        return tabulate(rows, headers=headers, disable_numparse=True, colalign=colalign)

    def unknown_roles(self) -> str | None:
        """Which parameters the default optimizer treats as of unknown role; None: it does so with none of them."""
        roles = self.layout.model.roles
        unknown = {
            name: array
            for name, array in self.layout.abstract.params.items()
            if roles[name].kind is ParameterKind.UNKNOWN
        }
        if not unknown or self.hooks.settings is None or not self.hooks.settings.depends_on_roles:
            return None
        names = ", ".join(line.shown_name for line in placed(unknown))
        return (
            f"{names}: of unknown role, so updated by AdamW without weight decay; state the role to change that: "
            'nnx.Param(value, role="kernel"), or "embedding", "scale", "bias" (docs/trainer.md#roles)'
        )

    def _texts(self, params: Arrays) -> dict[str, tuple[str, ...]]:
        """What the table says of each parameter: its role, and how it is updated."""
        found = {}
        for name, array in params.items():
            role = self.layout.model.roles[name]
            updated = () if self.hooks.settings is None else (self.hooks.settings.update_text(role),)
            found[name] = (role.text(array.shape), *updated)
        return found


def _rows(arrays: Arrays, texts: Mapping[str, tuple[str, ...]] | None = None) -> list[list[Any]]:
    """The rows of the table for arrays of the model."""
    return [
        [line.shown_name, list(line.shape), line.dtype, *line.texts, line.spec, f"{line.bytes_per_device:,}"]
        for line in placed(arrays, texts)
    ]
