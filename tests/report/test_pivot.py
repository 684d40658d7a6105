from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import UsageError
from dispatcher.report.pivot import mean, median, pivot, std, without_value

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20)


@given(NUMBERS)
def test_aggregates_are_those_of_the_statistics_module(values):
    assert mean(values) == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert std(values) == pytest.approx(statistics.stdev(values), abs=1e-6)
    assert median(values) == pytest.approx(statistics.median(values), abs=1e-6)


def test_spread_of_too_few():
    assert std([1.0]) is None
    assert (mean([]), median([])) == (None, None)


ROWS = [
    {"job_id": "a", "n_layers": 10, "lr": 0.1, "loss": 1.0},
    {"job_id": "b", "n_layers": 9, "lr": 0.1, "loss": 3.0},
    {"job_id": "c", "n_layers": 10, "lr": 0.5, "loss": 5.0},
    {"job_id": "d", "n_layers": 10, "lr": 0.1},
]


def test_numbers_are_ordered_as_numbers():
    assert pivot(ROWS, ["n_layers"], ["lr"], "loss") == [
        {"n_layers": "9", "0.1": 3.0, "0.5": None},
        {"n_layers": "10", "0.1": 1.0, "0.5": 5.0},
    ]


def test_without_rows_or_columns():
    assert pivot(ROWS, [], [], "loss") == [{"loss": 3.0}]
    assert pivot(ROWS, [], [], "loss", ["best", "n"], "max") == [{"best": 5.0, "n": 3}]
    assert pivot([], ["lang"], [], "loss") == []


def test_what_is_left_out_is_known():
    assert without_value(ROWS, "loss") == ["d"]


def test_best_needs_a_direction():
    with pytest.raises(UsageError, match="--best min"):
        pivot(ROWS, [], [], "loss", ["best"])
