from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dispatcher.runtime.evaluation import ROWS_PER_BATCH, evaluate, negative_log_likelihood
from dispatcher.runtime.packing import IGNORED
from dispatcher.runtime.vocabulary import Vocabulary


class Bigram(nnx.Module):
    """Predicts from a table of probabilities: one row for each number that may stand before."""

    def __init__(self, table):
        self.table = nnx.Param(jnp.log(jnp.array(table)))

    def __call__(self, inputs):
        return self.table[...][inputs]


# What follows the mark, `a`, `b` (rows), each with the probability of the mark, `a`, `b` (columns).
TABLE = [[1 / 4, 1 / 2, 1 / 4], [1 / 4, 1 / 4, 1 / 2], [1 / 8, 5 / 8, 1 / 4]]


def test_bits_per_character_by_hand():
    vocabulary = Vocabulary("ab")
    result = evaluate(Bigram(TABLE), [vocabulary.encode("ab"), vocabulary.encode("b")])
    # "ab": a 1 bit, b after a 1 bit, end after b 3 bits; "b": b 2 bits, end after b 3 bits.
    assert result.characters == 3 + 2
    assert result.bits_per_character == pytest.approx((1 + 1 + 3 + 2 + 3) / 5, rel=1e-6)


def test_a_uniform_guess_costs_the_logarithm_of_the_vocabulary(encoded, vocabulary):
    table = np.full((vocabulary.size, vocabulary.size), 1 / vocabulary.size)
    result = evaluate(Bigram(table), encoded)
    assert result.bits_per_character == pytest.approx(math.log2(vocabulary.size), rel=1e-6)
    assert result.characters == sum(len(name) + 1 for name in encoded)


def test_the_figure_does_not_depend_on_how_the_text_is_cut_into_batches():
    vocabulary = Vocabulary("ab")
    names = [vocabulary.encode("ab"), vocabulary.encode("b")]
    once = evaluate(Bigram(TABLE), names)
    # More rows than one batch holds.
    often = evaluate(Bigram(TABLE), names * 20 * ROWS_PER_BATCH)
    assert often.characters == 20 * ROWS_PER_BATCH * once.characters
    assert often.bits_per_character == pytest.approx(once.bits_per_character, rel=1e-5)


def test_padding_costs_nothing():
    logits = jnp.log(jnp.array([[[1 / 2, 1 / 2], [1 / 2, 1 / 2]]]))
    nats, characters = negative_log_likelihood(logits, jnp.array([[1, IGNORED]]))
    assert float(nats) == pytest.approx(math.log(2), rel=1e-6)
    assert int(characters) == 1


def test_nothing_to_evaluate_on_is_an_error():
    with pytest.raises(ValueError, match="no names"):
        evaluate(Bigram(TABLE), [])
