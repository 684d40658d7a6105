"""Draws of a range: as many values as it has, within its ends, readable."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dispatcher.matrix.draw import draw, make_drawer
from dispatcher.tuning.space import Distribution

COUNT = 200

NARROW = [
    {"uniform": [1_000_000, 1_000_001]},
    {"uniform": [-1_000_001, -1_000_000]},
    {"uniform": [0.999999, 0.9999999]},
    {"log_uniform": [0.999999, 0.9999999]},
    {"log_uniform": [1.0, 1.0000001]},
    {"uniform": [1e-300, 1.0000001e-300]},
    {"uniform": [10**300, 10**300 + 10**290]},
    {"uniform": [-1e-9, 1e-9]},
    {"uniform": [-1e308, 1e308]},
    {"log_uniform": [1e-300, 1e300]},
    {"log_uniform": [1e-320, 1e308]},
]


@pytest.mark.parametrize("document", NARROW, ids=lambda document: f"{document}"[:50])
def test_values_of_any_range_differ(document: dict[str, Any]) -> None:
    ((kind, (low, high)),) = document.items()
    distribution = Distribution(kind, (low, high))
    for values in (
        draw(make_drawer(document), 0, "x", COUNT),
        [distribution.at((place + 0.5) / COUNT) for place in range(COUNT)],
    ):
        # Of 100,000 places or more two may be the same.
        assert len(set(values)) >= COUNT - 2
        assert all(math.isfinite(value) and low <= value <= high for value in values)
        below = sum(
            value < (low / 2 + high / 2 if kind == "uniform" else math.sqrt(low) * math.sqrt(high)) for value in values
        )
        assert COUNT // 4 < below < COUNT - COUNT // 4
    # What a sampler suggests is rounded alike.
    assert [distribution.rounded(value) for value in values] == values


def test_a_range_with_few_floats_gives_all_of_them() -> None:
    values = set(draw(make_drawer({"uniform": [1.0, 1.0 + 4 * 2**-52]}), 0, "x", COUNT))
    assert values == {1.0 + place * 2**-52 for place in range(5)}


@pytest.mark.parametrize(
    ("document", "digits"),
    [
        ({"uniform": [0, 0.5]}, 6),
        ({"uniform": [-5, 5]}, 6),
        ({"log_uniform": [1e-5, 1e-2]}, 6),
        ({"uniform": [1_000_000, 1_000_001]}, 12),
    ],
)
def test_values_have_no_more_digits_than_it_takes(document: dict[str, Any], digits: int) -> None:
    for value in draw(make_drawer(document), 3, "x", COUNT):
        assert value == float(f"{value:.{digits}g}")
        assert len(repr(value).partition("e")[0].strip("-0.").replace(".", "")) <= digits
