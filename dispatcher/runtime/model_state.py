"""What a forward pass changes of a model, and whether that can be carried to the next step.

Statistics of nnx.BatchNorm, counts of nnx.Dropout(rngs=...) and every nnx.Variable of one's own are carried: they are
part of the state that is trained, saved and restored. All else that a pass changes would be lost without a word when
the compiled step ends, so it is refused while the step is traced: attributes of Python, arrays outside of a Variable,
variables that come and go, and trained variables, which are the optimizer's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import jax
import jax.extend.core
import numpy as np
from flax import nnx

from dispatcher.errors import ModelStateError
from dispatcher.runtime.parameters import Arrays, name_of, named_leaves, value_of

# Attributes that Flax keeps for itself.
_INTERNAL: Final = "_pytree__"
_CONTAINERS: Final = (list, dict, set, np.ndarray)


class Watch:
    """A model that is about to be used, as it is now: `changes` says afterwards what has become of its variables."""

    def __init__(self, model: nnx.Module) -> None:
        self._model = model
        self._attributes = _attributes(model)
        leaves = named_leaves(model)
        self._leaves = {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, nnx.Intermediate)}
        self._values = {name: value_of(leaf) for name, leaf in self._leaves.items()}

    def changes(self) -> Arrays:
        """The variables that hold something else than before, by name; ModelStateError for all other changes."""
        # What a pass sows is for the loss to pop, and gone after it.
        nnx.pop(self._model, nnx.Intermediate)
        # A loss may put layers into another mode for its pass: each begins in the same mode again.
        self._model.train()  # type: ignore[no-untyped-call]  # Flax says no types here
        after = named_leaves(self._model)
        faults = _different_attributes(self._attributes, _attributes(self._model))
        faults += [f"{name}: a variable that was not there before the step" for name in after.keys() - self._leaves]
        faults += [f"{name}: a variable that is gone after the step" for name in self._leaves.keys() - after.keys()]
        changed = {}
        for name in self._leaves.keys() & after.keys():
            before, now = self._values[name], value_of(after[name])
            if now is before:
                continue
            changed[name] = now
            faults += _misfit(name, before, now)
        if faults:
            raise ModelStateError(sorted(faults))
        return changed


def carried(
    use: Callable[[Arrays, Arrays], Arrays],
    suspects: Collection[str],
    trained: Arrays,
    rest: Arrays,
    outside: Collection[str],
) -> list[str]:
    """Which of `suspects`, names that `use(trained, rest)` gives, have to be carried to the next step.

    Flax's transformations (nnx.remat, nnx.jit) give back every variable as a new array, most with the old value: where
    they were at work, the program is traced once more and looked through. ModelStateError when a trained variable
    changes, or one of the arrays `outside` of any variable.
    """
    if not (trained.keys() | set(outside)).intersection(suspects):
        return sorted(suspects)
    traced, shape = jax.make_jaxpr(use, return_shape=True)(trained, rest)
    # Both are flattened in the order of their keys.
    inputs = [*sorted(trained), *sorted(rest)]
    changed = {
        name
        for name, source in zip(sorted(shape), _sources(traced.jaxpr), strict=True)
        if source is None or inputs[source] != name
    }
    why = "is trained, so only the optimizer may change it: use an nnx.Variable that is not trained"
    faults = [f"{name}: {why}" for name in changed & trained.keys()]
    why = "an array outside of an nnx.Variable that a step changes: hold it in an nnx.Variable"
    faults += [f"{name}: {why}" for name in changed.intersection(outside)]
    if faults:
        raise ModelStateError(sorted(faults))
    return sorted(changed)


def _sources(jaxpr: Any) -> list[int | None]:
    """For each output the number of the input that it is, unchanged; None when it is computed."""
    known: dict[Any, int | None] = {variable: number for number, variable in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr")
        inner = getattr(inner, "jaxpr", inner)
        if equation.primitive.name not in ("jit", "pjit", "remat2", "checkpoint") or inner is None:
            continue
        for output, source in zip(equation.outvars, _sources(inner), strict=True):
            if source is not None:
                known[output] = _source_of(equation.invars[source], known)
    return [_source_of(variable, known) for variable in jaxpr.outvars]


def _source_of(variable: Any, known: Mapping[Any, int | None]) -> int | None:
    # A literal is a constant, which cannot be looked up.
    return None if isinstance(variable, jax.extend.core.Literal) else known.get(variable)


def _attributes(model: nnx.Module) -> dict[str, Any]:
    """All that a model holds beside its variables and arrays, by name."""
    found = {}
    for path, value in nnx.iter_graph(model):
        internal = any(str(part).startswith(_INTERNAL) for part in path)
        if internal or isinstance(value, nnx.Variable | jax.Array | nnx.Object):
            continue
        # What can be changed in place is compared with a copy.
        found[name_of(path)] = copy.deepcopy(value) if isinstance(value, _CONTAINERS) else value
    return found


def _different_attributes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    hint = "hold it in an nnx.Variable"
    faults = [f"{name}: an attribute that a step adds: {hint}" for name in after.keys() - before.keys()]
    faults += [f"{name}: an attribute that a step removes" for name in before.keys() - after.keys()]
    for name in before.keys() & after.keys():
        if not _same(before[name], after[name]):
            was, now = repr(before[name])[:60], repr(after[name])[:60]
            faults.append(f"{name}: an attribute that a step changes ({was} to {now}): {hint}")
    return faults


def _same(before: Any, after: Any) -> bool:
    if before is after:
        return True
    if isinstance(before, np.ndarray) or isinstance(after, np.ndarray):
        return type(before) is type(after) and np.array_equal(before, after)
    try:
        return bool(before == after)
    except Exception:  # noqa: BLE001  # a comparison of somebody else's objects may raise anything
        return False


def _misfit(name: str, before: Any, now: Any) -> list[str]:
    """Why a changed value cannot be carried."""
    if not isinstance(now, jax.Array) or (now.shape, now.dtype) != (before.shape, before.dtype):
        shown = f"{now.dtype}{list(now.shape)}" if isinstance(now, jax.Array) else type(now).__qualname__
        return [f"{name}: {before.dtype}{list(before.shape)} before a step and {shown} after it: keep shape and type"]
    return []


def strongly_typed(array: jax.Array) -> jax.Array:
    """`array` as one that does not promote like a Python number: else the next step would be another program."""
    return jax.lax.convert_element_type(array, array.dtype) if getattr(array, "weak_type", False) else array
