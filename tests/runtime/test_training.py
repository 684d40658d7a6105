from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dispatcher.runtime.evaluation import evaluate
from dispatcher.runtime.model import ModelSizes, create_model
from dispatcher.runtime.training import PROGRESS_EVERY_STEPS, TrainingSettings, train
from dispatcher.runtime.weights import arrays_of

pytestmark = pytest.mark.demo

SETTINGS = TrainingSettings(steps=45, batch_rows=2, learning_rate=1e-2)


class Steps(list):
    """Keeps what was reported."""

    def __call__(self, step, of, **metrics):
        self.append((step, of, metrics))


def trained(vocabulary, encoded, seed=0, settings=SETTINGS):
    model = create_model(ModelSizes(vocabulary.size, embedding=8, hidden=12), seed=seed)
    train(model, encoded, settings, seed=seed, progress=Steps())
    return model


def same(one, other):
    one, other = arrays_of(one), arrays_of(other)
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_training_lowers_the_loss_on_what_it_was_trained_on(model, encoded):
    before = evaluate(model, encoded).bits_per_character
    train(model, encoded, SETTINGS, seed=0, progress=Steps())
    assert evaluate(model, encoded).bits_per_character < before - 0.5


def test_the_same_seed_gives_the_same_weights_bit_for_bit(vocabulary, encoded):
    assert same(trained(vocabulary, encoded), trained(vocabulary, encoded))
    assert not same(trained(vocabulary, encoded), trained(vocabulary, encoded, seed=1))


def test_progress_is_reported_on_the_way_and_at_the_end(model, encoded):
    steps = Steps()
    run = train(model, encoded, SETTINGS, seed=0, progress=steps)
    assert [(step, of) for step, of, _ in steps] == [
        (PROGRESS_EVERY_STEPS, 45),
        (2 * PROGRESS_EVERY_STEPS, 45),
        (45, 45),
    ]
    assert steps[-1][2]["train_bpc"] == pytest.approx(run.train_bpc, abs=1e-3)


def test_a_training_that_diverges_ends_with_the_step_and_the_learning_rate(vocabulary, encoded):
    settings = dataclasses.replace(SETTINGS, learning_rate=float("inf"))
    with pytest.raises(FloatingPointError, match=r"at step 20 of 45: try a learning rate below inf"):
        trained(vocabulary, encoded, settings=settings)


def test_no_steps_are_refused(model, encoded):
    with pytest.raises(ValueError, match="steps is 0"):
        train(model, encoded, dataclasses.replace(SETTINGS, steps=0), seed=0, progress=Steps())
