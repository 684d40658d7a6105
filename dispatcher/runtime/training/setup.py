"""What a training is made of on its devices: the mesh, the model's form, the step, the compiled functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from tabulate import tabulate

from dispatcher.errors import ConfigError
from dispatcher.runtime.optimizers import OptimizerConfig
from dispatcher.runtime.parameters import TRANSIENT, AbstractModel, Arrays
from dispatcher.runtime.roles import Kind
from dispatcher.runtime.training.averages import batch_moments
from dispatcher.runtime.training.compiled import CompiledTraining, StateLayout
from dispatcher.runtime.training.config import Microbatching
from dispatcher.runtime.training.placement import Placement, placed, tracing
from dispatcher.runtime.training.precision import parameter_names
from dispatcher.runtime.training.step import Updater

if TYPE_CHECKING:
    from dispatcher.runtime.training.trainer import Trainer


def _trained_names(model: AbstractModel, chosen: nnx.filterlib.Filter) -> frozenset[str]:
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


def _layout(trainer: Trainer[Any, Any], placement: Placement) -> StateLayout:
    def make_model() -> nnx.Module:
        made: nnx.Module = trainer.make_model(nnx.Rngs(trainer.training.seed))
        if not isinstance(made, nnx.Module):
            raise ConfigError(f"make_model returned {type(made).__qualname__}: expected a model, an nnx.Module")
        nnx.pop(made, TRANSIENT)
        return made

    with tracing(placement.mesh, placement.rules):
        model = AbstractModel.made_by(make_model)
    trainer.hold_roles(model.roles)
    return StateLayout(
        make_model,
        model,
        placement,
        trained=_trained_names(model, trainer.TRAINABLE),
        init_optimizer=trainer.init_optimizer,
        training=trainer.training,
    )


@dataclass(frozen=True)
class Setup:
    """The parts of a training that its hooks and its configuration decide; none of them holds an array.

    `optimizer` are the settings of the default optimizer, None where it is replaced.
    """

    mesh: Mesh
    placement: Placement
    layout: StateLayout
    updater: Updater
    compiled: CompiledTraining
    microbatching: Microbatching
    optimizer: OptimizerConfig | None

    @classmethod
    def of(cls, trainer: Trainer[Any, Any], mesh: Mesh, microbatching: Microbatching) -> Setup:
        training = trainer.training
        placement = Placement(mesh, trainer.axis_rules, fsdp=training.fsdp)
        layout = _layout(trainer, placement)
        updater = Updater(
            model=layout.model,
            parameters=parameter_names(layout.model.variables),
            optimizer=trainer.optimizer(),
            microbatching=microbatching,
            mesh=mesh,
            precision=training.precision,
            average=training.ema,
            skips=training.not_finite == "skip",
            schedule=trainer.known_schedule(),
        )
        compiled = CompiledTraining(
            layout,
            trainer.step,
            trainer.evaluate,
            lambda state, batch: batch_moments(updater, state, batch, trainer.loss),
            rules=placement.rules,
            precision=training.precision,
            stops=training.not_finite == "stop",
        )
        return cls(mesh, placement, layout, updater, compiled, microbatching, trainer.known_optimizer())

    def held(self) -> dict[str, Any]:
        """Type and shape of what a device holds of each array of the state, by name, and the mesh."""
        leaves = jax.tree_util.tree_leaves_with_path(self.layout.abstract)
        arrays = {
            jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.sharding.shard_shape(leaf.shape))}"
            for path, leaf in leaves
        }
        return {"mesh": dict(self.mesh.shape), "arrays": arrays}

    def table(self, *, trains: bool = True) -> str:
        """The arrays of the model: name, shape, type, partition spec, bytes on each device; for a training with their
        roles, and how the default optimizer updates them, those that are not trained apart, and the bytes of the
        optimizer's state."""
        state = self.layout.abstract
        headers = ["array", "shape", "type", "sharded over", "bytes per device"]
        if trains:
            headers[3:3] = ["role"] if self.optimizer is None else ["role", "updated by"]
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
            name: array for name, array in self.layout.abstract.params.items() if roles[name].kind is Kind.UNKNOWN
        }
        if not unknown or self.optimizer is None or not self.optimizer.depends_on_roles:
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
            updated = () if self.optimizer is None else (self.optimizer.update_text(role),)
            found[name] = (role.text(array.shape), *updated)
        return found


def _rows(arrays: Arrays, texts: Mapping[str, tuple[str, ...]] | None = None) -> list[list[Any]]:
    """The rows of the table for arrays of the model."""
    return [
        [line.shown_name, list(line.shape), line.dtype, *line.texts, line.spec, f"{line.bytes_per_device:,}"]
        for line in placed(arrays, texts)
    ]
