"""What a parameter of a model is: a kernel, a bias, a scale or an embedding, and which axes of a kernel are summed.

Weight decay is meant for kernels and embeddings, and the updates of Muon for matrices. The number of axes does not
tell them apart: layers that nnx.vmap stacks have one more, and attention keeps its heads apart. `flax_roles` finds the
roles.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dispatcher.errors import ConfigError, nearest


class ParameterKind(Enum):
    KERNEL = "kernel"
    BIAS = "bias"
    SCALE = "scale"
    EMBEDDING = "embedding"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Role:
    """What a parameter is, and how its axes make it a matrix, or a stack of matrices.

    The products of a kernel are summed over its axes `inputs`, and its axes `outputs` are those of the result; each
    place of all other axes holds a matrix of its own. Both are empty in what is no matrix, and where it is not known.
    """

    kind: ParameterKind
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def is_matrix(self) -> bool:
        return bool(self.inputs and self.outputs)

    @property
    def decays(self) -> bool:
        """Whether weight decay is meant for it."""
        return self.kind in (ParameterKind.KERNEL, ParameterKind.EMBEDDING)

    def text(self, shape: Sequence[int]) -> str:
        """For an array of this shape, such as `kernel 64 -> 4x16, 3 stacked`."""
        if not self.is_matrix:
            return self.kind.value
        stacked = [axis for axis in range(len(shape)) if axis not in self.inputs + self.outputs]
        sides = ["x".join(str(shape[axis]) for axis in axes) for axes in (self.inputs, self.outputs, stacked)]
        return f"{self.kind.value} {sides[0]} -> {sides[1]}" + (f", {sides[2]} stacked" if stacked else "")


@dataclass(frozen=True)
class Kernel:
    """A kernel as its module makes it, before anything is stacked: the lengths of its axes, None: any, and a letter for
    each axis, `i` of the inputs, `o` of the outputs, `-` neither. Without letters it is not a matrix."""

    lengths: tuple[int | None, ...]
    axes: str = ""

    def kept_axes(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """Which axes of an array of this shape are the kernel's; the others are stacked, if possible the first ones.

        None if it is no stack of such kernels.
        """
        places = range(len(shape))
        for stacked in itertools.combinations(places, max(0, len(shape) - len(self.lengths))):
            kept = tuple(axis for axis in places if axis not in stacked)
            if len(kept) == len(self.lengths) and all(
                length in (None, shape[axis]) for length, axis in zip(self.lengths, kept, strict=True)
            ):
                return kept
        return None

    def role(self, shape: Sequence[int]) -> Role:
        """The role of an array of this shape, one such kernel or a stack of them."""
        if self.axes and not {"i", "o"} & set(self.axes):
            # It is multiplied element by element.
            return Role(ParameterKind.SCALE)
        kept = self.kept_axes(shape)
        if kept is None or not {"i", "o"} <= set(self.axes):
            return Role(ParameterKind.KERNEL)
        inputs, outputs = (
            tuple(axis for axis, letter in zip(kept, self.axes, strict=True) if letter == side) for side in "io"
        )
        return Role(ParameterKind.KERNEL, inputs, outputs)


# What the names of parameters mean, in modules that say no more.
_NAMES = {"negative_slope": ParameterKind.SCALE} | {
    kind.value: kind for kind in ParameterKind if kind is not ParameterKind.UNKNOWN
}


def named(name: str, shape: Sequence[int]) -> Role:
    """The role that the last part of a parameter's name tells."""
    kind = _NAMES.get(name.rsplit("/", 1)[-1], ParameterKind.UNKNOWN)
    if kind is ParameterKind.KERNEL and len(shape) == 2:
        return Kernel(tuple(shape), "io").role(shape)
    return Role(kind)


def stated(text: Any, shape: Sequence[int]) -> Role:
    """The role that the metadata of a variable state: a kind, for a kernel with letters of its last axes if these are
    not an input and an output, such as `kernel:ioo`. ConfigError for anything else."""
    kind, colon, axes = text.partition(":") if isinstance(text, str) else ("", "", "")
    known = [kind.value for kind in ParameterKind if kind is not ParameterKind.UNKNOWN]
    if kind not in known:
        raise ConfigError(
            f"role = {text!r}{nearest(str(text), known)}: expected {', '.join(known)} or such as kernel:ioo"
        )
    if kind != ParameterKind.KERNEL.value:
        if colon:
            raise ConfigError(f"role = {text!r}: only the axes of a kernel have letters: expected {kind}")
        return Role(ParameterKind(kind))
    axes = axes if colon else "io"
    if not axes or set(axes) - set("io-") or len(axes) > len(shape):
        raise ConfigError(
            f"role = {text!r} of an array {list(shape)}: expected a letter for each of its last axes, i for inputs, o "
            "for outputs and - for neither, such as kernel:ioo"
        )
    return Kernel((None,) * len(axes), axes).role(shape)
