"""State that a forward pass changes, and whether it can be carried to the next step.

The statistics of nnx.BatchNorm, the counts of nnx.Dropout(rngs=...) and every custom nnx.Variable are carried: they are
part of the training state, and are saved and restored. Other changes would be lost when the compiled step returns, so
they raise a ModelStateError while it is traced: Python attributes, arrays in no Variable, variables that are added or
removed, and trainable variables, which only the optimizer may change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import jax
import numpy as np
from flax import nnx

from dispatcher.errors import ModelStateError
from dispatcher.runtime.parameters import TRANSIENT, Arrays, name_of, named_leaves, value_of
from dispatcher.runtime.passed_through import passed_through

# Attributes that belong to Flax.
_INTERNAL: Final = "_pytree__"
# A loss may change the modes of layers: every pass starts with those that the model was made with.
_MODES: Final = ("deterministic", "use_running_average")
_CONTAINERS: Final = (list, dict, set, np.ndarray)


class Watch:
    """The state of a model before a forward pass; `changes` compares it with the state after the pass."""

    def __init__(self, model: nnx.Module) -> None:
        self._model = model
        self._attributes = _attributes(model)
        leaves = named_leaves(model)
        self._leaves = {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, TRANSIENT)}
        self._values = {name: value_of(leaf) for name, leaf in self._leaves.items()}

    def changes(self) -> Arrays:
        """The new values of the variables that were changed, by name; ModelStateError for all other changes."""
        # Intermediates that a pass sows and the loss does not pop are dropped.
        nnx.pop(self._model, TRANSIENT)
        after = named_leaves(self._model)
        faults = _different_attributes(self._attributes, _attributes(self._model))
        faults += [f"{name}: a variable that a step adds" for name in after.keys() - self._leaves]
        faults += [f"{name}: a variable that a step removes" for name in self._leaves.keys() - after.keys()]
        changed = {}
        for name in self._leaves.keys() & after.keys():
            before, now = self._values[name], value_of(after[name])
            if now is before:
                continue
            changed[name] = now
            faults += _shape_faults(name, before, now)
        if faults:
            raise ModelStateError(sorted(faults))
        return changed


def carried(
    changes: Callable[[Arrays, Arrays], Arrays],
    candidates: Collection[str],
    trainable: Arrays,
    non_trainable: Arrays,
    bare_arrays: Collection[str],
) -> list[str]:
    """Which of `candidates`, the names that `changes(trainable, non_trainable)` returns, have changed values.

    Flax's transformations (nnx.remat, nnx.scan) return every variable as a new array, most of them unchanged. If they
    were used, the step is traced once more, and its jaxpr shows which outputs are inputs. ModelStateError when a
    trainable variable changes, or one of `bare_arrays`.
    """
    if not (trainable.keys() | set(bare_arrays)).intersection(candidates):
        return sorted(candidates)
    traced, shape = jax.make_jaxpr(changes, return_shape=True)(trainable, non_trainable)
    # Both are flattened in the order of their keys.
    inputs = [*sorted(trainable), *sorted(non_trainable)]
    changed = {
        name
        for name, source in zip(sorted(shape), passed_through(traced.jaxpr), strict=True)
        if source is None or inputs[source] != name
    }
    why = "is trainable, so only the optimizer may change it: use an nnx.Variable that is not trainable"
    faults = [f"{name}: {why}" for name in changed & trainable.keys()]
    why = "an array in no nnx.Variable that a step changes: hold it in an nnx.Variable"
    faults += [f"{name}: {why}" for name in changed.intersection(bare_arrays)]
    if faults:
        raise ModelStateError(sorted(faults))
    return sorted(changed)


def _attributes(model: nnx.Module) -> dict[str, Any]:
    """The attributes of a model that are neither variables nor arrays, by name."""
    nodes = list(nnx.iter_graph(model))
    # Containers of layers and variables (nnx.data, what nnx.bridge.ToNNX makes) are structure, as modules are.
    containers = {path[:-1] for path, _ in nodes if path}
    found = {}
    for path, value in nodes:
        ignored = any(str(part).startswith(_INTERNAL) or part in _MODES for part in path)
        if ignored or path in containers or isinstance(value, nnx.Variable | jax.Array | nnx.Object):
            continue
        # A copy of what can be changed in place.
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
    except Exception:  # noqa: BLE001  # the comparison of foreign objects may raise anything
        return False


def _shape_faults(name: str, before: Any, now: Any) -> list[str]:
    """Why a changed value cannot be carried: its shape or dtype is different."""
    if not isinstance(now, jax.Array) or (now.shape, now.dtype) != (before.shape, before.dtype):
        shown = f"{now.dtype}{list(now.shape)}" if isinstance(now, jax.Array) else type(now).__qualname__
        return [f"{name}: {before.dtype}{list(before.shape)} before a step and {shown} after it: keep shape and type"]
    return []


def strongly_typed(array: jax.Array) -> jax.Array:
    """`array` without weak type: a weakly typed state would recompile the next step."""
    return jax.lax.convert_element_type(array, array.dtype) if getattr(array, "weak_type", False) else array
