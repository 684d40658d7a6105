"""The training loop: AdamW with warm-up and cosine decay, the same weights from the same seed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import jax
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray

from dispatcher.runtime.evaluation import negative_log_likelihood
from dispatcher.runtime.packing import training_batches

PROGRESS_EVERY_STEPS: Final = 20

# nnx.State has type parameters that say nothing about what it holds.
State = Any


@dataclass(frozen=True)
class TrainingSettings:
    """`batch_rows` rows of packed names are read in each of `steps` updates; `dropout` and decay are fractions."""

    steps: int
    batch_rows: int
    learning_rate: float
    dropout: float = 0.1
    weight_decay: float = 0.01


class Progress(Protocol):
    """Whoever wants to know how far the training is: `dispatcher.contract.report_progress` is one."""

    def __call__(self, step: int, of: int, **metrics: float) -> None: ...


@dataclass(frozen=True)
class TrainingRun:
    """How a training went: the loss of the last batch in bits per character, wall time with compilation."""

    train_bpc: float
    train_seconds: float


def train(
    model: nnx.Module,
    names: Sequence[NDArray[np.int32]],
    settings: TrainingSettings,
    *,
    seed: int,
    progress: Progress,
    trainable: type[nnx.Param[Any]] = nnx.Param,
) -> TrainingRun:
    """Train the parameters of kind `trainable` on encoded names, in place; all others stay as they are.

    The weights depend on the model, names, settings and `seed` only, on one kind of CPU with one number of threads
    and one version of JAX. A loss that is no finite number ends the training with a FloatingPointError.
    """
    if settings.steps < 1:
        raise ValueError(f"steps is {settings.steps}: expected at least 1")
    began = time.monotonic()
    optimizer = _optimizer(settings)
    graph, weights, frozen = _split(model, trainable)

    def loss(weights: State, frozen: State, inputs: jax.Array, targets: jax.Array, key: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, weights, frozen)(inputs, dropout=settings.dropout, key=key)
        nats, characters = negative_log_likelihood(logits, targets)
        return nats / characters

    @jax.jit
    def update(
        weights: State, moments: Any, frozen: State, inputs: jax.Array, targets: jax.Array, key: jax.Array
    ) -> tuple[State, Any, jax.Array]:
        nats, gradient = jax.value_and_grad(loss)(weights, frozen, inputs, targets, key)
        change, moments = optimizer.update(gradient, moments, weights)
        return optax.apply_updates(weights, change), moments, nats

    moments = jax.jit(optimizer.init)(weights)
    key = jax.random.key(seed)
    batches = training_batches(names, settings.batch_rows, np.random.default_rng(seed))
    train_bpc = math.nan
    for step in range(1, settings.steps + 1):
        weights, moments, nats = update(weights, moments, frozen, *next(batches), jax.random.fold_in(key, step))
        if step % PROGRESS_EVERY_STEPS == 0 or step == settings.steps:
            train_bpc = float(nats) / math.log(2)
            if not math.isfinite(train_bpc):
                raise FloatingPointError(
                    f"the loss is {train_bpc} at step {step} of {settings.steps}: "
                    f"try a learning rate below {settings.learning_rate:g}"
                )
            progress(step, settings.steps, train_bpc=round(train_bpc, 4))
    nnx.update(model, weights)
    return TrainingRun(train_bpc=train_bpc, train_seconds=time.monotonic() - began)


def _split(model: nnx.Module, trainable: type[nnx.Param[Any]]) -> tuple[nnx.GraphDef[nnx.Module], State, State]:
    """The model's structure, what is trained, and the rest."""
    # The published type of a split by filters promises nothing about how many parts there are.
    return nnx.split(model, trainable, ...)  # type: ignore[return-value]


def _optimizer(settings: TrainingSettings) -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=settings.learning_rate,
        warmup_steps=max(1, settings.steps // 20),
        decay_steps=max(2, settings.steps),
    )
    # Clipping keeps one unlucky batch through the recurrence from undoing a short training.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=settings.weight_decay))
