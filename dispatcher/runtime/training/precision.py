"""The number types of a training: how parameters are kept, in what the model computes, what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from dispatcher.runtime.configuration import field

FloatType = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Precision:
    """`params` is the type in which parameters are kept and updated, null: as the model makes them. `compute` is the
    one that they and the batch have in the model, null: as they are. `output` is that of what `forward` returns.

    Only floating-point numbers of 16 and 32 bits are converted, and of the model's variables only parameters: running
    statistics keep their type. Losses, metrics, gradients of microbatches and averages of parameters are always added
    up in float32. float16 has no loss scaling.
    """

    params: FloatType | None = field("params", default=None)
    compute: FloatType | None = field("compute", default=None)
    output: FloatType = field("output", default="float32")

    def stored(self, arrays: Mapping[str, Any], parameters: frozenset[str]) -> dict[str, Any]:
        """A new model's `arrays`, with those named in `parameters` in the type in which they are kept."""
        return _converted(arrays, parameters, self.params)

    def computing(self, arrays: Mapping[str, Any], parameters: frozenset[str]) -> dict[str, Any]:
        """The model's `arrays` as it computes with them."""
        return _converted(arrays, parameters, self.compute)

    def batch(self, batch: Any) -> Any:
        """A batch as the model gets it; numbers that are no floating-point numbers stay as they are."""
        return jax.tree.map(lambda array: _convert(array, self.compute), batch)

    def returned(self, tree: Any) -> Any:
        """What `forward` returns."""
        return jax.tree.map(lambda array: _convert(array, self.output), tree)


def parameter_names(variables: Mapping[str, tuple[Any, Any]]) -> frozenset[str]:
    """The names of the nnx.Params among a model's abstract variables, trained or frozen."""
    return frozenset(name for name, (_, variable) in variables.items() if isinstance(variable, nnx.Param))


def _converted(arrays: Mapping[str, Any], names: frozenset[str], kind: str | None) -> dict[str, Any]:
    return {name: _convert(array, kind) if name in names else array for name, array in arrays.items()}


def summed(dtype: Any) -> Any:
    """The type in which numbers of this type are added up: at least float32."""
    return jnp.promote_types(dtype, jnp.float32)


def _convert(array: Any, kind: str | None) -> Any:
    if kind is None:
        return array
    dtype = jnp.dtype(array.dtype)
    if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize not in (2, 4):
        return array
    return array.astype(kind)
