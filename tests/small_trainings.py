"""Small trainings of models that know no language, for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dispatcher.runtime.configuration import configuration
from dispatcher.runtime.execution import Topology, local
from dispatcher.runtime.training.data import Arrays
from dispatcher.runtime.training.trainer import Trainer

FEATURES, CLASSES = 8, 4


def samples(count: int, *, seed: int) -> dict[str, Any]:
    """Points around a center for each class, and their classes."""
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    labels = generator.integers(0, CLASSES, count)
    points = centers[labels] + 0.5 * generator.normal(size=(count, FEATURES))
    return {"x": points.astype(np.float32), "label": labels.astype(np.int32)}


class Classifier(nnx.Module):
    """BatchNorm and Dropout, whose statistics and counts are state."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(FEATURES, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.output = nnx.Linear(16, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.output(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


class Classification(Trainer[Any, Any]):
    """The example of the class Trainer."""

    BEST = ("held_out/accuracy", "max")

    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        return Classifier(rngs)

    def data(self) -> Any:
        return Arrays(samples(64, seed=1))

    def evaluations(self) -> Any:
        return {"held_out": Arrays(samples(37, seed=2))}

    def optimizer(self) -> optax.GradientTransformation:
        return optax.adamw(1e-2)

    def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        logits = model(batch["x"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses, {"accuracy": logits.argmax(-1) == batch["label"]}


class Weighted(Classification):
    """Rows whose weights are very different."""

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def evaluations(self) -> Any:
        return {}

    def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        losses = optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["label"])
        weights = jnp.where(batch["label"] == 0, 0.0, 10.0 ** batch["label"])
        return (losses * weights, weights), {"accuracy": losses}


class Wide(nnx.Module):
    """Two matrices of 4.5 MB with the logical axes of Flax's documentation."""

    WIDTH, HIDDEN = 512, 2304

    def __init__(self, rngs: nnx.Rngs, *, annotated: bool = True) -> None:
        def kernel(*axes: str) -> Any:
            init = nnx.initializers.lecun_normal()
            return nnx.with_partitioning(init, axes) if annotated else init

        self.enter = nnx.Linear(FEATURES, self.WIDTH, rngs=rngs)
        self.up = nnx.Linear(self.WIDTH, self.HIDDEN, kernel_init=kernel("embed", "mlp"), rngs=rngs)
        self.down = nnx.Linear(self.HIDDEN, self.WIDTH, kernel_init=kernel("mlp", "embed"), rngs=rngs)
        self.output = nnx.Linear(self.WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.output(self.down(nnx.relu(self.up(self.enter(x)))))


class WideClassification(Classification):
    BEST = None

    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(1e-3)

    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        return Wide(rngs)


class PlainWideClassification(WideClassification):
    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        return Wide(rngs, annotated=False)


def made(
    root: Any,
    name: str = "small",
    cls: type[Any] = Classification,
    *,
    topology: Any = None,
    optimization: dict[str, Any] | None = None,
    **training: Any,
) -> Any:
    """A training with such settings, on one device by default."""
    words = {"training": {"steps": 6, "batch_size": 8, "log_every": 1, **training}, "optimization": optimization or {}}
    with configuration(cls.checked_config(words)):
        spec = dataclasses.replace(local(root, name), topology=topology or Topology((jax.devices()[0],)))
        return cls(spec)


def trained(root: Any, name: str = "small", cls: Any = Classification, **words: Any) -> Any:
    """As `made`, and run."""
    job = made(root, name, cls, **words)
    job()
    return job


def arrays(job: Any) -> dict[str, np.ndarray[Any, Any]]:
    """All that the state of a training has, by name."""

    def plain(leaf: Any) -> Any:
        return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)

    leaves = jax.tree_util.tree_leaves_with_path(job.live_state)
    return {jax.tree_util.keystr(path): plain(leaf) for path, leaf in leaves}
