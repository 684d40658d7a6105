"""The order of a training's rows: a function of the seed, the epoch and the place in it, without a table.

A permutation of a billion rows would be 8 GB in every process. Here it is a Feistel network over the numbers below a
power of four, applied again while a number is not below the number of rows (cycle walking, Black and Rogaway 2002), so
that any place of any epoch is computed by itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_ROUNDS: Final = 6


def rows_at(samples: NDArray[np.int64], rows: int, seed: int) -> NDArray[np.int64]:
    """The row of each of `samples`, which are counted through all epochs: int64[n], each below `rows`.

    Every epoch has each row once.
    """
    epochs, places = np.divmod(samples, rows)
    if rows < 2:
        return places
    found = np.empty_like(places)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        found[chosen] = _permuted(places[chosen], rows, seed, int(epoch))
    return found


def _permuted(places: NDArray[np.int64], rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    half_bits = max(1, -(-(rows - 1).bit_length() // 2))
    keys = np.random.default_rng([seed, epoch]).integers(0, 2**64, _ROUNDS, dtype=np.uint64)
    found = places.astype(np.uint64)
    open_places = np.arange(len(found))
    # At most three of four numbers lie outside, so this ends after a few rounds; a permutation returns to its start.
    while len(open_places):
        found[open_places] = _network(found[open_places], keys, half_bits)
        open_places = open_places[found[open_places] >= rows]
    return found.astype(np.int64)


def _network(numbers: NDArray[np.uint64], keys: NDArray[np.uint64], half_bits: int) -> NDArray[np.uint64]:
    mask, shift = np.uint64(2**half_bits - 1), np.uint64(half_bits)
    left, right = numbers >> shift, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << shift) | right


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every bit depends on all."""
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return numbers ^ (numbers >> np.uint64(31))
