"""Attention with rotary positions, grouped heads and a cache of what was read before.

A row holds one or several texts. `segments` says which: 0 is padding, and a place sees the earlier places of its row
that have its own number. So the same mask serves packed rows, left-padded batches and plain text.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Keys and values of the places that were read so far, and how far that is.

    `keys` and `values` hold one float[rows, capacity, kv_heads, head_width] for each layer, `segments` is
    int32[rows, capacity]. `used` is int32[], the columns that are taken; `next_position` is int32[rows], which is less
    than that where a row begins with padding.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    segments: jax.Array
    next_position: jax.Array
    used: jax.Array


@dataclass(frozen=True)
class Visibility:
    """Where the tokens of one call stand: `positions` int32[rows, length], `mask` bool[rows, 1, length, seen]."""

    positions: jax.Array
    mask: jax.Array


def plain_visibility(segments: jax.Array) -> Visibility:
    """The places of a call without a cache; segments are int32[rows, length]."""
    columns = jnp.arange(segments.shape[1])
    return Visibility(positions=_count_places(segments), mask=_mask(columns, segments, columns, segments))


def cached_visibility(segments: jax.Array, cache: Cache) -> tuple[Visibility, Cache]:
    """The places of tokens that follow what `cache` holds, and the cache that knows of them (not yet their keys)."""
    known = jax.lax.dynamic_update_slice(cache.segments, segments, (0, cache.used))
    columns = cache.used + jnp.arange(segments.shape[1])
    visible = Visibility(
        positions=cache.next_position[:, None] + _count_places(segments),
        mask=_mask(columns, segments, jnp.arange(known.shape[1]), known),
    )
    grown = Cache(
        keys=cache.keys,
        values=cache.values,
        segments=known,
        next_position=cache.next_position + jnp.sum(segments > 0, axis=1, dtype=jnp.int32),
        used=cache.used + segments.shape[1],
    )
    return visible, grown


def rotate(heads: jax.Array, positions: jax.Array, base: float) -> jax.Array:
    """Rotary positions, Su et al. 2021 (arXiv:2104.09864), with the two halves of a head as the pairs.

    float[rows, length, heads, width], int32[rows, length] -> float[rows, length, heads, width]. The product of a
    rotated query and a rotated key depends on how far apart they stand, and not on where.
    """
    half = heads.shape[-1] // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    # In float32 whatever the heads are: in bfloat16 neighbouring positions beyond 256 would be the same.
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = heads[..., :half].astype(jnp.float32), heads[..., half:].astype(jnp.float32)
    rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return rotated.astype(heads.dtype)


def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax attention; each key head serves heads / kv_heads neighbouring query heads.

    float[rows, length, heads, width], twice float[rows, seen, kv_heads, width], bool[rows, 1, length, seen]
    -> float[rows, length, heads, width]. A place that sees nothing (padding) gets some finite value.
    """
    return jax.nn.dot_product_attention(queries, keys, values, mask=mask)


def _count_places(segments: jax.Array) -> jax.Array:
    """How many places that are not padding stand before each; rotary positions need no new start at a segment."""
    counted = (segments > 0).astype(jnp.int32)
    return jnp.cumsum(counted, axis=1) - counted


def _mask(
    query_columns: jax.Array, query_segments: jax.Array, key_columns: jax.Array, key_segments: jax.Array
) -> jax.Array:
    earlier = key_columns[None, :] <= query_columns[:, None]
    same = (query_segments[:, :, None] == key_segments[:, None, :]) & (key_segments[:, None, :] > 0)
    return (earlier[None] & same)[:, None]
