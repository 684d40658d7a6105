from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx

from dispatcher.runtime.adapters import adapted, add_adapters
from dispatcher.runtime.language.transformer import Transformer, TransformerConfig
from dispatcher.runtime.parameters import AbstractModel, arrays_of, parameter_count

CONFIG = TransformerConfig(
    vocab_size=11, num_layers=1, d_model=16, num_heads=2, num_kv_heads=1, d_ff=24, max_seq_len=16
)
LAYERS = {
    "attention/query": (16, 16),
    "attention/key": (16, 8),
    "attention/value": (16, 8),
    "attention/output": (16, 16),
    "feed_forward/gate": (16, 24),
    "feed_forward/up": (16, 24),
    "feed_forward/down": (24, 16),
}


@pytest.fixture
def model() -> Transformer:
    # In one program: operation by operation a hundred would be compiled.
    return nnx.jit(lambda: Transformer(CONFIG, rngs=nnx.Rngs(0)))()


def test_fresh_adapters_leave_the_model_exactly_as_it_was(model):
    tokens = np.arange(22).reshape(2, 11) % 11
    # One operation at a time: compiled as a whole, the two programs are fused and so rounded differently.
    with jax.disable_jit():
        before = model(tokens)
        add_adapters(model, 2, rngs=nnx.Rngs(3))
        np.testing.assert_array_equal(model(tokens), before)


def test_every_linear_layer_gets_one_of_the_given_rank(model):
    add_adapters(model, 2, rngs=nnx.Rngs(3))
    adapters = arrays_of(model, nnx.LoRAParam)
    assert {name: array.shape for name, array in adapters.items()} == {
        f"blocks/0/{layer}/lora_{letter}": shape
        for layer, (inputs, outputs) in LAYERS.items()
        for letter, shape in (("a", (inputs, 2)), ("b", (2, outputs)))
    }
    assert parameter_count(adapters) == sum(2 * (inputs + outputs) for inputs, outputs in LAYERS.values())
    assert all((adapters[f"blocks/0/{layer}/lora_b"] == 0).all() for layer in LAYERS)


def test_a_bare_models_arrays_are_found_under_their_new_names(model):
    bare = arrays_of(model)
    add_adapters(model, 2, rngs=nnx.Rngs(3))
    found = adapted(bare, AbstractModel.of(model).variables)
    known = arrays_of(model)
    assert found.keys() == known.keys() - arrays_of(model, nnx.LoRAParam).keys()
    assert all(found[name] is known[name] for name in found)
