"""A model's variables as a flat dict from names to arrays, such as `blocks/0/attention/query/kernel`.

Gradients, optimizers, checkpoints and messages all use these names, and no class of a library is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import jax
from flax import nnx

from dispatcher.errors import ModelStateError
from dispatcher.runtime.flax_roles import LinenModules, roles_of
from dispatcher.runtime.roles import Role
from dispatcher.runtime.sharding import shape

M = TypeVar("M", bound=nnx.Module)
Arrays = dict[str, jax.Array]
TRANSIENT: Final = (nnx.Cache, nnx.Intermediate)


@dataclass(frozen=True)
class AbstractModel:
    """A model without its arrays: a graphdef and abstract variables, from which `merge` makes it again.

    `variables` maps names to paths and abstract variables; arrays that are in no nnx.Variable are among them. `roles`
    say what the variables are.
    """

    graphdef: nnx.GraphDef[Any]
    variables: Mapping[str, tuple[tuple[Any, ...], Any]]
    roles: Mapping[str, Role] = field(default_factory=dict)

    @classmethod
    def made_by(cls, make_model: Callable[[], nnx.Module]) -> AbstractModel:
        """The model that `make_model` returns; nothing is computed."""
        linen = LinenModules()
        with linen.watching():
            graphdef, state = _traced(make_model)
        model = nnx.merge(graphdef, state)
        _refuse_tracers(model)
        flat = list(nnx.to_flat_state(state))
        found = {name_of(path): (path, variable) for path, variable in flat}
        if len(found) < len(flat):
            names = [name_of(path) for path, _ in flat]
            twice = sorted(name for name in found if names.count(name) > 1)
            raise ModelStateError([f"{name}: the name of several variables: use no / in keys" for name in twice])
        return cls(graphdef, found, roles_of(model, found, linen))

    def names(self, chosen: nnx.filterlib.Filter = nnx.Variable) -> list[str]:
        """The names of all variables that an nnx filter chooses, in order."""
        predicate = nnx.filterlib.to_predicate(chosen)
        return sorted(name for name, (path, variable) in self.variables.items() if predicate(path, variable))

    def shapes(self) -> dict[str, Any]:
        """Shape and dtype of every array."""
        return {name: shape(variable.shape, variable.dtype) for name, (_, variable) in self.variables.items()}

    @property
    def bare_arrays(self) -> frozenset[str]:
        """The names of the arrays that are in no nnx.Variable."""
        return frozenset(self.variables) - frozenset(self.names())

    def merge(self, *states: Mapping[str, jax.Array]) -> Any:
        """The model with the arrays of `states`, which together name every variable; also inside a compiled step.

        Its layers are in the modes that they were made with; see `evaluating`.
        """
        arrays = {name: array for state in states for name, array in state.items()}
        return nnx.merge(
            self.graphdef, nnx.from_flat_state([(path, arrays[name]) for name, (path, _) in self.variables.items()])
        )


def evaluating(model: M) -> M:
    """The model in evaluation mode: without dropout, and with running averages in place of a batch's statistics."""
    seen: M = nnx.view(model, deterministic=True, use_running_average=True, raise_if_not_found=False)
    # A module of one's own may have such an attribute, and know nothing of views.
    seen.eval()  # type: ignore[no-untyped-call]  # untyped in Flax
    return seen


def _refuse_tracers(model: nnx.Module) -> None:
    """Raise a ModelStateError for arrays that Flax would treat as plain attributes.

    The model is made inside jit, and every array that it computes there must be part of the model's state.
    """
    found = [name_of(path) for path, value in nnx.iter_graph(model) if isinstance(value, jax.core.Tracer)]
    if found:
        hint = "an array in no nnx.Variable: hold it in one, or in nnx.data(...) if no step changes it"
        raise ModelStateError([f"{name}: {hint}" for name in sorted(found)])


def _refuse_no_arrays(model: nnx.Module) -> None:
    """Raise a ModelStateError for variables that hold something else than one array."""
    faults = [
        f"{name_of(path)}: {type(leaf).__name__} of {type(value).__qualname__}: hold an array in it: jnp.asarray(...)"
        for path, leaf in nnx.iter_graph(model)
        if isinstance(leaf, nnx.Variable) and not isinstance(leaf, TRANSIENT)
        if not hasattr(value := leaf.get_raw_value(), "shape")
    ]
    if faults:
        raise ModelStateError(sorted(faults))


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


def _traced(make_model: Callable[[], nnx.Module]) -> tuple[nnx.GraphDef[Any], Any]:
    """The model that `make_model` returns, as nnx.split gives it, with shapes in place of arrays.

    It is split while it has arrays: in a dict or a list Flax takes no shape for one. nnx.eval_shape would check the
    partition specs as well, with errors that do not say which variable is at fault.
    """
    graphs = []

    def made() -> Any:
        model = make_model()
        _refuse_no_arrays(model)
        # Caches and intermediates are no state of a model: they belong to one pass, or to one generation.
        nnx.pop(model, TRANSIENT)
        graph, state = nnx.split(model)
        graphs.append(graph)
        return state

    state = jax.eval_shape(made)
    return graphs[0], state


def name_of(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))


def parameter_count(arrays: Mapping[str, Any]) -> int:
    """The number of elements of all arrays."""
    return sum(array.size for array in arrays.values())
