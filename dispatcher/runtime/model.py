"""A small character-level language model: a gated recurrent unit whose output layer shares the embedding's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dispatcher.runtime.vocabulary import BOUNDARY


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of the model; about 1e5 parameters with a vocabulary of 350."""

    vocabulary: int
    embedding: int = 64
    hidden: int = 128


class CharacterModel(nnx.Module):
    """Predicts each next character from the characters since the last boundary mark.

    The recurrence is the GRU of Cho et al. 2014 (arXiv:1406.1078) in the form of `nnx.GRUCell`. It stands here by
    itself because the cell multiplies its inputs within the recurrence and cannot forget at a boundary; here all
    inputs of a row are multiplied at once.
    """

    def __init__(self, sizes: ModelSizes, *, rngs: nnx.Rngs) -> None:
        self.sizes = sizes
        self.embedding = nnx.Embed(sizes.vocabulary, sizes.embedding, rngs=rngs)
        self.input_gates = nnx.Linear(sizes.embedding, 3 * sizes.hidden, rngs=rngs)
        self.hidden_gates = nnx.Linear(
            sizes.hidden, 3 * sizes.hidden, use_bias=False, kernel_init=nnx.initializers.orthogonal(), rngs=rngs
        )
        self.output = nnx.Linear(sizes.hidden, sizes.embedding, rngs=rngs)
        self.character_bias = nnx.Param(jnp.zeros(sizes.vocabulary))

    def __call__(self, inputs: jax.Array, *, dropout: float = 0.0, key: jax.Array | None = None) -> jax.Array:
        """Logits of the next character: int32[rows, length] -> float32[rows, length, vocabulary].

        With a `key`, a fraction `dropout` of the embedding and of the hidden state (as the output layer sees it,
        not as it is carried on) is dropped.
        """
        embedded = self.embedding(inputs)
        if key is not None:
            embedded = _drop(embedded, dropout, jax.random.fold_in(key, 0))
        hidden = self._recur(self.input_gates(embedded), forget=inputs == BOUNDARY)
        if key is not None:
            hidden = _drop(hidden, dropout, jax.random.fold_in(key, 1))
        return self.embedding.attend(self.output(hidden)) + self.character_bias[...]

    def _recur(self, gates: jax.Array, forget: jax.Array) -> jax.Array:
        """float32[rows, length, 3 hidden], bool[rows, length] -> float32[rows, length, hidden]."""

        def step(hidden: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            from_input, forget_now = inputs
            hidden = jnp.where(forget_now[:, None], 0.0, hidden)
            reset_in, update_in, new_in = jnp.split(from_input, 3, axis=-1)
            reset_hidden, update_hidden, new_hidden = jnp.split(self.hidden_gates(hidden), 3, axis=-1)
            reset = jax.nn.sigmoid(reset_in + reset_hidden)
            update = jax.nn.sigmoid(update_in + update_hidden)
            new = jnp.tanh(new_in + reset * new_hidden)
            hidden = (1.0 - update) * new + update * hidden
            return hidden, hidden

        start = jnp.zeros((gates.shape[0], self.sizes.hidden))
        _, hidden = jax.lax.scan(step, start, (gates.swapaxes(0, 1), forget.swapaxes(0, 1)))
        return hidden.swapaxes(0, 1)


def create_model(sizes: ModelSizes, *, seed: int) -> CharacterModel:
    """A model with fresh weights that depend on `seed` alone."""
    # As one program: dozens of small ones, one for each kind of initialiser and shape, take longer to compile.
    return nnx.jit(lambda: CharacterModel(sizes, rngs=nnx.Rngs(seed)))()


def parameter_count(model: nnx.Module, kind: type[nnx.Param[Any]] = nnx.Param) -> int:
    """How many numbers the model's parameters of `kind` hold."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, kind)))


def _drop(values: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    keep = jax.random.bernoulli(key, 1.0 - rate, values.shape)
    return jnp.where(keep, values / (1.0 - rate), 0.0)
