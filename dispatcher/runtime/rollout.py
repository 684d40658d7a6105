"""Autoregressive generation: rows padded on the left, a cache, one compiled loop.

A model generates if it is a `Decoder`. Any other model that is causal generates as well, and the same tokens:
`Recomputing` runs it over all tokens so far for each new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dispatcher.runtime.device_types import converted

# (tokens, segment_ids), int32[rows, seq_len] each -> logits of next tokens, float[rows, seq_len, vocab_size].
Logits = Callable[[jax.Array, jax.Array], jax.Array]


@runtime_checkable
class Decoder(Protocol):
    """A model that keeps what it has computed of the tokens so far in a cache, which is any pytree of arrays."""

    def init_cache(self, rows: int, capacity: int) -> Any:
        """An empty cache for `rows` rows of up to `capacity` tokens, padding included."""

    def decode(self, tokens: jax.Array, cache: Any, segment_ids: jax.Array | None = None) -> tuple[jax.Array, Any]:
        """Logits of the next tokens after each of `tokens`, which follow those in `cache`, and the cache with both.

        int32[rows, seq_len] -> float[rows, seq_len, vocab_size]. The first call has the prompts, with `segment_ids`
        int32[rows, seq_len]: 1, or 0 for padding, which is on the left. Each later one has one token for each row.
        """


class Prompts(NamedTuple):
    """Rows padded on the left: both int32[rows, seq_len]; the segment id of padding is 0."""

    tokens: NDArray[np.int32]
    segment_ids: NDArray[np.int32]


class Rollout(NamedTuple):
    """The generated `tokens` int32[rows, max_new_tokens]; only the first `lengths` int32[rows] of a row are valid."""

    tokens: jax.Array
    lengths: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenBuffer:
    """`tokens` and `segment_ids` int32[rows, capacity], of which the first `index` int32[] columns are in use."""

    tokens: jax.Array
    segment_ids: jax.Array
    index: jax.Array


class Recomputing:
    """The Decoder for a causal model without a cache: computes everything again for each token.

    Columns that are not in use yet have the segment id 0, and none of the earlier ones depends on them.
    """

    def __init__(self, logits: Logits) -> None:
        self._logits = logits

    def init_cache(self, rows: int, capacity: int) -> TokenBuffer:
        empty = jnp.zeros((rows, capacity), jnp.int32)
        return TokenBuffer(empty, empty, jnp.int32(0))

    def decode(
        self, tokens: jax.Array, cache: TokenBuffer, segment_ids: jax.Array | None = None
    ) -> tuple[jax.Array, TokenBuffer]:
        segment_ids = jnp.ones_like(tokens) if segment_ids is None else segment_ids
        at = (0, cache.index)
        count = tokens.shape[1]
        extended = TokenBuffer(
            jax.lax.dynamic_update_slice(cache.tokens, tokens, at),
            jax.lax.dynamic_update_slice(cache.segment_ids, segment_ids, at),
            cache.index + count,
        )
        logits = self._logits(extended.tokens, extended.segment_ids)
        return jax.lax.dynamic_slice_in_dim(logits, cache.index, count, axis=1), extended


def pad_left(texts: Sequence[Sequence[int]], *, rows: int = 0, seq_len: int = 0, pad_token: int = 0) -> Prompts:
    """Pad `texts` on the left to one length, to at least `rows` by `seq_len`; ValueError for an empty text, ConfigError
    for what is no token."""
    empty = [number for number, text in enumerate(texts) if len(text) == 0]
    if empty:
        raise ValueError(f"text {empty[0]} is empty: a model needs at least one token")
    seq_len = max([seq_len, *map(len, texts)])
    tokens = np.full((max(rows, len(texts)), seq_len), pad_token, np.int32)
    segment_ids = np.zeros_like(tokens)
    for number, text in enumerate(texts):
        # As a list, because NumPy treats bytes as one string.
        found = converted(f"text {number}", np.array(list(text)), np.int32)
        tokens[number, seq_len - len(text) :] = found
        segment_ids[number, seq_len - len(text) :] = 1
    return Prompts(tokens, segment_ids)


def rollout(
    model: Decoder,
    prompts: Any,
    keys: jax.Array,
    temperature: jax.Array,
    stop_token: jax.Array,
    *,
    max_new_tokens: int,
) -> Rollout:
    """Generate after `prompts` until every row has `max_new_tokens` tokens or a `stop_token` (-1: none).

    With `temperature` 0 greedily, else by sampling from softmax(logits / temperature). The samples of a row depend on
    its key in `keys` and on the row, not on the other rows or the padding.
    """
    tokens, segment_ids = prompts
    rows, seq_len = tokens.shape

    def unfinished(carry: Any) -> jax.Array:
        index, _, _, _, lengths = carry
        # Rows that are padding alone do not count.
        running = (lengths == max_new_tokens) & (segment_ids[:, -1] > 0)
        answer: jax.Array = (index < max_new_tokens) & jnp.any(running)
        return answer

    def step(carry: Any) -> Any:
        index, cache, logits, generated, lengths = carry
        token = _sampled(logits, jax.vmap(jax.random.fold_in, (0, None))(keys, index), temperature)
        generated = jax.lax.dynamic_update_slice(generated, token[:, None], (0, index))
        stopped = (token == stop_token) & (lengths == max_new_tokens)
        lengths = jnp.where(stopped, index, lengths)
        logits, cache = model.decode(token[:, None], cache)
        return index + 1, cache, logits[:, -1], generated, lengths

    cache = model.init_cache(rows, seq_len + max_new_tokens)
    logits, cache = model.decode(tokens, cache, segment_ids=segment_ids)
    start = (
        jnp.int32(0),
        cache,
        logits[:, -1],
        jnp.zeros((rows, max_new_tokens), jnp.int32),
        jnp.full(rows, max_new_tokens, jnp.int32),
    )
    _, _, _, generated, lengths = jax.lax.while_loop(unfinished, step, start)
    return Rollout(generated, lengths)


def _sampled(logits: jax.Array, keys: jax.Array, temperature: jax.Array) -> jax.Array:
    """A token for each row: float[rows, vocab_size], keys [rows] -> int32[rows]."""
    sampled = jax.vmap(jax.random.categorical)(keys, logits / jnp.maximum(temperature, 1e-6))
    return jnp.where(temperature > 0, sampled, jnp.argmax(logits, axis=-1)).astype(jnp.int32)
