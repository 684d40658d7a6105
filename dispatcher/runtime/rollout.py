"""Tokens that follow a prompt, one after another: rows padded on the left, a cache, one compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray


class Prompts(NamedTuple):
    """Rows padded on the left: tokens and segments are int32[rows, length], padding has segment 0."""

    tokens: NDArray[np.int32]
    segments: NDArray[np.int32]


class Rollout(NamedTuple):
    """`tokens` int32[rows, new] that follow the prompts; from `lengths` int32[rows] on they mean nothing."""

    tokens: jax.Array
    lengths: jax.Array


def pad_left(texts: Sequence[Sequence[int]], *, rows: int = 0, length: int = 0, blank: int = 0) -> Prompts:
    """`texts` as rows that end together, at least so many rows and so long; ValueError for an empty text."""
    empty = [number for number, text in enumerate(texts) if len(text) == 0]
    if empty:
        raise ValueError(f"text {empty[0]} is empty: a model needs at least one token to go on from")
    width = max([length, *map(len, texts)])
    tokens = np.full((max(rows, len(texts)), width), blank, np.int32)
    segments = np.zeros_like(tokens)
    for number, text in enumerate(texts):
        # A list, because NumPy takes bytes for text.
        tokens[number, width - len(text) :] = list(text)
        segments[number, width - len(text) :] = 1
    return Prompts(tokens, segments)


def roll_out(
    model: Any, prompts: Any, key: jax.Array, temperature: jax.Array, stop: jax.Array, *, new_tokens: int
) -> Rollout:
    """Go on from `prompts` for at most `new_tokens` tokens, until every row has said `stop` (-1: nothing stops it).

    With `temperature` 0 each token is the likeliest, else it is drawn from softmax(logits / temperature). What is
    drawn for a row depends on the key, the row's number and the row, not on its neighbours or its padding.
    """
    tokens, segments = prompts
    rows, length = tokens.shape
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))

    def choose(logits: jax.Array, number: jax.Array) -> jax.Array:
        drawn = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, number), row))(
            keys, logits / jnp.maximum(temperature, 1e-6)
        )
        return jnp.where(temperature > 0, drawn, jnp.argmax(logits, axis=-1)).astype(jnp.int32)

    def goes_on(carried: Any) -> jax.Array:
        number, _, _, _, lengths = carried
        # A row of padding alone is nobody's.
        unfinished: jax.Array = (number < new_tokens) & jnp.any((lengths == new_tokens) & (segments[:, -1] > 0))
        return unfinished

    def step(carried: Any) -> Any:
        number, cache, logits, found, lengths = carried
        token = choose(logits, number)
        found = jax.lax.dynamic_update_slice(found, token[:, None], (0, number))
        ended = (token == stop) & (lengths == new_tokens)
        lengths = jnp.where(ended, number, lengths)
        logits, cache = model.extend(token[:, None], cache)
        return number + 1, cache, logits[:, -1], found, lengths

    logits, cache = model.extend(tokens, model.empty_cache(rows, length + new_tokens), segments=segments)
    start = (
        jnp.int32(0),
        cache,
        logits[:, -1],
        jnp.zeros((rows, new_tokens), jnp.int32),
        jnp.full(rows, new_tokens, jnp.int32),
    )
    _, _, _, found, lengths = jax.lax.while_loop(goes_on, step, start)
    return Rollout(found, lengths)
