"""A model's variables as a flat dict from names to arrays, such as `blocks/0/attention/query/kernel`.

Gradients, optimizers, checkpoints and messages all use these names, and no class of a library is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from dispatcher.errors import ModelStateError
from dispatcher.runtime.sharding import abstract_array, variable_sharding

M = TypeVar("M", bound=nnx.Module)
Arrays = dict[str, jax.Array]


@dataclass(frozen=True)
class AbstractModel:
    """A model without its arrays: a graphdef and abstract variables, from which `merge` makes it again.

    `variables` maps names to paths and abstract variables; arrays that are in no nnx.Variable are among them.
    """

    graphdef: nnx.GraphDef[Any]
    variables: Mapping[str, tuple[tuple[Any, ...], Any]]

    @classmethod
    def of(cls, model: nnx.Module) -> AbstractModel:
        _refuse_tracers(model)
        graphdef, state = nnx.split(model)
        found = {name_of(path): (path, variable) for path, variable in nnx.to_flat_state(state)}
        return cls(graphdef, found)

    def names(self, kind: type[nnx.Variable[Any]] = nnx.Variable) -> list[str]:
        """The names of all variables of `kind`, in order."""
        return sorted(name for name, (_, variable) in self.variables.items() if isinstance(variable, kind))

    @property
    def bare_arrays(self) -> frozenset[str]:
        """The names of the arrays that are in no nnx.Variable."""
        return frozenset(self.variables) - frozenset(self.names())

    def shardings(self, mesh: Mesh) -> dict[str, NamedSharding]:
        """The sharding of each variable on `mesh`, by its own partition spec."""
        return {name: variable_sharding(variable, mesh) for name, (_, variable) in self.variables.items()}

    def abstract_arrays(self, mesh: Mesh) -> dict[str, Any]:
        """Shape, dtype and sharding of every array: the target that a checkpoint is restored into."""
        shardings = self.shardings(mesh)
        return {name: abstract_array(variable, shardings[name]) for name, (_, variable) in self.variables.items()}

    def merge(self, *states: Mapping[str, jax.Array], training: bool = False) -> Any:
        """The model with the arrays of `states`, which together name every variable; also inside a compiled step.

        Its layers are in training mode (`model.train()`) or in evaluation mode, whatever they were made with.
        """
        arrays = {name: array for state in states for name, array in state.items()}
        model = nnx.merge(
            self.graphdef, nnx.from_flat_state([(path, arrays[name]) for name, (path, _) in self.variables.items()])
        )
        if training:
            model.train()
        else:
            model.eval()
        return model


def _refuse_tracers(model: nnx.Module) -> None:
    """Raise a ModelStateError for arrays that Flax would treat as plain attributes.

    The model is made inside jit, and every array that it computes there must be part of the model's state.
    """
    found = [name_of(path) for path, value in nnx.iter_graph(model) if isinstance(value, jax.core.Tracer)]
    if found:
        hint = "an array in no nnx.Variable: hold it in one, or in nnx.data(...) if no step changes it"
        raise ModelStateError([f"{name}: {hint}" for name in sorted(found)])


def named_leaves(model: nnx.Module) -> dict[str, Any]:
    """The variables of a model, and its arrays that are in no variable, by name."""
    return {name_of(path): leaf for path, leaf in nnx.to_flat_state(nnx.state(model))}


def value_of(leaf: Any) -> Any:
    """The array of a leaf of a model: a variable's value, or the leaf itself."""
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def arrays_of(model: nnx.Module, kind: type[nnx.Variable[Any]] | None = None) -> Arrays:
    """The arrays of all variables of `kind`, by name; by default all arrays."""
    leaves = named_leaves(model)
    return {name: value_of(leaf) for name, leaf in leaves.items() if kind is None or isinstance(leaf, kind)}


def eval_shape(make_model: Callable[[], M]) -> M:
    """The model that `make_model` returns, with shapes in place of arrays; nothing is computed."""
    model: M = nnx.eval_shape(make_model)
    return model


def name_of(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))


def parameter_count(arrays: Mapping[str, Any]) -> int:
    """The number of elements of all arrays."""
    return sum(array.size for array in arrays.values())
