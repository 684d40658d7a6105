"""How well a model predicts names: loss for training, bits per character for the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray

from dispatcher.runtime.packing import IGNORED, pack, pad_rows

ROWS_PER_BATCH: Final = 64


@dataclass(frozen=True)
class Evaluation:
    """`bits_per_character` over `characters` predictions, of which one for each name is its end mark."""

    bits_per_character: float
    characters: int


def negative_log_likelihood(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Summed over all places that are not padding, in nats, and the number of these places.

    float32[rows, length, vocabulary], int32[rows, length] -> float32[], int32[]
    """
    counted = targets != IGNORED
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counted, targets, 0))
    return jnp.sum(losses, where=counted), jnp.sum(counted)


def evaluate(model: nnx.Module, names: Sequence[NDArray[np.int32]]) -> Evaluation:
    """Bits per character of encoded names.

    For a name c1 ... cn it counts n + 1 predictions: every character and the mark that ends the name, each given the
    characters before it in that name and nothing else. The figure is the sum of -log2 p over all predictions of all
    names, divided by their number; so long names weigh more than short ones, and knowing where a name ends pays.
    The marks that start names cost nothing. Lower is better; a uniform guess costs log2 of the vocabulary's size.
    """
    if not names:
        raise ValueError("there are no names to evaluate on")
    graph, state = nnx.split(model)

    @jax.jit
    def loss(state: Any, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        return negative_log_likelihood(nnx.merge(graph, state)(inputs), targets)

    packed = pad_rows(pack(names), ROWS_PER_BATCH)
    nats, characters = 0.0, 0
    for start in range(0, len(packed.inputs), ROWS_PER_BATCH):
        rows = slice(start, start + ROWS_PER_BATCH)
        batch_nats, batch_characters = loss(state, packed.inputs[rows], packed.targets[rows])
        nats += float(batch_nats)
        characters += int(batch_characters)
    return Evaluation(bits_per_character=nats / characters / math.log(2), characters=characters)
