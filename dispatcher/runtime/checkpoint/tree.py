"""A pytree as named leaves: how it is saved, and whether a checkpoint fits the tree that it is restored into.

Arrays are saved by Orbax. Python's numbers and text, and arrays without elements, are in tree.json, with the shape and
type of every leaf. The target determines the containers and the placement of arrays; names, shapes and types must
match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from dispatcher.errors import CheckpointError, CheckpointMismatchError, DamagedCheckpointError

_ROOT: Final = "(the tree itself)"
_ARRAY: Final = "array"
_SCALARS: Final[Mapping[str, type]] = {"bool": bool, "int": int, "float": float, "str": str}
_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "bool": lambda text: text == "True",
    "int": int,
    "float": float.fromhex,
    "str": str,
}

Leaves = dict[str, Any]


class Leaf(msgspec.Struct, frozen=True, omit_defaults=True):
    """One leaf without its array. `weak`: a JAX array with the weak type of a Python number."""

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    weak: bool = False
    # Numbers as text, because readers of JSON may round them.
    value: str | None = None

    def __str__(self) -> str:
        if self.kind != _ARRAY:
            return self.kind
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def in_orbax(self) -> bool:
        return self.kind == _ARRAY and 0 not in self.shape


def named_leaves(tree: Any) -> Leaves:
    """The leaves of `tree` by name, such as `params/dense/kernel`; CheckpointError for a duplicate name."""
    named: Leaves = {}
    dotted: dict[str, str] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = "/".join(map(_part, path)) or _ROOT
        # Orbax joins the parts with dots, and confuses leaves whose names are then equal.
        other = dotted.setdefault(name.replace("/", "."), name)
        if name in named or other != name:
            raise CheckpointError(
                f"two leaves of the tree would be saved under one name: {other!r} and {name!r}; rename one of them"
            )
        named[name] = leaf
    return named


def describe(leaves: Leaves) -> dict[str, Leaf]:
    """The description of every leaf; CheckpointError for one that cannot be saved."""
    return {name: _describe(name, leaf) for name, leaf in leaves.items()}


def encode(described: Mapping[str, Leaf]) -> bytes:
    """The file tree.json."""
    return msgspec.json.format(msgspec.json.encode({"leaves": described}), indent=1) + b"\n"


def decode(data: bytes, where: str) -> dict[str, Leaf]:
    """The inverse of `encode`; `where` is the file, for the error."""
    try:
        return msgspec.json.decode(data, type=dict[str, dict[str, Leaf]])["leaves"]
    except (msgspec.DecodeError, KeyError) as error:
        raise DamagedCheckpointError(f"{where}: not the description of a tree: {error}") from None


def for_orbax(leaves: Leaves, described: Mapping[str, Leaf]) -> dict[str, Any]:
    """The arrays of the tree in nested dicts, so that Orbax alone can read them."""
    arrays = {name: leaf for name, leaf in leaves.items() if described[name].in_orbax}
    return _nest({name: np.asarray(leaf) if isinstance(leaf, np.generic) else leaf for name, leaf in arrays.items()})


def saved_names(names: Iterable[str], saved: Container[str], renamed_from: Mapping[str, str]) -> dict[str, str]:
    """For each name of a target the name that its leaf has in a checkpoint.

    `renamed_from` has former names of arrays, or of layers above them, by their names now: `{"body": "trunk"}`.
    They are replaced wherever they are in a name: the state of an optimizer has the parameters' names in its own.
    """

    def former(name: str) -> str:
        for now, before in renamed_from.items():
            inside, part = f"/{name}/", f"/{now}/"
            if part in inside:
                candidate = inside.replace(part, f"/{before}/", 1)[1:-1]
                if candidate in saved:
                    return candidate
        return name

    names = list(names)
    found = {name: name if name in saved else former(name) for name in names}
    twice = _twice(found)
    if twice:
        # A name of today may have been that of another layer: in a checkpoint from then, each has its former name.
        before = {name: former(name) for name in names}
        if not _twice(before):
            return before
        now = [name for name in found if found[name] == twice[0]]
        raise CheckpointError(f"RENAMED_FROM: {' and '.join(now)} would both be {twice[0]} of the checkpoint")
    return found


def _twice(names: Mapping[str, str]) -> list[str]:
    """What is the saved name of several."""
    return [name for name, count in Counter(names.values()).items() if count > 1]


def check_fit(saved: Mapping[str, Leaf], target: Mapping[str, Leaf], where: str, *, partial: bool) -> None:
    """Raise a CheckpointMismatchError that lists every leaf that is missing, unknown or of another shape or type.

    With `partial` the checkpoint may have leaves that the target does not have.
    """
    problems = []
    for name, leaf in target.items():
        there = saved.get(name)
        if there is None:
            problems.append(f"{name}: missing in the checkpoint; the target has {leaf}")
        elif (there.kind, there.dtype, there.shape) != (leaf.kind, leaf.dtype, leaf.shape):
            problems.append(f"{name}: {there} in the checkpoint, {leaf} in the target")
    if not partial:
        unknown = [name for name in saved if name not in target]
        problems += [f"{name}: {saved[name]} in the checkpoint; unknown to the target" for name in unknown]
    if problems:
        raise CheckpointMismatchError(
            where,
            problems,
            "Restore into the tree that was saved: the same model, optimizer and configuration; "
            "RENAMED_FROM of the job has former names of layers and arrays",
        )


def abstract(leaves: Leaves, described: Mapping[str, Leaf]) -> dict[str, Any]:
    """The arrays that Orbax restores for a target with these leaves, with their shardings."""
    return _nest({name: _abstract(leaf) for name, leaf in leaves.items() if described[name].in_orbax})


def rebuild(target: Any, restored: Mapping[str, Any], saved: Mapping[str, Leaf], names: Mapping[str, str]) -> Any:
    """`target` with its leaves replaced by the restored arrays and the other saved values; see `saved_names`."""
    values = [
        _value(saved[name], leaf, lambda name=name: _pick(restored, name))  # type: ignore[misc]  # bound per turn
        for name, leaf in ((names[now], leaf) for now, leaf in named_leaves(target).items())
    ]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(target), values)


def _describe(name: str, leaf: Any) -> Leaf:
    for kind, python_type in _SCALARS.items():
        if type(leaf) is python_type:
            return Leaf(kind, value=leaf.hex() if isinstance(leaf, float) else str(leaf))
    if isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct) and leaf.dtype != np.dtype(object):
        weak = bool(getattr(leaf, "weak_type", False))
        return Leaf(_ARRAY, str(leaf.dtype), tuple(leaf.shape), weak)
    raise CheckpointError(
        f"{name}: a {type(leaf).__qualname__} cannot be saved in a checkpoint: expected an array or one of "
        f"{', '.join(_SCALARS)}; put other values into the metadata"
    )


def _value(saved: Leaf, target: Any, array: Callable[[], Any]) -> Any:
    if saved.kind != _ARRAY:
        return _READ[saved.kind](saved.value or "")
    if not saved.in_orbax:
        return _empty(target)
    if isinstance(target, np.generic):
        return np.asarray(array())[()]
    if saved.weak and not saved.shape and isinstance(target, jax.Array | jax.ShapeDtypeStruct):
        return _weakened(array())
    return array()


def _weakened(array: jax.Array) -> jax.Array:
    """`array` with a weak type; without it, the first step after a restore would compute with other types."""
    weak = jnp.asarray(np.asarray(array).item())
    if weak.dtype != array.dtype:
        return array
    placed: jax.Array = jax.device_put(weak, array.sharding)
    return placed


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray | np.generic):
        return np.empty(leaf.shape, leaf.dtype)
    shape_and_type: Any = jax.ShapeDtypeStruct
    return shape_and_type(leaf.shape, leaf.dtype, sharding=_sharding(leaf))


def _sharding(leaf: Any) -> Sharding:
    """The target's sharding; without one, the first device, or all devices of several processes."""
    sharding: Sharding | None = getattr(leaf, "sharding", None)
    if sharding is not None:
        return sharding
    if jax.process_count() == 1:
        return SingleDeviceSharding(jax.devices()[0])
    everywhere: Any = PartitionSpec
    return NamedSharding(Mesh(np.array(jax.devices()), ("all",)), everywhere())


def _empty(target: Any) -> Any:
    empty = np.zeros(target.shape, target.dtype)
    if isinstance(target, np.ndarray):
        return empty
    return jax.make_array_from_callback(target.shape, _sharding(target), lambda index: empty[index])


def _part(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _nest(named: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in named.items():
        *folders, last = name.split("/")
        here = nested
        for folder in folders:
            here = here.setdefault(folder, {})
        here[last] = value
    return nested


def _pick(nested: Mapping[str, Any], name: str) -> Any:
    here: Any = nested
    for part in name.split("/"):
        here = here[part]
    return here
