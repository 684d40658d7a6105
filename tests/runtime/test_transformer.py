from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime.language import attention
from dispatcher.runtime.language.transformer import Transformer, TransformerConfig
from dispatcher.runtime.parameters import AbstractModel, arrays_of, evaluating

CONFIG = TransformerConfig(
    vocab_size=31, num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, d_ff=24, max_seq_len=32, dropout=0.3
)


def abstract(config):
    return AbstractModel.made_by(lambda: Transformer(config, rngs=nnx.Rngs(0)))


def compiled(config):
    """`Transformer(config)` in compiled programs: one operation at a time takes minutes to compile."""
    abstract_model = abstract(config)

    @jax.jit
    def forward(arrays, tokens, segment_ids=None, key=None):
        model = abstract_model.merge(arrays)
        rngs = None if key is None else nnx.Rngs(key)
        return (model if rngs else evaluating(model))(tokens, segment_ids=segment_ids, rngs=rngs)

    @jax.jit
    def decode(arrays, tokens, cache, segment_ids=None):
        return evaluating(abstract_model.merge(arrays)).decode(tokens, cache, segment_ids=segment_ids)

    return forward, decode


forward, decode = compiled(CONFIG)
attend = jax.jit(attention.attend)
apply_rope = jax.jit(attention.apply_rope)


@pytest.fixture(scope="module")
def arrays():
    return jax.jit(lambda: arrays_of(Transformer(CONFIG, rngs=nnx.Rngs(0))))()


def init_cache(rows, capacity):
    model = abstract(CONFIG)
    return Transformer.init_cache(model.merge(model.shapes()), rows, capacity)


@pytest.fixture
def tokens():
    return jax.random.randint(jax.random.key(1), (3, 12), 0, CONFIG.vocab_size)


def close(one, other):
    # Another program, or another shape: sums are taken in another order.
    np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_logits_have_one_row_per_place(arrays, tokens):
    logits = forward(arrays, tokens)
    assert (logits.shape, logits.dtype) == ((3, 12, 31), jnp.float32)
    # A fresh model is not sure of anything, and not far from the uniform guess either.
    assert 0.1 < float(jnp.std(logits)) < 3


@pytest.mark.parametrize("parts", [[12], [1] * 12, [5, 1, 1, 5]])
def test_reading_in_parts_gives_the_logits_of_reading_at_once(arrays, tokens, parts):
    cache = init_cache(3, 20)
    found = []
    for part in np.split(tokens, np.cumsum(parts)[:-1], axis=1):
        logits, cache = decode(arrays, part, cache)
        found.append(logits)
    close(jnp.concatenate(found, axis=1), forward(arrays, tokens))
    assert int(cache.index) == 12


def test_a_prediction_never_sees_what_comes_later(arrays, tokens):
    changed = tokens.at[:, 5:].set((tokens[:, 5:] + 1) % CONFIG.vocab_size)
    before, after = forward(arrays, tokens), forward(arrays, changed)
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert not np.any(np.all(before[:, 5:] == after[:, 5:], axis=-1))


def test_left_padding_changes_nothing(arrays, tokens):
    padded = jnp.pad(tokens, ((0, 0), (4, 0)), constant_values=7)
    segment_ids = jnp.pad(jnp.ones_like(tokens), ((0, 0), (4, 0)))
    close(forward(arrays, padded, segment_ids=segment_ids)[:, 4:], forward(arrays, tokens))


def test_left_padded_rows_of_different_lengths_are_read_on_with_the_cache(arrays, tokens):
    lengths = np.array([3, 7, 5])
    columns = np.arange(7)
    segment_ids = np.asarray(columns[None] >= 7 - lengths[:, None], dtype=np.int32)
    tokens = np.asarray(tokens)
    prompts = np.stack([np.pad(row[:n], (7 - n, 0)) for row, n in zip(tokens, lengths, strict=True)])
    _, cache = decode(arrays, prompts, init_cache(3, 16), segment_ids=segment_ids)
    np.testing.assert_array_equal(cache.next_position, lengths)
    new = np.stack([row[n : n + 1] for row, n in zip(tokens, lengths, strict=True)])
    logits, _ = decode(arrays, new, cache)
    whole = forward(arrays, tokens)
    for row, length in enumerate(lengths):
        close(logits[row, 0], whole[row, length])


def test_a_text_is_read_the_same_whatever_shares_its_row(arrays, tokens):
    one, other = tokens[:1, :5], tokens[1:2, :7]
    packed = jnp.concatenate([one, other], axis=1)
    segment_ids = jnp.asarray([[1] * 5 + [2] * 7])
    logits = forward(arrays, packed, segment_ids=segment_ids)
    close(logits[:, :5], forward(arrays, one))
    close(logits[:, 5:], forward(arrays, other))


def test_attention_is_the_formula():
    shape = (2, 6, 3, 4)
    queries, keys, values = (jax.random.normal(jax.random.key(i), shape) for i in range(3))
    mask = jnp.tril(jnp.ones((6, 6), bool))[None, None]
    scores = jnp.where(mask, jnp.einsum("bthd,bshd->bhts", queries, keys) / 2, -jnp.inf)
    expected = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), values)
    close(attend(queries, keys, values, mask), expected)


def test_groups_share_a_key_head_as_if_each_had_a_copy():
    queries = jax.random.normal(jax.random.key(0), (2, 6, 4, 8))
    keys, values = (jax.random.normal(jax.random.key(i), (2, 6, 2, 8)) for i in (1, 2))
    mask = jnp.tril(jnp.ones((6, 6), bool))[None, None]
    copied = attend(queries, jnp.repeat(keys, 2, axis=2), jnp.repeat(values, 2, axis=2), mask)
    close(attend(queries, keys, values, mask), copied)


def test_with_as_many_key_heads_as_heads_it_is_plain_attention(arrays, tokens):
    copied = {
        name: np.repeat(array.reshape(16, 2, 4), 2, axis=1).reshape(16, 16)
        if name.split("/")[-2] in ("key", "value")
        else array
        for name, array in arrays.items()
    }
    plain, _ = compiled(dataclasses.replace(CONFIG, num_kv_heads=4))
    close(plain(copied, tokens), forward(arrays, tokens))


def test_rotation_keeps_lengths_and_leaves_the_first_place_alone():
    heads = jax.random.normal(jax.random.key(0), (2, 5, 3, 8))
    positions = jnp.broadcast_to(jnp.arange(5), (2, 5))
    rotated = apply_rope(heads, positions, 10_000.0)
    np.testing.assert_array_equal(rotated[:, 0], heads[:, 0])
    close(jnp.linalg.norm(rotated, axis=-1), jnp.linalg.norm(heads, axis=-1))


def test_rotated_products_depend_on_the_distance_alone():
    query, key = (jax.random.normal(jax.random.key(i), (1, 1, 1, 8)) for i in (0, 1))

    def product(query_position, key_position):
        at = [jnp.array([[position]]) for position in (query_position, key_position)]
        return float(jnp.sum(apply_rope(query, at[0], 100.0) * apply_rope(key, at[1], 100.0)))

    assert product(3, 1) == pytest.approx(product(40, 38), rel=1e-4)
    assert product(3, 1) != pytest.approx(product(3, 2), rel=1e-2)


def test_dropout_happens_only_in_training(arrays, tokens):
    plain = forward(arrays, tokens)
    np.testing.assert_array_equal(forward(arrays, tokens), plain)
    assert not np.array_equal(forward(arrays, tokens, key=jax.random.key(0)), plain)


def test_bfloat16_computes_nearly_the_same_and_keeps_float32_weights(arrays, tokens):
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    assert {array.dtype for array in abstract(config).shapes().values()} == {jnp.dtype("float32")}
    half, _ = compiled(config)
    logits = half(arrays, tokens)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, forward(arrays, tokens), atol=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, r"num_heads is 4: expected a multiple of num_kv_heads \(3\)"),
        ({"d_model": 20}, r"d_model is 20: expected a multiple of 2 \* num_heads \(8\)"),
        ({"num_layers": 0}, "num_layers is 0: expected at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_a_row_longer_than_max_seq_len_is_refused(arrays):
    with pytest.raises(ValueError, match=r"a row of 33 tokens: expected at most 32 \(max_seq_len\)"):
        forward(arrays, jnp.zeros((1, 33), jnp.int32))
