"""A small transformer language model: rotary positions, grouped-query attention, gated feed-forward layers, a cache.

Pre-norm blocks as in Llama (Touvron et al. 2023, arXiv:2302.13971); several query heads share one key head (Ainslie et
al. 2023, arXiv:2305.13245). The output layer shares the embedding's weights. Every matrix says along which axis it is
cut over the `tensor` axis of a mesh: a block then needs two sums over the shards, one after attention and one after
the feed-forward layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime.attention import Cache, Visibility, attend, cached_visibility, plain_visibility, rotate
from dispatcher.runtime.configuration import field
from dispatcher.runtime.execution import TENSOR_AXIS
from dispatcher.runtime.sharding import cut

# Which axis of a matrix is cut: the outputs of the layers that open a block's two halves, the inputs of those that
# close them.
OUTPUTS: Final = (None, TENSOR_AXIS)
INPUTS: Final = (TENSOR_AXIS, None)


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of the model.

    `kv_heads` divides `heads`; `feed_forward` is the width inside the gated layers. `context` is the most tokens that
    one row may have. `dropout` is a fraction, and happens in training only.
    """

    vocabulary: int = field("model/vocabulary")
    layers: int = field("model/layers", default=2)
    width: int = field("model/width", default=64)
    heads: int = field("model/heads", default=4)
    kv_heads: int = field("model/kv_heads", default=2)
    feed_forward: int = field("model/feed_forward", default=176)
    context: int = field("model/context", default=256)
    rope_base: float = field("model/rope_base", default=10_000.0)
    dropout: float = field("model/dropout", default=0.0)
    dtype: Literal["float32", "bfloat16"] = field("model/dtype", default="float32")

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {value}: expected at least 1"
            for name, value in vars(self).items()
            if isinstance(value, int) and value < 1
        ]
        if not faults and self.width % (2 * self.heads):
            faults.append(f"width is {self.width}: expected a multiple of twice the heads ({self.heads})")
        if not faults and self.heads % self.kv_heads:
            faults.append(f"heads is {self.heads}: expected a multiple of kv_heads ({self.kv_heads})")
        if not 0 <= self.dropout < 1:
            faults.append(f"dropout is {self.dropout}: expected 0 or more and less than 1")
        if faults:
            raise ConfigError("model: " + "; ".join(faults))

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class Attention(nnx.Module):
    """Grouped-query attention: float[rows, length, width] -> float[rows, length, width]."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        kv_width = config.kv_heads * config.head_width
        self.query = _linear(config, config.width, config.width, OUTPUTS, rngs)
        self.key = _linear(config, config.width, kv_width, OUTPUTS, rngs)
        self.value = _linear(config, config.width, kv_width, OUTPUTS, rngs)
        self.output = _linear(config, config.width, config.width, INPUTS, rngs, scale=1 / (2 * config.layers))

    def __call__(
        self, inputs: jax.Array, visible: Visibility, before: tuple[jax.Array, jax.Array, jax.Array] | None = None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """The output, and the keys and values that were seen.

        `before` are cached keys and values, float[rows, capacity, kv_heads, head_width] each, and the column where
        those of `inputs` go.
        """
        queries = rotate(self._heads(self.query(inputs)), visible.positions, self.config.rope_base)
        keys = rotate(self._heads(self.key(inputs)), visible.positions, self.config.rope_base)
        values = self._heads(self.value(inputs))
        if before is not None:
            cached_keys, cached_values, column = before
            keys = jax.lax.dynamic_update_slice(cached_keys, keys, (0, column, 0, 0))
            values = jax.lax.dynamic_update_slice(cached_values, values, (0, column, 0, 0))
        mixed = attend(queries, keys, values, visible.mask)
        return self.output(mixed.reshape(inputs.shape)), (keys, values)

    def _heads(self, flat: jax.Array) -> jax.Array:
        return flat.reshape(*flat.shape[:2], -1, self.config.head_width)


class FeedForward(nnx.Module):
    """SwiGLU, Shazeer 2020 (arXiv:2002.05202): float[rows, length, width] -> float[rows, length, width]."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.gate = _linear(config, config.width, config.feed_forward, OUTPUTS, rngs)
        self.up = _linear(config, config.width, config.feed_forward, OUTPUTS, rngs)
        self.down = _linear(config, config.feed_forward, config.width, INPUTS, rngs, scale=1 / (2 * config.layers))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        output: jax.Array = self.down(nnx.silu(self.gate(inputs)) * self.up(inputs))
        return output


class Block(nnx.Module):
    """One layer: attention and a feed-forward layer, each added to what came in."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.dropout = config.dropout
        self.attention_norm = nnx.RMSNorm(config.width, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.feed_forward_norm = nnx.RMSNorm(config.width, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(
        self,
        inputs: jax.Array,
        visible: Visibility,
        before: tuple[jax.Array, jax.Array, jax.Array] | None = None,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """As `Attention`; with a `key`, what is added is dropped at the configured rate."""
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        mixed, seen = self.attention(self.attention_norm(inputs), visible, before)
        inputs = inputs + drop(mixed, self.dropout, keys[0])
        return inputs + drop(self.feed_forward(self.feed_forward_norm(inputs)), self.dropout, keys[1]), seen


class Transformer(nnx.Module):
    """Predicts each next token from the tokens of its segment before it."""

    CONFIG = TransformerConfig

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = nnx.Embed(
            config.vocabulary,
            config.width,
            dtype=jnp.dtype(config.dtype),
            embedding_init=nnx.initializers.normal(config.width**-0.5),
            embedding_metadata=cut(None, TENSOR_AXIS),
            rngs=rngs,
        )
        self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = nnx.RMSNorm(config.width, rngs=rngs)

    def __call__(
        self, tokens: jax.Array, *, segments: jax.Array | None = None, key: jax.Array | None = None
    ) -> jax.Array:
        """Logits of each next token: int32[rows, length] -> float32[rows, length, vocabulary].

        `segments` int32[rows, length] says which tokens of a row belong together, 0 being padding; without it a row
        is one text. With a `key` dropout happens.
        """
        self._check_length(tokens.shape[1])
        visible = plain_visibility(jnp.ones_like(tokens) if segments is None else segments)
        hidden = self._embed(tokens, key)
        for number, block in enumerate(self.blocks):
            hidden, _ = block(hidden, visible, key=None if key is None else jax.random.fold_in(key, number + 1))
        return self._logits(hidden)

    def extend(self, tokens: jax.Array, cache: Cache, *, segments: jax.Array | None = None) -> tuple[jax.Array, Cache]:
        """Logits of each next token after what `cache` holds and `tokens`, and the cache that holds both.

        int32[rows, length] -> float32[rows, length, vocabulary]. More columns than the cache's capacity are a mistake
        of the caller that cannot be seen here: `used` is known on the device only.
        """
        visible, grown = cached_visibility(jnp.ones_like(tokens) if segments is None else segments, cache)
        hidden = self._embed(tokens, None)
        keys, values = [], []
        for number, block in enumerate(self.blocks):
            hidden, seen = block(hidden, visible, (cache.keys[number], cache.values[number], cache.used))
            keys.append(seen[0])
            values.append(seen[1])
        full = Cache(tuple(keys), tuple(values), grown.segments, grown.next_position, grown.used)
        return self._logits(hidden), full

    def empty_cache(self, rows: int, capacity: int) -> Cache:
        """A cache for `rows` rows with room for `capacity` tokens each, padding included."""
        self._check_length(capacity)
        shape = (rows, capacity, self.config.kv_heads, self.config.head_width)
        # One array for each: where a program may write into its arguments, two names of one buffer are a fault.
        blank = [jnp.zeros(shape, jnp.dtype(self.config.dtype)) for _ in range(2 * self.config.layers)]
        return Cache(
            keys=tuple(blank[: self.config.layers]),
            values=tuple(blank[self.config.layers :]),
            segments=jnp.zeros((rows, capacity), jnp.int32),
            next_position=jnp.zeros(rows, jnp.int32),
            used=jnp.zeros((), jnp.int32),
        )

    def _embed(self, tokens: jax.Array, key: jax.Array | None) -> jax.Array:
        # The shared weights are small for the output layer's sake; what goes into the blocks has unit variance.
        embedded = self.embedding(tokens) * jnp.asarray(self.config.width**0.5, jnp.dtype(self.config.dtype))
        return drop(embedded, self.config.dropout, None if key is None else jax.random.fold_in(key, 0))

    def _logits(self, hidden: jax.Array) -> jax.Array:
        return self.embedding.attend(self.norm(hidden)).astype(jnp.float32)

    def _check_length(self, length: int) -> None:
        if length > self.config.context:
            raise ValueError(f"a row of {length} tokens: the model's context is {self.config.context}")


def drop(values: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Set a fraction `rate` of `values` to zero and scale up the others; without a key all stay."""
    if key is None or rate == 0:
        return values
    keep = jax.random.bernoulli(key, 1.0 - rate, values.shape)
    return jnp.where(keep, values / (1.0 - rate), 0).astype(values.dtype)


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
        kernel_metadata=cut(*axes), rngs=rngs,
    )  # fmt: skip
