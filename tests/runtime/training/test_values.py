"""Values of rows and their means: what counts, with what weight, and which shapes are refused."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from dispatcher.runtime.training.values import Mean, check_loss, loss_and_metrics, read, total


def number(mean: Mean) -> float:
    return read({"x": mean})["x"]


def test_a_mean_of_parts_is_not_the_mean_of_their_means() -> None:
    one = total("loss", (jnp.array([6.0, 2.0]), jnp.array([3, 1])), 2, None)
    other = total("loss", (jnp.array([100.0]), jnp.array([1])), 1, None)
    assert number(one) == 2.0
    assert number(one + other) == pytest.approx(108 / 5)


def test_padded_rows_count_nowhere_whatever_they_hold() -> None:
    real = jnp.array([True, False, True])
    assert number(total("loss", jnp.array([1.0, jnp.nan, 3.0]), 3, real)) == 2.0
    weighted = total("loss", (jnp.array([4.0, jnp.inf, 2.0]), jnp.array([1.0, jnp.nan, 2.0])), 3, real)
    assert (float(weighted.total), float(weighted.weight)) == (6.0, 3.0)


def test_a_metric_of_booleans_is_a_share() -> None:
    assert number(total("accuracy", jnp.array([True, False, True, True]), 4, None)) == 0.75


def test_a_single_number_is_the_mean_of_a_full_batch_and_nothing_else() -> None:
    full = total("loss", jnp.float32(2.5), 4, None)
    assert (float(full.total), float(full.weight)) == (10.0, 4.0)
    with pytest.raises(TypeError, match="loss: a single number for a batch in which rows are padded"):
        total("loss", jnp.float32(2.5), 4, jnp.ones(4, bool))


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (jnp.ones((4, 7)), r"float32\[4, 7\]"),
        (jnp.ones(3), r"float32\[3\]"),
        ((jnp.ones(4), jnp.ones((4, 7))), r"\(float32\[4\], float32\[4, 7\]\)"),
        ((jnp.ones(4), jnp.float32(1)), r"\(float32\[4\], float32\[\]\)"),
    ],
)
def test_other_shapes_are_refused_with_what_was_seen(value: Any, seen: str) -> None:
    with pytest.raises(TypeError, match=rf"nats: {seen} for a batch of 4 rows: expected a value for each row"):
        total("nats", value, 4, None)


@pytest.mark.parametrize("value", [None, "high", {"a": jnp.ones(4)}, (jnp.ones(4), {}, 1)])
def test_what_is_no_array_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=rf"nats: {type(value).__name__}: expected a value for each row, float\[4\]"):
        total("nats", value, 4, None)


def test_a_loss_of_whole_numbers_has_no_gradient() -> None:
    with pytest.raises(TypeError, match="loss: bool: only floating-point numbers have gradients"):
        check_loss(jnp.zeros(4) > 1)
    check_loss((jnp.zeros(4, jnp.bfloat16), jnp.ones(4, int)))


@pytest.mark.parametrize("name", ["step", "wall_s", "speed/step_s", 5, ""])
def test_names_of_metrics_are_texts_and_not_the_trainers_own(name: Any) -> None:
    with pytest.raises(ValueError, match=f"{name!r}: .* must be a text|{name}: .* one of the trainer's own"):
        loss_and_metrics((jnp.ones(4), {name: jnp.ones(4)}))


def test_a_mean_over_no_weight_is_nan() -> None:
    assert math.isnan(number(total("loss", (jnp.zeros(2), jnp.zeros(2)), 2, None)))


def test_what_a_loss_may_return() -> None:
    rows = np.ones(2)
    assert loss_and_metrics(rows) == (rows, {})
    assert loss_and_metrics((rows, {"a": rows})) == (rows, {"a": rows})
    # Totals and weights, not a loss and its metrics.
    value, metrics = loss_and_metrics((rows, rows))
    assert isinstance(value, tuple)
    assert metrics == {}
