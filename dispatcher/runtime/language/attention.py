"""Causal attention with rotary position embeddings, grouped-query heads and a KV cache.

A row holds one or several texts. `segment_ids` number them, 0 being padding: a position attends to the earlier
positions of its row with the same segment id. So one mask serves packed rows, left-padded batches and plain text.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of the positions that were read so far.

    `keys` and `values` hold one float[batch, capacity, num_kv_heads, head_dim] for each layer, `segment_ids` is
    int32[batch, capacity]. `index` is int32[], the number of columns in use; `next_position` is int32[batch], which is
    less in rows that start with padding.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    segment_ids: jax.Array
    next_position: jax.Array
    index: jax.Array


@dataclass(frozen=True)
class CausalMask:
    """`positions` int32[batch, seq_len] for the rotary embedding, `mask` bool[batch, 1, seq_len, key_len]."""

    positions: jax.Array
    mask: jax.Array


def causal_mask(segment_ids: jax.Array) -> CausalMask:
    """The mask of a call without a cache; segment_ids are int32[batch, seq_len]."""
    columns = jnp.arange(segment_ids.shape[1])
    return CausalMask(_positions(segment_ids), _mask(columns, segment_ids, columns, segment_ids))


def cached_causal_mask(segment_ids: jax.Array, cache: KVCache) -> tuple[CausalMask, KVCache]:
    """The mask of tokens that follow those in `cache`, and the cache extended by them, still without their keys."""
    all_ids = jax.lax.dynamic_update_slice(cache.segment_ids, segment_ids, (0, cache.index))
    columns = cache.index + jnp.arange(segment_ids.shape[1])
    mask = CausalMask(
        positions=cache.next_position[:, None] + _positions(segment_ids),
        mask=_mask(columns, segment_ids, jnp.arange(all_ids.shape[1]), all_ids),
    )
    extended = KVCache(
        keys=cache.keys,
        values=cache.values,
        segment_ids=all_ids,
        next_position=cache.next_position + jnp.sum(segment_ids > 0, axis=1, dtype=jnp.int32),
        index=cache.index + segment_ids.shape[1],
    )
    return mask, extended


def apply_rope(heads: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary position embedding, Su et al. 2021 (arXiv:2104.09864), with the two halves of a head as the pairs.

    float[batch, seq_len, heads, head_dim], int32[batch, seq_len] -> float[batch, seq_len, heads, head_dim]. The product
    of a rotated query and a rotated key depends only on the distance of their positions.
    """
    half = heads.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    # Always in float32: in bfloat16 neighbouring positions beyond 256 would be equal.
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = heads[..., :half].astype(jnp.float32), heads[..., half:].astype(jnp.float32)
    rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return rotated.astype(heads.dtype)


def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax attention; each key head serves num_heads / num_kv_heads neighbouring query heads.

    float[batch, seq_len, num_heads, head_dim], twice float[batch, key_len, num_kv_heads, head_dim],
    bool[batch, 1, seq_len, key_len] -> float[batch, seq_len, num_heads, head_dim]. The output of a position that
    attends to nothing (padding) is finite, and meaningless.
    """
    return jax.nn.dot_product_attention(queries, keys, values, mask=mask)


def _positions(segment_ids: jax.Array) -> jax.Array:
    """The number of positions before each that are not padding; rotary embeddings need no restart at a segment."""
    counted = (segment_ids > 0).astype(jnp.int32)
    return jnp.cumsum(counted, axis=1) - counted


def _mask(query_columns: jax.Array, query_ids: jax.Array, key_columns: jax.Array, key_ids: jax.Array) -> jax.Array:
    earlier = key_columns[None, :] <= query_columns[:, None]
    same = (query_ids[:, :, None] == key_ids[:, None, :]) & (key_ids[:, None, :] > 0)
    return (earlier[None] & same)[:, None]
