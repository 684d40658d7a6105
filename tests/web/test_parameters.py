"""How much of a result each parameter explains: what is exactly so, what is nothing, and what cannot be known."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from cli.conftest import Lab
from web.conftest import record_all

from dispatcher.query.parameters import Importance, explained, importance, rank_correlation, ranked
from dispatcher.web.board import Board, Filter
from dispatcher.web.comparing import parameters


def of(values: list[Any], numbers: list[float]) -> Importance:
    different = list(dict.fromkeys(values))
    return importance("key", values, [different.index(value) for value in values], ranked(numbers))


def test_a_parameter_that_decides_explains_everything_and_one_of_chance_nothing() -> None:
    chance = random.Random(7)
    seeds = [float(chance.randrange(1000)) for _ in range(200)]
    numbers = [chance.random() + 10 * (n % 2) for n in range(200)]
    decides = of(["a" if n % 2 else "b" for n in range(200)], numbers)
    assert decides.share is not None and 0.7 < decides.share <= 1.0 and decides.trend is None
    # A thousand different seeds explain no more than two.
    by_chance = of(seeds, numbers)
    assert by_chance.share is not None and by_chance.share < 0.05
    assert by_chance.trend is not None and abs(by_chance.trend) < 0.2


def test_what_neither_rises_nor_falls_is_found() -> None:
    rates = [10.0 ** (n % 9 - 8) for n in range(90)]
    found = of(rates, [abs(math.log10(rate) + 4) for rate in rates])
    assert found.share is not None and found.share > 0.95
    assert found.trend is not None and abs(found.trend) < 0.1


def test_a_job_that_has_diverged_counts_no_more_than_the_worst() -> None:
    rates = [0.1] * 20 + [0.2] * 20
    numbers = [1.0 + n / 1000 for n in range(20)] + [2.0 + n / 1000 for n in range(20)]
    before = of(rates, numbers).share
    assert of(rates, [*numbers[:-1], 1e300]).share == before and before is not None and before > 0.7


def test_values_of_fine_numbers_are_taken_in_bins() -> None:
    values = [float(n) for n in range(100)]
    found = of(values, [2.0 * value for value in values])
    assert found.share is not None and found.share > 0.95 and found.trend == pytest.approx(1.0)


def test_some_without_a_value_are_a_group_of_their_own() -> None:
    values: list[Any] = [None] * 30 + [float(n) for n in range(30)]
    found = of(values, [5.0] * 30 + [1.0] * 30)
    assert found.share is not None and found.share > 0.9 and found.trend == 0.0


def test_what_cannot_be_known_is_not_claimed() -> None:
    # Each job has a value of its own; all have the same; all results are the same.
    assert of(["a", "b", "c"], [1.0, 2.0, 3.0]).share is None
    assert of(["a", "a"], [1.0, 2.0]).values == 1
    assert explained([0, 0, 1, 1], ranked([3.0] * 4)) == 0.0
    assert rank_correlation(ranked([1.0, 1.0]), [1.0, 2.0]) is None


def made(lab: Lab, entries: list[dict[str, Any]], results: dict[str, Any]) -> Board:
    board = record_all(lab, entries)
    for job, value in results.items():
        lab.attempt(job, result=f'{{"loss": {value}}}')
    board.results.follow(board.snapshot, None)
    while board.read_results():
        pass
    return board


def test_the_most_important_comes_first_and_what_is_constant_is_named(empty_lab: Lab) -> None:
    entries = [
        {
            "job_id": f"job{n}",
            "method": "fft",
            "lr": 0.1 if n % 2 else 0.2,
            "seed": n // 2,
            "depth": 12,
            "note": f"n{n}",
        }
        for n in range(40)
    ]
    results: dict[str, Any] = {f"job{n}": n % 2 + n / 1000 for n in range(38)}
    found = parameters(made(empty_lab, entries, {**results, "job39": "NaN"}), "loss", Filter())
    assert [one.key for one in found["importance"]] == ["lr", "seed", "note"]
    assert found["importance"][-1].share is None
    assert found["constant"] == ["method", "depth"]
    assert (found["jobs"], found["missing"]) == (38, 2)
    # Forty different texts make no axis.
    assert found["axes"] == ["lr", "seed"]
    assert found["rows"][1] == {"job": "job1", "values": [0.1, 0], "y": 1.001}


@pytest.mark.parametrize("count", [0, 1])
def test_few_jobs_make_no_fault(empty_lab: Lab, count: int) -> None:
    entries = [{"job_id": f"job{n}", "method": "fft", "lr": 0.1} for n in range(2)]
    found = parameters(made(empty_lab, entries, {"job0": 1.5}), "loss", Filter(failure="" if count else "gone"))
    assert (found["jobs"], found["importance"], len(found["rows"])) == (count, [], count)
