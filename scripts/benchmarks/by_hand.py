"""A training as one writes it by hand with JAX, Flax and Optax, for the model of `trainings`.

As a script it does the first of its steps, and tells when that was done: `by_hand.py CONFIG.json`.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from dispatcher.runtime.language.transformer import Transformer, TransformerConfig
from dispatcher.runtime.training.order import rows_at


class Loop:
    """The defaults of the trainer, written out. `config` is that that `training_sizes.prepare` gives."""

    def __init__(self, config: dict[str, Any]) -> None:
        training, sizes = config["training"], TransformerConfig(**config["model"])
        self.rows, self.seq_len = training["batch_size"], config["data"]["seq_len"]
        self.text = np.load(config["data"]["train"], mmap_mode="r")
        self.windows = (len(self.text) - 1) // self.seq_len
        self.step = 0

        graph = nnx.graphdef(nnx.eval_shape(lambda: Transformer(sizes, rngs=nnx.Rngs(0))))
        steps = training["steps"]
        schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, max(1, round(0.05 * steps)), steps)
        optimizer = optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adamw(
                schedule, b1=0.9, b2=0.95, weight_decay=0.01, mask=lambda p: jax.tree.map(lambda x: x.ndim >= 2, p)
            ),
        )

        @jax.jit
        def fresh() -> Any:
            params = nnx.state(Transformer(sizes, rngs=nnx.Rngs(0)))
            return params, optimizer.init(params)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def update(params: Any, moments: Any, inputs: jax.Array, targets: jax.Array) -> Any:
            def loss(params: Any) -> jax.Array:
                logits = nnx.merge(graph, params)(inputs)
                return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

            nats, gradient = jax.value_and_grad(loss)(params)
            change, moments = optimizer.update(gradient, moments, params)
            return optax.apply_updates(params, change), moments, nats

        self.update = update
        self.params, self.moments = fresh()

    def run(self, steps: int) -> float:
        """Make so many steps; the loss of the last, in nats per token."""
        for _ in range(steps):
            inputs, targets = self._batch()
            self.params, self.moments, nats = self.update(self.params, self.moments, inputs, targets)
        jax.block_until_ready(self.params)
        return float(nats)

    def _batch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        # The rows of the trainer, so that both learn the same.
        windows = rows_at(self.step * self.rows + np.arange(self.rows), self.windows, 0)
        self.step += 1
        rows = self.text[windows[:, None] * self.seq_len + np.arange(self.seq_len + 1)]
        return rows[:, :-1], rows[:, 1:]


if __name__ == "__main__":
    Loop(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run(1)
    print(f"first step done at {time.time()}", flush=True)
