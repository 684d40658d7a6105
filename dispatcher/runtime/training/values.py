"""Values per row, and their weighted means over microbatches, devices and evaluation batches.

A mean of means is wrong as soon as the parts have different weights: a batch of padded rows, a microbatch with fewer
tokens. So a loss and a metric return what each row has, totals and weights are added up, and the division comes last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp

from dispatcher.contract import SPEED

# The metrics of a default step.
LOSS: Final = "loss"
GRAD_NORM: Final = "grad_norm"
LEARNING_RATE: Final = "lr"
SKIPPED: Final = "skipped"

_TAKEN: Final = (LOSS, GRAD_NORM, LEARNING_RATE, SKIPPED, "step", "wall_s")

# float[rows], a value per row; or two of these: totals and weights. In a batch without padding also float[], a mean.
Value = jax.Array | tuple[jax.Array, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mean:
    """A mean that can be added up: float32[] each; over no weight it is NaN."""

    total: jax.Array
    weight: jax.Array

    @classmethod
    def of(cls, value: Any) -> Mean:
        """A single number, such as a norm."""
        return cls(jnp.asarray(value, jnp.float32), jnp.float32(1))

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.weight + other.weight)


def total(name: str, value: Any, rows: int, real: jax.Array | None) -> Mean:
    """The sum over a batch of `rows` rows of the metric or loss `name`.

    `real` is bool[rows], false for rows that are padding: they are zeroed; None: there are none. TypeError when the
    value has another shape than a `Value`.
    """
    totals, weights = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    totals = _array(name, totals, rows)
    if weights is None and totals.ndim == 0:
        if real is not None:
            raise TypeError(
                f"{name}: a single number for a batch in which rows are padded: return a value for each row, "
                f"float[{rows}], or (totals, weights), so that padded rows do not count"
            )
        return Mean(totals.astype(jnp.float32) * rows, jnp.float32(rows))
    _check_shapes(name, rows, totals, *([] if weights is None else [_array(name, weights, rows)]))
    weights = jnp.ones(rows, jnp.float32) if weights is None else jnp.asarray(weights)
    totals, weights = totals.astype(jnp.float32), jax.lax.stop_gradient(weights.astype(jnp.float32))
    if real is not None:
        # `where`, not a product: a padded row may be NaN.
        totals, weights = jnp.where(real, totals, 0), jnp.where(real, weights, 0)
    return Mean(jnp.sum(totals), jnp.sum(weights))


def _array(name: str, value: Any, rows: int) -> jax.Array:
    """A value as an array; TypeError when it is none, or complex."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: {type(value).__qualname__}: expected a value for each row, float[{rows}], or totals and weights "
            "of each row"
        ) from None
    _check_real(name, array)
    return array


def _check_real(name: str, array: Any) -> None:
    if jnp.iscomplexobj(array):
        raise TypeError(f"{name}: {array.dtype}: expected real numbers, such as jnp.abs(...) or jnp.real(...)")


def check_loss(value: Value) -> None:
    """TypeError for a loss of which there is no gradient."""
    dtype = getattr(value[0] if isinstance(value, tuple) and len(value) == 2 else value, "dtype", float)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{LOSS}: {dtype}: only floating-point numbers have gradients")


def _check_shapes(name: str, rows: int, *arrays: jax.Array) -> None:
    """TypeError unless a value, or totals and weights, have a number for each row."""
    if all(array.shape == (rows,) for array in arrays):
        return
    shown = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
    each = f"float[{rows}]"
    raise TypeError(
        f"{name}: {shown if len(arrays) == 1 else f'({shown})'} for a batch of {rows} rows: expected a value for each "
        f"row, {each}, or totals and weights of each row, ({each}, {each}): sum over all other axes"
    )


def loss_and_metrics(returned: Any) -> tuple[Value, dict[str, Value]]:
    """What a loss returned, as its value and the metrics beside it; ValueError for names that the trainer uses."""
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
        return returned, {}
    for name in returned[1]:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{name!r}: a metric beside the loss: its name must be a text")
        if name in _TAKEN or name.startswith(SPEED):
            raise ValueError(f"{name}: a metric beside the loss has the name of one of the trainer's own: rename it")
    return returned[0], dict(returned[1])


def means_of(metrics: Mapping[str, Any]) -> dict[str, Mean]:
    """The metrics that a step returned: means, or single numbers; TypeError for all others."""
    for name, value in metrics.items():
        for number in jax.tree.leaves(value):
            if jnp.ndim(number):
                raise TypeError(
                    f"{name}: {number.dtype}{list(number.shape)} as a metric of a step: expected a single number, or "
                    "the Mean of two"
                )
            _check_real(name, number)
    return {name: value if isinstance(value, Mean) else Mean.of(value) for name, value in metrics.items()}


def read(means: Mapping[str, Mean]) -> dict[str, float]:
    """The means as numbers, read from the devices with one transfer."""
    host = jax.device_get(dict(means))
    return {name: float(mean.total) / float(mean.weight) if mean.weight else math.nan for name, mean in host.items()}
