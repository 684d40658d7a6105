"""Shardings of arrays on a mesh of devices, by the partition specs that `training.placement` decides.

An array axis that its axes of the mesh do not divide is replicated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def partition_spec(*axes: str | None) -> dict[str, Any]:
    """Metadata of an nnx.Variable: for each array axis the mesh axis over which it is sharded, or None."""
    # Not sharded when it is made: the trainer makes a model in one compiled step, with the shards as its outputs.
    return {"out_sharding": axes, "eager_sharding": False}


def replicated(mesh: Mesh) -> NamedSharding:
    """A full copy on every device."""
    return _sharding(mesh, ())


def _best_effort_sharding(mesh: Mesh, spec: Iterable[Any], shape: Sequence[int]) -> NamedSharding:
    """The sharding of an array of `shape`; array axes that their mesh axis does not divide are not sharded."""
    pairs = zip(spec, shape, strict=False)
    return _sharding(mesh, [axis if divides(mesh, axis, size) else None for axis, size in pairs])


def divides(mesh: Mesh, axis: Any, size: int) -> bool:
    """Whether the mesh has the axes that `axis` names, one or several, and they divide `size` together."""
    names = (axis,) if isinstance(axis, str) else tuple(axis or ())
    return all(name in mesh.shape for name in names) and size % math.prod(mesh.shape[name] for name in names) == 0


def optimizer_shardings(tree: Any, shardings: Mapping[str, NamedSharding], mesh: Mesh) -> Any:
    """Shardings of an optimizer state `tree` (arrays or shapes): a leaf named like a parameter is sharded like it.

    The name is the last dict key in a leaf's path. All other leaves, and those of a lower rank, are replicated.
    """

    def choose(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = next((key.key for key in reversed(path) if isinstance(key, jax.tree_util.DictKey)), None)
        found = shardings.get(name) if isinstance(name, str) else None
        if found is None or len(found.spec) > len(leaf.shape):
            return replicated(mesh)
        return _best_effort_sharding(mesh, found.spec, leaf.shape)

    return jax.tree_util.tree_map_with_path(choose, tree)


def per_device_value(value: int, mesh: Mesh) -> jax.Array:
    """int32[devices] that is `value` on this process's devices, and on the others what their processes pass."""
    one_each = _sharding(mesh, (mesh.axis_names,))
    return jax.make_array_from_callback((mesh.size,), one_each, lambda index: np.full(1, value, np.int32))


def put(array: Any, placed: NamedSharding) -> jax.Array:
    """An array that every process has, or one that is global already, with this sharding."""
    found: jax.Array
    if placed.is_fully_addressable or not getattr(array, "is_fully_addressable", True):
        found = jax.device_put(array, placed)
    elif jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        # JAX does not put keys onto devices of other processes.
        wrap = partial(jax.random.wrap_key_data, impl=jax.random.key_impl(array))
        found = jax.jit(wrap, out_shardings=placed)(np.asarray(jax.random.key_data(array)))
    else:
        found = jax.device_put(np.asarray(array), placed)
    return found


def abstract_array(shape: Any, placed: NamedSharding) -> Any:
    """The shape and dtype of `shape`, with a sharding."""
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=placed)  # type: ignore[no-untyped-call]


def shape(lengths: Sequence[int], dtype: Any) -> Any:
    """Shape and dtype in place of an array."""
    return jax.ShapeDtypeStruct(tuple(lengths), dtype)  # type: ignore[no-untyped-call]  # untyped in JAX


def constrain(tree: Any, shardings: Any) -> Any:
    """Inside a compiled step: `tree` with these shardings."""
    return jax.lax.with_sharding_constraint(tree, shardings)  # type: ignore[no-untyped-call]


def _sharding(mesh: Mesh, axes: Iterable[str | tuple[str, ...] | None]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]
