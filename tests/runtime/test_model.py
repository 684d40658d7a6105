from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dispatcher.runtime import text
from dispatcher.runtime.model import ModelSizes, create_model, parameter_count
from dispatcher.runtime.packing import pack
from dispatcher.runtime.vocabulary import BOUNDARY, Vocabulary


def test_the_demo_model_has_about_a_hundred_thousand_parameters():
    vocabulary = Vocabulary.of(name for language in text.LOCALES for name in text.names(language))
    model = nnx.eval_shape(lambda: create_model(ModelSizes(vocabulary.size), seed=0))
    assert 0.5e5 < parameter_count(model) < 2e5


def test_the_recurrence_is_the_gru_of_flax(model, encoded):
    cell = nnx.GRUCell(8, 12, rngs=nnx.Rngs(0))
    cell.dense_i.kernel.set_value(model.input_gates.kernel[...])
    cell.dense_i.bias.set_value(model.input_gates.bias[...])
    cell.dense_h.kernel.set_value(model.hidden_gates.kernel[...])
    name = jnp.array([BOUNDARY, *encoded[0]])

    hidden = jnp.zeros((1, 12))
    expected = []
    for number in name:
        hidden, _ = cell(hidden, model.embedding(number)[None])
        expected.append(model.embedding.attend(model.output(hidden))[0] + model.character_bias[...])
    np.testing.assert_allclose(model(name[None])[0], jnp.stack(expected), rtol=1e-5, atol=1e-5)


def test_a_name_is_read_the_same_whatever_stands_before_it(model, encoded):
    alone = model(pack([encoded[1]]).inputs)
    after_another = model(pack([encoded[0], encoded[1]]).inputs)
    start, length = len(encoded[0]) + 1, len(encoded[1]) + 1
    np.testing.assert_array_equal(alone[0, :length], after_another[0, start : start + length])


def test_a_prediction_never_sees_what_comes_later(model, encoded):
    inputs = pack(encoded).inputs
    changed = inputs.copy()
    changed[0, 4:] = 1
    np.testing.assert_array_equal(model(inputs)[0, :4], model(changed)[0, :4])
    assert not np.array_equal(model(inputs)[0, 4:], model(changed)[0, 4:])


def test_dropout_happens_only_with_a_key(model, encoded):
    inputs = pack(encoded).inputs
    plain = model(inputs)
    np.testing.assert_array_equal(model(inputs, dropout=0.5), plain)
    assert not np.array_equal(model(inputs, dropout=0.5, key=jax.random.key(0)), plain)


def test_the_seed_decides_the_weights(vocabulary):
    def weights(seed):
        return jax.tree.leaves(nnx.state(create_model(ModelSizes(vocabulary.size, 8, 12), seed=seed), nnx.Param))

    assert all(np.array_equal(one, other) for one, other in zip(weights(1), weights(1), strict=True))
    assert not all(np.array_equal(one, other) for one, other in zip(weights(1), weights(2), strict=True))
