"""Low-rank adapters of linear layers: LoRA, Hu et al. 2021 (arXiv:2106.09685).

An adapted layer keeps its place in the model, its parameters and their names, and gets two more: y = base(x) +
alpha / rank * x A B. A layer that several modules share gets one adapter; layers that nnx.vmap stacks get one each, in
arrays with the same stacked axes. What is no layer of Flax with a kernel (embeddings, convolutions, arrays of a module
of one's own) gets none: `report` lists it.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx
from tabulate import tabulate

from dispatcher.errors import ConfigError, nearest
from dispatcher.runtime.flax_roles import kernels_of
from dispatcher.runtime.parameters import AbstractModel, Arrays, arrays_of, name_of

# The names of an adapter's two arrays, beside those of its layer.
A: Final = "lora_a"
B: Final = "lora_b"


def add_adapters(
    module: nnx.Module,
    rank: int,
    *,
    rngs: nnx.Rngs,
    alpha: float | None = None,
    layers: str | Sequence[str] = "*",
    skip: str | Sequence[str] = (),
) -> list[str]:
    """Adapt the linear layers of `module` in place: nnx.Linear, LinearGeneral (attention) and Einsum. Their names.

    A has `rank` columns, and the adapter counts `alpha / rank` times, by default once. `layers` and `skip` are globs of
    names such as `blocks/*/attention/query`. B starts at zero, so at first the model computes what it did. The adapters
    are `nnx.LoRAParam`: with `TRAINABLE = nnx.LoRAParam` a trainer updates only them. ConfigError when `layers` or
    `skip` has a glob that matches nothing, and when nothing is adapted.
    """
    if rank < 1:
        raise ConfigError(f"add_adapters: rank = {rank}: expected 1 or more")
    known = {name: layer for name, layer in _layers(module) if not isinstance(layer, _Adapted)}
    if not known:
        raise ConfigError(
            "add_adapters: the model has no layer to adapt: no nnx.Linear, nnx.LinearGeneral or nnx.Einsum without an "
            "adapter (layers of Linen, and subclasses with a __call__ of their own, get none)"
        )
    wanted, unwanted = _matching(known, layers, "layers"), _matching(known, skip, "skip")
    chosen = [name for name in known if name in wanted and name not in unwanted]
    if not chosen:
        raise ConfigError(f"add_adapters: no layer to adapt; the model has {', '.join(known)}")
    for name in chosen:
        _adapt(known[name], rank, 1.0 if alpha is None else alpha / rank, rngs)
    return chosen


def merge_adapters(model: nnx.Module) -> None:
    """Add every adapter of `model` to its layer's kernel, in place, and remove it: what is left is the base model.

    ConfigError when another layer has the same kernel: with the adapter merged it would compute something else.
    """
    adapted_layers = [(name, layer) for name, layer in _layers(model) if isinstance(layer, _Adapted)]
    for name, layer in adapted_layers:
        others = sorted(_others_with(layer.kernel, layer, model))
        if others:
            raise ConfigError(
                f"merge_adapters: {name}: {', '.join(others)} has the same kernel, which would change too"
            )
    for _, layer in adapted_layers:
        kernel = layer.kernel.get_value()
        layer.kernel.set_value((kernel + layer.lora_scale * _product(layer)).astype(kernel.dtype))
        del layer.lora_a, layer.lora_b, layer.lora_scale
        layer.__class__ = type(layer).__bases__[1]


def _others_with(variable: Any, layer: Any, model: nnx.Module) -> Iterator[str]:
    """The modules that have `variable` as well as `layer`."""
    for path, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Module) and node is not layer and any(one is variable for one in vars(node).values()):
            yield name_of(path)


def merged(model: AbstractModel, arrays: Arrays) -> Arrays:
    """The arrays of the base model with its adapters merged, from all arrays of a `model` with adapters."""
    whole = model.merge(arrays)
    merge_adapters(whole)
    return arrays_of(whole)


def adapted(model: nnx.Module) -> list[str]:
    """The names of the layers of `model` that have an adapter."""
    return [name for name, layer in _layers(model) if isinstance(layer, _Adapted)]


def report(model: AbstractModel) -> str | None:
    """A table of the layers with adapters, and of the matrices that have none; None for a model without adapters."""
    shapes = model.shapes()
    layers = {name: layer for name, layer in _layers(model.merge(shapes)) if isinstance(layer, _Adapted)}
    if not layers:
        return None
    rows: list[list[Any]] = [
        [name or ".", list(layer.kernel.shape), _rank(layer), f"{layer.lora_scale:g}"] for name, layer in layers.items()
    ]
    others = [
        [name, list(shapes[name].shape), "", ""]
        for name in model.names(nnx.Param)
        if len(shapes[name].shape) >= 2 and name.rpartition("/")[0] not in layers
    ]
    rows += [["not adapted:"], *others] if others else []
    return tabulate(rows, headers=["adapters", "shape", "rank", "alpha / rank"], disable_numparse=True)


def _layers(model: nnx.Module) -> Iterator[tuple[str, Any]]:
    """The layers of a model that can be adapted or are, each once, by the first of their names, in order."""
    found = (
        (name_of(path), node)
        for path, node in nnx.iter_graph(model)
        if isinstance(node, _KINDS) and _can_be_adapted(node)
    )
    yield from sorted(found, key=lambda pair: pair[0])


def _matching(known: Iterable[str], globs: str | Sequence[str], option: str) -> set[str]:
    chosen = set()
    for glob in (globs,) if isinstance(globs, str) else globs:
        matching = {name for name in known if fnmatchcase(name, glob)}
        if not matching:
            raise ConfigError(f"add_adapters: {option} = {glob!r} matches no linear layer{nearest(glob, known)}")
        chosen |= matching
    return chosen


class _Adapted(nnx.Module):
    """Mixed into the class of an adapted layer."""

    kernel: Any
    lora_a: Any
    lora_b: Any
    lora_scale: float
    precision: Any

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = super().__call__(inputs, *args, **kwargs)
        low_rank = _Geometry.of(self).low_rank(
            # In the layer's type: else float32 adapters of a bfloat16 layer would make all that follows float32.
            *(array.astype(outputs.dtype) for array in (inputs, self.lora_a[...], self.lora_b[...])),
            precision=self.precision,
        )
        return outputs + jnp.asarray(self.lora_scale, outputs.real.dtype) * low_rank


@cache
def _adapted_class(kind: Any) -> Any:
    return type(f"Adapted{kind.__name__}", (_Adapted, kind), {"__module__": kind.__module__})


def _can_be_adapted(layer: Any) -> bool:
    """Not a subclass that computes something else, nor an Einsum without an input and an output axis or with an
    equation in each call."""
    if not isinstance(layer, _Adapted) and type(layer).__call__ not in [kind.__call__ for kind in _KINDS]:
        return False
    geometry = _Geometry.of(layer)
    return bool(geometry.contracted and geometry.outputs) and "." not in geometry.kernel


def _adapt(layer: Any, rank: int, scale: float, rngs: nnx.Rngs) -> None:
    kernel, geometry = layer.kernel.get_value(), _Geometry.of(layer)
    stacked = _stacked_axes(layer)
    sizes = dict(zip(_with_stacked(geometry.kernel, stacked), kernel.shape, strict=True)) | {geometry.rank: rank}
    lengths = [kernel.shape[axis] for axis in stacked]

    def make(letters: str, init: Any) -> Any:
        places, axes = iter(lengths), _with_stacked(letters, stacked)
        shape = [next(places) if letter == "-" else sizes[letter] for letter in axes]
        value = init(rngs.params(), tuple(shape), jnp.promote_types(kernel.dtype, jnp.float32))
        return nnx.LoRAParam(value, role=geometry.role(axes, is_first=letters == geometry.a))

    # As for a kernel with these inputs: each place of the axes of batches and stacked layers has a matrix of its own.
    letters = _with_stacked(geometry.a, stacked)
    inputs = [axis for axis, letter in enumerate(letters) if letter in geometry.contracted]
    output = letters.index(geometry.rank)
    others = [axis for axis in range(len(letters)) if axis not in (*inputs, output)]
    layer.lora_a = make(
        geometry.a,
        jax.nn.initializers.variance_scaling(2.0, "fan_in", "uniform", inputs, output, batch_axis=others),
    )
    layer.lora_b = make(geometry.b, jax.nn.initializers.zeros)
    layer.lora_scale = scale
    kind: Any = type(layer)
    layer.__class__ = _adapted_class(kind)


def _rank(layer: Any) -> int:
    geometry = _Geometry.of(layer)
    rank: int = layer.lora_a.shape[_with_stacked(geometry.a, _stacked_axes(layer)).index(geometry.rank)]
    return rank


def _product(layer: Any) -> Any:
    """A B as an array of the kernel's shape."""
    geometry, stacked = _Geometry.of(layer), _stacked_axes(layer)

    def with_stacked_first(array: Any, letters: str) -> Any:
        places = [axis for axis, letter in enumerate(_with_stacked(letters, stacked)) if letter == "-"]
        return jnp.moveaxis(array, places, range(len(places)))

    a = with_stacked_first(layer.lora_a.get_value(), geometry.a)
    b = with_stacked_first(layer.lora_b.get_value(), geometry.b)
    product = jnp.einsum(f"...{geometry.a},...{geometry.b}->...{geometry.kernel}", a, b)
    return jnp.moveaxis(product, range(len(stacked)), stacked)


def _with_stacked(letters: str, stacked: Sequence[int]) -> list[str]:
    """The letters of an array's axes, `-` for those that are stacked."""
    found = list(letters)
    for axis in stacked:
        found.insert(axis, "-")
    return found


def _stacked_axes(layer: Any) -> tuple[int, ...]:
    """Which axes of a layer's kernel are those of stacked layers, if possible the first."""
    shape, single = layer.kernel.shape, kernels_of(layer)["kernel"]
    kept = single.kept_axes(shape)
    if kept is None:
        raise ConfigError(
            f"a {type(layer).__name__} has a kernel {list(shape)}: expected {list(single.lengths)}, or a stack of these"
        )
    return tuple(axis for axis in range(len(shape)) if axis not in kept)


@dataclass(frozen=True)
class _Geometry:
    """A linear layer as an einsum, `inputs,kernel->result`, a letter for each axis; inputs and result may begin with
    `...`. `axes` are those of the layer's Kernel, `moved` the axes of the inputs that are moved to their end."""

    inputs: str
    kernel: str
    result: str
    axes: str
    moved: tuple[int, ...] = ()

    @classmethod
    def of(cls, layer: Any) -> _Geometry:
        axes = kernels_of(layer)["kernel"].axes
        if isinstance(layer, nnx.Einsum):
            operands, _, result = (layer.einsum_str or "").partition("->")
            inputs, _, kernel = operands.partition(",")
            return cls(inputs, kernel, result, axes)
        if isinstance(layer, nnx.Linear):
            return cls("...a", "ab", "...b", axes)
        letters = iter(string.ascii_letters)
        batch, inputs, outputs = (
            "".join(itertools.islice(letters, len(each)))
            for each in (layer.batch_axis, layer.in_features, layer.out_features)
        )
        return cls(f"{batch}...{inputs}", batch + inputs + outputs, f"{batch}...{outputs}", axes, tuple(layer.axis))

    def _letters(self, kind: str) -> str:
        return "".join(letter for letter, axis in zip(self.kernel, self.axes, strict=False) if axis == kind)

    @property
    def contracted(self) -> str:
        return self._letters("i")

    @property
    def outputs(self) -> str:
        return self._letters("o")

    @property
    def batch(self) -> str:
        return self._letters("-")

    @property
    def rank(self) -> str:
        """A letter that no other axis has."""
        return next(each for each in string.ascii_letters if each not in self.inputs + self.kernel + self.result)

    @property
    def a(self) -> str:
        return self.batch + self.contracted + self.rank

    @property
    def b(self) -> str:
        return self.batch + self.rank + self.outputs

    def role(self, letters: Sequence[str], *, is_first: bool) -> str:
        """What A (`is_first`) or B is, for its variable's metadata: a kernel, with its axes of inputs and outputs."""
        inputs, outputs = (self.contracted, self.rank) if is_first else (self.rank, self.outputs)
        axes = ("i" if letter in inputs else "o" if letter in outputs else "-" for letter in letters)
        return f"kernel:{''.join(axes)}"

    def low_rank(self, inputs: Any, a: Any, b: Any, *, precision: Any) -> Any:
        """(inputs A) B."""
        if self.moved:
            inputs = jnp.moveaxis(inputs, self.moved, range(-len(self.moved), 0))
        between = "".join(letter for letter in self.inputs if letter not in self.contracted) + self.rank
        hidden = jnp.einsum(f"{self.inputs},{self.a}->{between}", inputs, a, precision=precision)
        return jnp.einsum(f"{between},{self.b}->{self.result}", hidden, b, precision=precision)


_KINDS: Final = (nnx.Linear, nnx.LinearGeneral, nnx.Einsum)
