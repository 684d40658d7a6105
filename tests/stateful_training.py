"""A training of a model that keeps more than weights, for tests."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx
from tiny_training import Tiny

from dispatcher.runtime.language.transformer import TransformerConfig


class Seen(nnx.Variable[Any]):
    """How many rows a model has seen in training."""


class Model(nnx.Module):
    """Tokens of a row to logits of each next one, with every kind of state."""

    CONFIG = TransformerConfig

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(config.vocab_size, config.d_model, rngs=rngs)
        self.hidden = nnx.Linear(config.d_model, config.d_model, rngs=rngs)
        self.norm = nnx.BatchNorm(config.d_model, momentum=0.8, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.output = nnx.Linear(config.d_model, config.vocab_size, rngs=rngs)
        self.seen = Seen(jnp.zeros((), jnp.int32))
        self.scale = nnx.data(jnp.full(config.d_model, 2.0))

    def __call__(self, tokens: Any, *, segment_ids: Any = None, rngs: Any = None) -> Any:
        if not self.dropout.deterministic:
            self.seen.set_value(self.seen.get_value() + len(tokens))
        hidden = self.norm(self.hidden(self.embedding(tokens)))
        return self.output(self.dropout(nnx.relu(hidden)) * self.scale)


class Remat(Model):
    """As `Model`, by one of Flax's transformations, which gives back every variable as a new array."""

    def __call__(self, tokens: Any, *, segment_ids: Any = None, rngs: Any = None) -> Any:
        def call(model: Model, tokens: Any) -> Any:
            return Model.__call__(model, tokens)

        return nnx.remat(call)(self, tokens)


class Stateful(Tiny):
    MODEL: Any = Model

    def optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(0.3)  # others make much of the rounding in a gradient of zero


class Rematerialized(Stateful):
    MODEL = Remat
