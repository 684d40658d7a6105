"""Where arrays live on a mesh of devices with the axes `data` and `tensor` (`Topology.mesh`).

Every device along `data` computes other rows of a batch, and every device along `tensor` another part of each matrix.
What a parameter says with `cut` is a wish: an axis that the shards do not divide stays whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dispatcher.runtime.execution import DATA_AXIS


def cut(*axes: str | None) -> dict[str, Any]:
    """Metadata of a parameter: which of its axes is cut over which axis of the mesh."""
    # Not placed when it is made: the trainer makes a model as one program, with the shards as its outputs.
    return {"out_sharding": axes, "eager_sharding": False}


def replicated(mesh: Mesh) -> NamedSharding:
    """On every device whole."""
    return _sharding(mesh, ())


def by_rows(mesh: Mesh, *, axis: int = 0) -> NamedSharding:
    """Cut along `axis` over the data shards."""
    return _sharding(mesh, (*[None] * axis, DATA_AXIS))


def variable_sharding(variable: Any, mesh: Mesh) -> NamedSharding:
    """Where a model's variable lives, by what it says itself; an array outside of any is on every device whole."""
    metadata = variable.get_metadata() if isinstance(variable, nnx.Variable) else {}
    return fitting(mesh, metadata.get("out_sharding") or (), variable.shape)


def fitting(mesh: Mesh, axes: Iterable[Any], shape: Sequence[int]) -> NamedSharding:
    """The sharding of an array of `shape`; axes of the array that the mesh's axis does not divide stay whole."""
    sizes = mesh.shape
    pairs = zip(axes, shape, strict=False)
    return _sharding(mesh, [name if name in sizes and size % sizes[name] == 0 else None for name, size in pairs])


def like_parameters(tree: Any, shardings: Mapping[str, NamedSharding], mesh: Mesh) -> Any:
    """Shardings for an optimizer's state: a leaf under a parameter's name and of its rank goes where it is.

    `tree` holds arrays or their shapes; a parameter is found by the last key of a leaf's path.
    """

    def choose(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = next((key.key for key in reversed(path) if isinstance(key, jax.tree_util.DictKey)), None)
        found = shardings.get(name) if isinstance(name, str) else None
        if found is None or len(found.spec) > len(leaf.shape):
            return replicated(mesh)
        return fitting(mesh, found.spec, leaf.shape)

    return jax.tree_util.tree_map_with_path(choose, tree)


def put_rows(batch: Any, mesh: Mesh, *, axis: int = 0) -> Any:
    """The arrays of `batch`, which every process has whole, cut along `axis` over the data shards of all processes."""
    sharding = by_rows(mesh, axis=axis)
    if sharding.is_fully_addressable:
        return jax.device_put(batch, sharding)

    def put(array: np.ndarray[Any, Any]) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, batch)


def for_each_device(value: int, mesh: Mesh) -> jax.Array:
    """int32[devices] in which this process's devices have `value`, and those of others what these say."""
    everywhere = _sharding(mesh, (mesh.axis_names,))
    return jax.make_array_from_callback((mesh.size,), everywhere, lambda index: np.full(1, value, np.int32))


def shape_at(shape: Any, place: NamedSharding) -> Any:
    """The shape and type of `shape`, to live at `place`."""
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place)  # type: ignore[no-untyped-call]


def constrain(tree: Any, shardings: Any) -> Any:
    """Inside of a compiled program: the arrays of `tree`, each living where `shardings` says."""
    return jax.lax.with_sharding_constraint(tree, shardings)  # type: ignore[no-untyped-call]


def _sharding(mesh: Mesh, axes: Iterable[str | tuple[str, ...] | None]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]
