"""A small decoder-only transformer: rotary embeddings, grouped-query attention, gated feed-forward layers, a KV cache.

Pre-norm blocks as in Llama (Touvron et al. 2023, arXiv:2302.13971); several query heads share one key head (Ainslie et
al. 2023, arXiv:2305.13245). The output layer shares the embedding's weights. Every matrix is sharded along one axis
over the `tensor` axis of the mesh, so that a block needs two all-reduces: after attention and after the feed-forward
layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import field
from dispatcher.runtime.execution import TENSOR_AXIS
from dispatcher.runtime.language.attention import (
    CausalMask,
    KVCache,
    apply_rope,
    attend,
    cached_causal_mask,
    causal_mask,
)
from dispatcher.runtime.sharding import partition_spec

# Megatron-style: the first layer of each half of a block is sharded by its outputs, the last one by its inputs.
_SHARD_OUTPUTS: Final = (None, TENSOR_AXIS)
_SHARD_INPUTS: Final = (TENSOR_AXIS, None)


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of the model.

    `num_kv_heads` divides `num_heads`; `d_ff` is the hidden size of the feed-forward layers. `max_seq_len` is the
    largest number of tokens in a row. `dropout` is a fraction, applied in training only.
    """

    vocab_size: int = field("model/vocab_size")
    num_layers: int = field("model/num_layers", default=2)
    d_model: int = field("model/d_model", default=64)
    num_heads: int = field("model/num_heads", default=4)
    num_kv_heads: int = field("model/num_kv_heads", default=2)
    d_ff: int = field("model/d_ff", default=176)
    max_seq_len: int = field("model/max_seq_len", default=256)
    rope_theta: float = field("model/rope_theta", default=10_000.0)
    dropout: float = field("model/dropout", default=0.0)
    dtype: Literal["float32", "bfloat16"] = field("model/dtype", default="float32")

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {value}: expected at least 1"
            for name, value in vars(self).items()
            if isinstance(value, int) and value < 1
        ]
        if not faults and self.d_model % (2 * self.num_heads):
            faults.append(f"d_model is {self.d_model}: expected a multiple of 2 * num_heads ({2 * self.num_heads})")
        if not faults and self.num_heads % self.num_kv_heads:
            faults.append(f"num_heads is {self.num_heads}: expected a multiple of num_kv_heads ({self.num_kv_heads})")
        if not 0 <= self.dropout < 1:
            faults.append(f"dropout is {self.dropout}: expected 0 or more and less than 1")
        if faults:
            raise ConfigError("model: " + "; ".join(faults))

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads


class Attention(nnx.Module):
    """Grouped-query attention: float[batch, seq_len, d_model] -> float[batch, seq_len, d_model]."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        kv_dim = config.num_kv_heads * config.head_dim
        self.query = _linear(config, config.d_model, config.d_model, _SHARD_OUTPUTS, rngs)
        self.key = _linear(config, config.d_model, kv_dim, _SHARD_OUTPUTS, rngs)
        self.value = _linear(config, config.d_model, kv_dim, _SHARD_OUTPUTS, rngs)
        self.output = _linear(
            config, config.d_model, config.d_model, _SHARD_INPUTS, rngs, scale=1 / (2 * config.num_layers)
        )

    def __call__(
        self, inputs: jax.Array, mask: CausalMask, cached: tuple[jax.Array, jax.Array, jax.Array] | None = None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """The output, and all keys and values.

        `cached` holds the cached keys and values, float[batch, capacity, num_kv_heads, head_dim] each, and the column
        where those of `inputs` go.
        """
        queries = apply_rope(self._heads(self.query(inputs)), mask.positions, self.config.rope_theta)
        keys = apply_rope(self._heads(self.key(inputs)), mask.positions, self.config.rope_theta)
        values = self._heads(self.value(inputs))
        if cached is not None:
            cached_keys, cached_values, column = cached
            keys = jax.lax.dynamic_update_slice(cached_keys, keys, (0, column, 0, 0))
            values = jax.lax.dynamic_update_slice(cached_values, values, (0, column, 0, 0))
        mixed = attend(queries, keys, values, mask.mask)
        return self.output(mixed.reshape(inputs.shape)), (keys, values)

    def _heads(self, flat: jax.Array) -> jax.Array:
        return flat.reshape(*flat.shape[:2], -1, self.config.head_dim)


class FeedForward(nnx.Module):
    """SwiGLU, Shazeer 2020 (arXiv:2002.05202): float[batch, seq_len, d_model] -> float[batch, seq_len, d_model]."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.gate = _linear(config, config.d_model, config.d_ff, _SHARD_OUTPUTS, rngs)
        self.up = _linear(config, config.d_model, config.d_ff, _SHARD_OUTPUTS, rngs)
        self.down = _linear(config, config.d_ff, config.d_model, _SHARD_INPUTS, rngs, scale=1 / (2 * config.num_layers))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        output: jax.Array = self.down(nnx.silu(self.gate(inputs)) * self.up(inputs))
        return output


class Block(nnx.Module):
    """Attention and a feed-forward layer, each with a residual connection."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.dropout = nnx.Dropout(config.dropout)
        self.attention_norm = nnx.RMSNorm(config.d_model, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.feed_forward_norm = nnx.RMSNorm(config.d_model, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(
        self,
        inputs: jax.Array,
        mask: CausalMask,
        cached: tuple[jax.Array, jax.Array, jax.Array] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """As `Attention`; in training with dropout, which needs `rngs`, after both branches."""
        mixed, keys_values = self.attention(self.attention_norm(inputs), mask, cached)
        inputs = inputs + self.dropout(mixed, rngs=rngs)
        fed = self.feed_forward(self.feed_forward_norm(inputs))
        return inputs + self.dropout(fed, rngs=rngs), keys_values


class Transformer(nnx.Module):
    """Predicts each next token from the earlier tokens of its segment."""

    CONFIG = TransformerConfig

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = nnx.Embed(
            config.vocab_size,
            config.d_model,
            dtype=jnp.dtype(config.dtype),
            embedding_init=nnx.initializers.normal(config.d_model**-0.5),
            embedding_metadata=partition_spec(None, TENSOR_AXIS),
            rngs=rngs,
        )
        self.dropout = nnx.Dropout(config.dropout)
        self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.num_layers)])
        self.norm = nnx.RMSNorm(config.d_model, rngs=rngs)

    def __call__(
        self, tokens: jax.Array, *, segment_ids: jax.Array | None = None, rngs: nnx.Rngs | None = None
    ) -> jax.Array:
        """Next-token logits: int32[batch, seq_len] -> float32[batch, seq_len, vocab_size].

        `segment_ids` int32[batch, seq_len] number the texts that are packed into a row, 0 being padding; without them a
        row is one text. A model with dropout needs `rngs` in training.
        """
        self._check_seq_len(tokens.shape[1])
        mask = causal_mask(jnp.ones_like(tokens) if segment_ids is None else segment_ids)
        hidden = self._embed(tokens, rngs)
        for block in self.blocks:
            hidden, _ = block(hidden, mask, rngs=rngs)
        return self._logits(hidden)

    def decode(
        self, tokens: jax.Array, cache: KVCache, segment_ids: jax.Array | None = None
    ) -> tuple[jax.Array, KVCache]:
        """Next-token logits of `tokens` after those in `cache`, and the cache with both.

        int32[batch, seq_len] -> float32[batch, seq_len, vocab_size]. The caller has to stay
        within the capacity of the cache: `index` is known on the device only, so it cannot be checked here.
        """
        mask, extended = cached_causal_mask(jnp.ones_like(tokens) if segment_ids is None else segment_ids, cache)
        hidden = self._embed(tokens, None)
        keys, values = [], []
        for number, block in enumerate(self.blocks):
            hidden, keys_values = block(hidden, mask, (cache.keys[number], cache.values[number], cache.index))
            keys.append(keys_values[0])
            values.append(keys_values[1])
        full = KVCache(tuple(keys), tuple(values), extended.segment_ids, extended.next_position, extended.index)
        return self._logits(hidden), full

    def init_cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache for `rows` rows of up to `capacity` tokens, padding included."""
        self._check_seq_len(capacity)
        shape = (rows, capacity, self.config.num_kv_heads, self.config.head_dim)
        # A new array for each: donated arguments must not share a buffer.
        blank = [jnp.zeros(shape, jnp.dtype(self.config.dtype)) for _ in range(2 * self.config.num_layers)]
        return KVCache(
            keys=tuple(blank[: self.config.num_layers]),
            values=tuple(blank[self.config.num_layers :]),
            segment_ids=jnp.zeros((rows, capacity), jnp.int32),
            next_position=jnp.zeros(rows, jnp.int32),
            index=jnp.zeros((), jnp.int32),
        )

    def _embed(self, tokens: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        # The shared weights are scaled for the output layer; the input of the blocks needs unit variance.
        embedded = self.embedding(tokens) * jnp.asarray(self.config.d_model**0.5, jnp.dtype(self.config.dtype))
        dropped: jax.Array = self.dropout(embedded, rngs=rngs)
        return dropped

    def _logits(self, hidden: jax.Array) -> jax.Array:
        return self.embedding.attend(self.norm(hidden)).astype(jnp.float32)

    def _check_seq_len(self, seq_len: int) -> None:
        if seq_len > self.config.max_seq_len:
            raise ValueError(f"a row of {seq_len} tokens: expected at most {self.config.max_seq_len} (max_seq_len)")


def _linear(
    config: TransformerConfig,
    inputs: int,
    outputs: int,
    axes: tuple[str | None, str | None],
    rngs: nnx.Rngs,
    scale: float = 1.0,
) -> nnx.Linear:
    """A matrix without bias whose outputs have the inputs' variance times `scale`."""
    initializer: Any = nnx.initializers.variance_scaling(scale, "fan_in", "normal")
    return nnx.Linear(
        inputs, outputs, use_bias=False, dtype=jnp.dtype(config.dtype), kernel_init=initializer,
        kernel_metadata=partition_spec(*axes), rngs=rngs,
    )  # fmt: skip
