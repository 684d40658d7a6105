"""Autoregressive generation: rows padded on the left, a KV cache, one compiled loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray


class Prompts(NamedTuple):
    """Rows padded on the left: both int32[batch, seq_len]; the segment id of padding is 0."""

    tokens: NDArray[np.int32]
    segment_ids: NDArray[np.int32]


class Rollout(NamedTuple):
    """The generated `tokens` int32[batch, max_new_tokens]; only the first `lengths` int32[batch] of a row are valid."""

    tokens: jax.Array
    lengths: jax.Array


def pad_left(texts: Sequence[Sequence[int]], *, rows: int = 0, seq_len: int = 0, pad_token: int = 0) -> Prompts:
    """Pad `texts` on the left to one length, to at least `rows` by `seq_len`; ValueError for an empty text."""
    empty = [number for number, text in enumerate(texts) if len(text) == 0]
    if empty:
        raise ValueError(f"text {empty[0]} is empty: a model needs at least one token")
    seq_len = max([seq_len, *map(len, texts)])
    tokens = np.full((max(rows, len(texts)), seq_len), pad_token, np.int32)
    segment_ids = np.zeros_like(tokens)
    for number, text in enumerate(texts):
        # As a list, because NumPy treats bytes as one string.
        tokens[number, seq_len - len(text) :] = list(text)
        segment_ids[number, seq_len - len(text) :] = 1
    return Prompts(tokens, segment_ids)


def rollout(
    model: Any, prompts: Any, key: jax.Array, temperature: jax.Array, stop_token: jax.Array, *, max_new_tokens: int
) -> Rollout:
    """Generate after `prompts` until every row has `max_new_tokens` tokens or a `stop_token` (-1: none).

    With `temperature` 0 greedily, else by sampling from softmax(logits / temperature). The samples of a row depend on
    the key, the row's index and the row, not on the other rows or the padding.
    """
    tokens, segment_ids = prompts
    rows, seq_len = tokens.shape
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))

    def sample(logits: jax.Array, index: jax.Array) -> jax.Array:
        sampled = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, index), row))(
            keys, logits / jnp.maximum(temperature, 1e-6)
        )
        return jnp.where(temperature > 0, sampled, jnp.argmax(logits, axis=-1)).astype(jnp.int32)

    def unfinished(carry: Any) -> jax.Array:
        index, _, _, _, lengths = carry
        # Rows that are padding alone do not count.
        running = (lengths == max_new_tokens) & (segment_ids[:, -1] > 0)
        answer: jax.Array = (index < max_new_tokens) & jnp.any(running)
        return answer

    def step(carry: Any) -> Any:
        index, cache, logits, generated, lengths = carry
        token = sample(logits, index)
        generated = jax.lax.dynamic_update_slice(generated, token[:, None], (0, index))
        stopped = (token == stop_token) & (lengths == max_new_tokens)
        lengths = jnp.where(stopped, index, lengths)
        logits, cache = model.extend(token[:, None], cache)
        return index + 1, cache, logits[:, -1], generated, lengths

    cache = model.init_cache(rows, seq_len + max_new_tokens)
    logits, cache = model.extend(tokens, cache, segment_ids=segment_ids)
    start = (
        jnp.int32(0),
        cache,
        logits[:, -1],
        jnp.zeros((rows, max_new_tokens), jnp.int32),
        jnp.full(rows, max_new_tokens, jnp.int32),
    )
    _, _, _, generated, lengths = jax.lax.while_loop(unfinished, step, start)
    return Rollout(generated, lengths)
