"""A model's variables as a flat dict from names to arrays, such as `blocks/0/attention/query/kernel`.

That is what is differentiated, optimized, saved and compared: names in messages, files and masks are the same, and no
class of a library is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from dispatcher.errors import ModelStateError
from dispatcher.runtime.sharding import shape_at, variable_sharding

M = TypeVar("M", bound=nnx.Module)
Arrays = dict[str, jax.Array]


@dataclass(frozen=True)
class Skeleton:
    """A model without its arrays: what `rebuild` needs to make it again, inside or outside of a compiled program.

    `variables` are those of the model, and its arrays outside of any, each with its path.
    """

    graph: nnx.GraphDef[Any]
    variables: Mapping[str, tuple[tuple[Any, ...], Any]]

    @classmethod
    def of(cls, model: nnx.Module) -> Skeleton:
        _refuse_tracers(model)
        graph, state = nnx.split(model)
        found = {name_of(path): (path, variable) for path, variable in nnx.to_flat_state(state)}
        return cls(graph, found)

    def names(self, kind: type[nnx.Variable[Any]] = nnx.Variable) -> list[str]:
        """The names of all variables of `kind`, in order."""
        return sorted(name for name, (_, variable) in self.variables.items() if isinstance(variable, kind))

    @property
    def outside(self) -> frozenset[str]:
        """The names of arrays outside of any variable."""
        return frozenset(self.variables) - frozenset(self.names())

    def shardings(self, mesh: Mesh) -> dict[str, NamedSharding]:
        """Where each variable lives on `mesh`, by what it says itself."""
        return {name: variable_sharding(variable, mesh) for name, (_, variable) in self.variables.items()}

    def target(self, mesh: Mesh) -> dict[str, Any]:
        """The shape, the type and the place on `mesh` of every array: what a checkpoint is restored into."""
        places = self.shardings(mesh)
        return {name: shape_at(variable, places[name]) for name, (_, variable) in self.variables.items()}

    def rebuild(self, *parts: Mapping[str, jax.Array], training: bool = False) -> Any:
        """The model with the arrays of `parts`, which together name every variable.

        Its layers are in the mode to train (`model.train()`) or to evaluate in, whatever they were made with.
        """
        arrays = {name: array for part in parts for name, array in part.items()}
        model = nnx.merge(
            self.graph, nnx.from_flat_state([(path, arrays[name]) for name, (path, _) in self.variables.items()])
        )
        if training:
            model.train()
        else:
            model.eval()
        return model


def _refuse_tracers(model: nnx.Module) -> None:
    """Raise a ModelStateError for arrays that Flax would take for plain attributes.

    The model is made in a compiled program, and what it computes there must come out as the model's state.
    """
    found = [name_of(path) for path, value in nnx.iter_graph(model) if isinstance(value, jax.core.Tracer)]
    if found:
        hint = "an array outside of an nnx.Variable: hold it in one, or in nnx.data(...) where no step changes it"
        raise ModelStateError([f"{name}: {hint}" for name in sorted(found)])


def named_leaves(model: nnx.Module) -> dict[str, Any]:
    """The variables of a model, and its arrays outside of any, by name."""
    return {name_of(path): leaf for path, leaf in nnx.to_flat_state(nnx.state(model))}


def value_of(leaf: Any) -> Any:
    """The array of a leaf of a model: of a variable its value."""
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def arrays_of(model: nnx.Module, kind: type[nnx.Variable[Any]] | None = None) -> Arrays:
    """The arrays of all variables of `kind`, by name; by default all arrays."""
    leaves = named_leaves(model)
    return {name: value_of(leaf) for name, leaf in leaves.items() if kind is None or isinstance(leaf, kind)}


def abstract(make: Callable[[], M]) -> M:
    """The model that `make` makes, with shapes in place of arrays: nothing is computed."""
    model: M = nnx.eval_shape(make)
    return model


def name_of(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))


def count(arrays: Mapping[str, Any]) -> int:
    """How many numbers the arrays hold."""
    return sum(array.size for array in arrays.values())
