from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx

from dispatcher.runtime.adapters import add_adapters
from dispatcher.runtime.model import parameter_count
from dispatcher.runtime.packing import pack
from dispatcher.runtime.training import TrainingSettings, train
from dispatcher.runtime.weights import arrays_of


def ignore_progress(step, of, **metrics):
    pass


def test_fresh_adapters_leave_the_model_exactly_as_it_was(model, encoded):
    inputs = pack(encoded).inputs[:, :12]
    # One operation at a time: compiled as a whole, the two programs are fused and so rounded differently.
    with jax.disable_jit():
        before = model(inputs)
        add_adapters(model, 2, seed=3)
        np.testing.assert_array_equal(model(inputs), before)


def test_every_linear_layer_gets_one_of_the_given_rank(model):
    add_adapters(model, 2, seed=3)
    adapters = arrays_of(model, nnx.LoRAParam)
    layers = {"input_gates": (8, 36), "hidden_gates": (12, 36), "output": (12, 8)}
    assert {name: array.shape for name, array in adapters.items()} == {
        f"{layer}/lora_{letter}": shape
        for layer, (inputs, outputs) in layers.items()
        for letter, shape in (("a", (inputs, 2)), ("b", (2, outputs)))
    }
    assert parameter_count(model, nnx.LoRAParam) == sum(2 * (inputs + outputs) for inputs, outputs in layers.values())
    assert all((adapters[f"{layer}/lora_b"] == 0).all() for layer in layers)


@pytest.mark.demo
def test_training_changes_the_adapters_and_nothing_else(model, encoded):
    add_adapters(model, 2, seed=3)
    before = arrays_of(model)
    settings = TrainingSettings(steps=5, batch_rows=1, learning_rate=1e-2)
    train(model, encoded, settings, seed=0, progress=ignore_progress, trainable=nnx.LoRAParam)
    after = arrays_of(model)

    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == set(arrays_of(model, nnx.LoRAParam))
    assert changed < set(before)
