"""Which variables a pass only passes on: models with layers in the forms that Flax's transformations give them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from small_trainings import CLASSES, FEATURES, Classification, made

from dispatcher.errors import ModelStateError
from dispatcher.runtime.passed_through import passed_through

pytestmark = pytest.mark.demo

LAYERS = 3
# Where the axis of the layers is in the parameters; statistics and keys have it first.
AXES = nnx.StateAxes({nnx.Param: 1, ...: 0})


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(FEATURES, FEATURES, rngs=rngs)
        self.norm = nnx.BatchNorm(FEATURES, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.dropout(nnx.tanh(self.norm(self.linear(x))))


class Deep(nnx.Module):
    """Layers in arrays of one more axis, called one after the other by `run`."""

    def __init__(self, rngs: nnx.Rngs, run: Callable[[Any, Any], Any], axes: Any = 0) -> None:
        make = nnx.split_rngs(splits=LAYERS)(nnx.vmap(Layer, in_axes=0, out_axes=axes))
        self.layers = make(rngs)
        self.output = nnx.Linear(FEATURES, CLASSES, rngs=rngs)
        self.run = run

    def __call__(self, x: Any) -> Any:
        return self.output(self.run(self.layers, x))


def call(layer: Layer, x: Any) -> Any:
    return layer(x)


def grow(layer: Layer, x: Any) -> Any:
    layer.linear.kernel.set_value(layer.linear.kernel.get_value() * 1.5)
    return layer(x)


def scanned(function: Any, axes: Any = 0) -> Callable[[Any, Any], Any]:
    return nnx.scan(function, in_axes=(axes, nnx.Carry), out_axes=nnx.Carry)


def looped(layers: Any, x: Any) -> Any:
    return nnx.fori_loop(0, 2, lambda _, both: (both[0], both[1] + both[0].linear.bias.sum()), (layers, x))[1]


def chosen(layers: Any, x: Any) -> Any:
    branches = (lambda layers, x: x + layers.linear.bias.sum(), lambda _, x: x)
    return nnx.cond(x.sum() > 0, *(nnx.remat(branch) for branch in branches), layers, x)


def trained(root: Path, run: Any, axes: Any = 0) -> Any:
    class Training(Classification):
        BEST = None

        def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
            return Deep(rngs, run, axes)

        def evaluations(self) -> Any:
            return {}

    job = made(root, cls=Training, steps=1, per_device_batch_size=4)
    job()
    return job


@pytest.mark.parametrize(
    ("run", "axes", "passes"),
    [
        (scanned(nnx.remat(call)), 0, 2),
        (scanned(nnx.remat(call, policy=jax.checkpoint_policies.dots_saveable), AXES), AXES, 2),
        (nnx.remat(looped), 0, 0),
        (nnx.remat(chosen), 0, 0),
    ],
    ids=["scan", "scan of the second axis", "loop", "cond"],
)
def test_layers_in_one_array_are_trained(tmp_path: Path, run: Any, axes: Any, passes: int) -> None:
    job = trained(tmp_path, run, axes)
    kernel = job.live_state.params["layers/linear/kernel"]
    assert kernel.shape == ((FEATURES, LAYERS, FEATURES) if axes else (LAYERS, FEATURES, FEATURES))
    counts, means = (job.live_state.variables[f"layers/{name}"] for name in ("dropout/rngs/count", "norm/mean"))
    # What the pass of both microbatches has changed is that of each layer.
    assert counts.tolist() == [passes] * LAYERS
    assert bool((jnp.abs(means).max(axis=1) > 0).all()) == bool(passes)


@pytest.mark.parametrize("run", [scanned(grow), scanned(nnx.remat(grow))], ids=["scan", "remat"])
def test_parameters_that_change_in_a_scan_are_refused(tmp_path: Path, run: Any) -> None:
    with pytest.raises(ModelStateError, match="layers/linear/kernel: is trainable") as refused:
        trained(tmp_path, run)
    assert "bias" not in str(refused.value)


def test_only_what_is_the_whole_input_is_passed_through() -> None:
    square = jnp.zeros((2, 2))

    def found(function: Any, *args: Any) -> list[int | None]:
        return passed_through(jax.make_jaxpr(function)(*args).jaxpr)

    assert found(lambda a, b: (b, a + 0, a.T, a.T.T, 1.0, b), square, square) == [1, None, None, 0, None, 1]

    def turns(a: Any, b: Any) -> Any:
        """Two carries that change places, and slices that are returned transposed."""
        return jax.lax.scan(lambda pair, x: ((pair[1], pair[0]), (x, x.T)), (a, b), jnp.stack([a, b]))

    assert found(turns, square, square) == [None] * 4

    def loops(a: Any, b: Any) -> Any:
        return jax.lax.while_loop(
            lambda state: state[2] < 3, lambda state: (state[0], state[1] * 2, state[2] + 1), (a, b, 0)
        )

    assert found(loops, square, square) == [0, None, None]

    def branches(a: Any, b: Any) -> Any:
        return jax.lax.cond(a.sum() > 0, lambda a, b: (a, b, a), lambda a, b: (a, b, b), a, b)

    assert found(branches, square, square) == [0, 1, None]
