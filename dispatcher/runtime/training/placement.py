"""Where a training's arrays live: the mesh, and the partition spec of each of the model's variables.

A variable says over which axes it is sharded, as in Flax: `nnx.with_partitioning(init, ("embed", "mlp"))`. A name is a
logical axis, which the rules map to axes of the mesh, or it is an axis of the mesh itself. All other names are errors;
so are rules for axes that the mesh lacks, and two axes of one array on the same axis of the mesh. An axis of an array
that its part of the mesh does not divide is replicated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dispatcher.errors import ConfigError, nearest
from dispatcher.runtime.execution import DATA_AXIS, TENSOR_AXIS, Topology
from dispatcher.runtime.sharding import divides, replicated

_FSDP_AXIS: Final = "fsdp"
# The rows of a batch are spread over these axes of a mesh, as far as it has them.
_BATCH_AXES: Final = (DATA_AXIS, _FSDP_AXIS)
# Smaller parameters are replicated: gathering them takes longer than keeping them saves.
_FSDP_ABOVE_BYTES: Final = 4 * 2**20

# What one axis of an array is sharded over.
Axes = str | tuple[str, ...] | None
Rules = Mapping[str, Any]


def make_mesh(topology: Topology, sizes: Mapping[str, int], *, where: str = "training.mesh") -> Mesh:
    """A mesh of the topology's devices with axes of these `sizes`, in their order; -1, at most once: what is left.

    Without sizes, or where they do not name them, `data` has what is left and `tensor` the topology's tensor shards.
    """
    count = len(topology.devices)
    axes = {TENSOR_AXIS: topology.tensor_shards, **sizes}
    open_axes = [name for name, size in axes.items() if size == -1]
    if DATA_AXIS not in axes:
        axes = {DATA_AXIS: 1 if open_axes else -1, **axes}
        open_axes = open_axes or [DATA_AXIS]
    # The devices of one tensor group are adjacent, so that they belong to one process if it has enough.
    axes[TENSOR_AXIS] = axes.pop(TENSOR_AXIS)
    if len(open_axes) > 1 or any(size < 1 for size in axes.values() if size != -1):
        raise ConfigError(f"{where} = {dict(sizes)}: expected sizes of 1 or more, and at most one of -1")
    fixed = math.prod(size for size in axes.values() if size != -1)
    for name in open_axes:
        axes[name] = count // fixed
    if math.prod(axes.values()) != count:
        shape = " x ".join(f"{name} {size}" for name, size in axes.items())
        raise ConfigError(f"{where} = {dict(sizes)}: {shape} for {count} devices: their product must be {count}")
    grid = np.array(topology.devices, dtype=object).reshape(*axes.values())
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def batch_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes of the mesh over which rows are spread."""
    return tuple(name for name in _BATCH_AXES if name in mesh.shape)


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are split."""
    return math.prod(mesh.shape[name] for name in batch_axes(mesh))


def batch_sharding(mesh: Mesh, *, axis: int = 0) -> NamedSharding:
    """Rows spread over the mesh along the array axis `axis`."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, batch_axes(mesh)))  # type: ignore[no-untyped-call]


@contextmanager
def tracing(mesh: Mesh, rules: Rules) -> Iterator[None]:
    """The block's traces see the mesh (`jax.set_mesh`) and the rules of the logical axes.

    Flax does not shard variables when they are made: a model is made in one compiled step, whose outputs are sharded.
    """
    flat = tuple((name, tuple(to) if isinstance(to, list) else to) for name, to in rules.items())
    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(mesh))
        stack.enter_context(nnx.logical_axis_rules(flat))
        stack.enter_context(nnx.use_eager_sharding(False))  # type: ignore[no-untyped-call]  # untyped in Flax
        yield


class Placement:
    """The partition specs of a model's variables on a mesh.

    With `fsdp`, every parameter above 4 MB is sharded along its largest axis that the mesh divides and nothing else
    shards, over the axis `fsdp` of the mesh, or over `data` if it has none.
    """

    def __init__(self, mesh: Mesh, rules: Rules, *, fsdp: bool = False) -> None:
        self.mesh = mesh
        self.rules = rules
        self._fsdp = fsdp
        self._check_rules()

    def shardings(self, variables: Mapping[str, tuple[Any, Any]]) -> dict[str, NamedSharding]:
        """The sharding of each of a model's abstract variables, by name; ConfigError lists all faults."""
        faults: list[str] = []
        found = {name: self._sharding(name, variable, faults) for name, (_, variable) in variables.items()}
        if faults:
            raise ConfigError("the model's partition specs cannot be used:\n" + "\n".join(faults))
        return found

    def _sharding(self, name: str, variable: Any, faults: list[str]) -> NamedSharding:
        metadata = variable.get_metadata() if isinstance(variable, nnx.Variable) else {}
        shape = tuple(variable.shape)
        written = metadata.get("out_sharding") or ()
        written = getattr(written, "spec", written)
        own_rules = dict(metadata.get("sharding_rules") or ())
        try:
            axes = [self._resolved(axis, own_rules) for axis in written]
            if len(axes) > len(shape):
                raise ConfigError(f"{tuple(written)} has {len(axes)} axes, the array {len(shape)}")
            _check_conflict(axes)
        except ConfigError as error:
            faults.append(f"{name} {list(shape)}: {error}")
            return replicated(self.mesh)
        axes += [None] * (len(shape) - len(axes))
        axes = [axis if divides(self.mesh, axis, size) else None for axis, size in zip(axes, shape, strict=True)]
        if self._fsdp and isinstance(variable, nnx.Param):
            axes = self._with_fsdp(axes, shape, np.dtype(variable.dtype).itemsize)
        return NamedSharding(self.mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]

    def _resolved(self, axis: Any, own_rules: Rules) -> Axes:
        """The axes of the mesh that a written axis stands for."""
        if axis is None or isinstance(axis, str):
            names: Sequence[Any] = [axis]
        else:
            names = list(axis)
        found = [to for name in names if name is not None for to in self._mapped(name, {**self.rules, **own_rules})]
        return found[0] if len(found) == 1 else tuple(found) or None

    def _mapped(self, name: str, rules: Rules) -> list[str]:
        """The axes of the mesh that one name stands for."""
        if name in rules:
            found = listed(rules[name])
            lacking = [axis for axis in found if axis not in self.mesh.shape]
            if lacking:
                raise ConfigError(
                    f"the rule of {name!r} has the axis {lacking[0]!r}{nearest(lacking[0], self.mesh.shape)}, which "
                    f"the mesh lacks: expected {', '.join(self.mesh.shape)} or None; add it to training.mesh"
                )
            return found
        if name in self.mesh.shape:
            return [name]
        logical, axes = ", ".join(rules) or "there are no rules", ", ".join(self.mesh.shape)
        raise ConfigError(
            f"unknown axis {name!r}{nearest(str(name), [*rules, *self.mesh.shape])}: not a logical axis "
            f"({logical}) nor one of the mesh ({axes}); map it in AXIS_RULES or training.axis_rules, to null for "
            "replication"
        )

    def _with_fsdp(self, axes: list[Axes], shape: tuple[int, ...], itemsize: int) -> list[Axes]:
        over = _FSDP_AXIS if _FSDP_AXIS in self.mesh.shape else DATA_AXIS
        if math.prod(shape) * itemsize <= _FSDP_ABOVE_BYTES or over in _used(axes):
            return axes
        fitting = [place for place, axis in enumerate(axes) if axis is None and divides(self.mesh, over, shape[place])]
        if not fitting:
            return axes
        largest = max(fitting, key=lambda number: shape[number])
        return [over if number == largest else axis for number, axis in enumerate(axes)]

    def _check_rules(self) -> None:
        faults = [
            f"training.axis_rules.{name} = {axis!r}: the mesh has no such axis{nearest(axis, self.mesh.shape)}: "
            f"expected {', '.join(self.mesh.shape)} or null; add it to training.mesh"
            for name, to in self.rules.items()
            for axis in listed(to)
            if axis not in self.mesh.shape
        ]
        if faults:
            raise ConfigError("\n".join(faults))


def listed(to: Any) -> list[str]:
    """The axes of the mesh that a rule names: None, one or several."""
    return [] if to is None else [to] if isinstance(to, str) else list(to)


def _used(axes: Iterable[Axes]) -> list[str]:
    return [name for axis in axes if axis is not None for name in ((axis,) if isinstance(axis, str) else axis)]


def _check_conflict(axes: Sequence[Axes]) -> None:
    used = _used(axes)
    twice = sorted({name for name in used if used.count(name) > 1})
    if twice:
        raise ConfigError(f"two of its axes are sharded over {twice[0]!r} of the mesh: an axis can be used once")


@dataclass(frozen=True)
class PlacedArrays:
    """Lines of the table of a model's arrays: those that differ only in a number of their name are one line."""

    name: str
    count: int
    shape: tuple[int, ...]
    dtype: str
    spec: str
    bytes_per_device: int
    texts: tuple[str, ...]

    @property
    def shown_name(self) -> str:
        return self.name + (f" x{self.count}" if self.count > 1 else "")


def placed(arrays: Mapping[str, Any], texts: Mapping[str, tuple[str, ...]] | None = None) -> list[PlacedArrays]:
    """The lines of the table, for arrays or abstract arrays with shardings; `texts` are what it says of each beside."""
    groups: dict[tuple[Any, ...], int] = {}
    for name, array in arrays.items():
        pattern = "/".join("*" if part.isdigit() else part for part in name.split("/"))
        beside = texts[name] if texts is not None else ()
        key = (
            pattern,
            tuple(array.shape),
            str(array.dtype),
            _spec_text(array.sharding),
            _bytes_per_device(array),
            beside,
        )
        groups[key] = groups.get(key, 0) + 1
    return [
        PlacedArrays(name, count, shape, dtype, spec, each * count, beside)
        for (name, shape, dtype, spec, each, beside), count in groups.items()
    ]


def _spec_text(sharding: Any) -> str:
    spec = getattr(sharding, "spec", ())
    shown = ["-" if axis is None else axis if isinstance(axis, str) else "+".join(axis) for axis in spec]
    return ", ".join(shown) if any(part != "-" for part in shown) else "replicated"


def _bytes_per_device(array: Any) -> int:
    shape = array.sharding.shard_shape(tuple(array.shape))
    # Random keys have a type of their own, without a size.
    itemsize = getattr(array.dtype, "itemsize", 4)
    return int(math.prod(shape) * itemsize)
