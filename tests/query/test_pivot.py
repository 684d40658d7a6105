from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.cli.tables import render
from dispatcher.errors import UsageError
from dispatcher.matrix.entry import Entry
from dispatcher.query.numbers import Spread, mean, median, std
from dispatcher.query.pivot import cells, expanded, pivot, without_value
from dispatcher.query.results.rows import Results

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20)


@given(NUMBERS)
def test_aggregates_are_those_of_the_statistics_module(values):
    assert mean(values) == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert std(values) == pytest.approx(statistics.stdev(values), abs=1e-6)
    assert median(values) == pytest.approx(statistics.median(values), abs=1e-6)


def test_numbers_of_diverged_trainings_have_a_mean_and_a_spread():
    assert mean([1.5e308, 1.5e308]) == pytest.approx(1.5e308) and std([1.5e308, 1.5e308]) == 0
    assert std([1e200, 3e200]) == pytest.approx(math.sqrt(2) * 1e200)
    rows = [{"job_id": "a", "seed": 1, "loss": 10**400}, {"job_id": "b", "seed": 1, "loss": 2.0}]
    ((_, cell),) = (row.values() for row in pivot(rows, ["seed"], [], ["loss"], ["mean+-std"]))
    assert (cell.mean, cell.n, cell.of) == (2.0, 1, 2)


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
    assert pivot(ROWS, ["n_layers"], ["lr"], ["loss"]) == [
        {"n_layers": "9", "0.1": 3.0, "0.5": None},
        {"n_layers": "10", "0.1": 1.0, "0.5": 5.0},
    ]


def test_each_value_has_a_row_of_its_own():
    """false, 0, 0.0 and "0" are four values of a parameter, also where all their groups are placed."""
    rows = Results()
    for job, flag in (("a", False), ("b", 0), ("c", 0.0), ("d", "0")):
        entry = Entry(job_id=job, method="m", params={"flag": flag})
        rows.add(
            {"job_id": job, "state": "done", "attempt": 1, "started_at": None, "finished_at": None},
            entry,
            {"loss": 1.0},
        )
        rows.with_result.add(job)
    assert [row["flag"] for row in pivot(rows.placed(["flag"]), ["flag"], [], ["loss"])] == ["0", "0.0", '"0"', "false"]


def test_methods_that_do_not_report_a_value_do_not_count_for_it():
    """An evaluation lacks no training loss; a method without any result may have been meant to report it."""
    rows = Results()
    for job, method, result in (
        ("t1", "train", {"loss": 1.0}), ("t2", "train", None), ("e1", "eval", {"acc": 0.5}), ("n1", "new", None)
    ):  # fmt: skip
        fixed = {"job_id": job, "state": "done", "attempt": 1, "started_at": None, "finished_at": None}
        rows.add(fixed, Entry(job_id=job, method=method, params={"lang": "de"}), result or {})
        rows.with_result.update({job} if result else ())
    ((_, cell),) = (
        row.values() for row in pivot(rows, ["lang"], [], ["loss"], ["mean+-std"], None, rows.methods_without(["loss"]))
    )
    assert (cell.mean, cell.n, cell.of) == (1.0, 1, 3)


def test_a_result_of_another_type_than_the_parameter_stands_beside_it():
    rows = Results()
    rows.add({"job_id": "a", "state": "done", "attempt": 1, "started_at": None, "finished_at": None},
             Entry(job_id="a", method="m", params={"flag": True}), {"flag": 1})  # fmt: skip
    assert (rows[0]["parameter.flag"], rows[0]["flag"]) == (True, 1)


def test_without_rows_or_columns():
    assert pivot(ROWS, [], [], ["loss"]) == [{"loss": 3.0}]
    assert pivot(ROWS, [], [], ["loss"], ["best", "n"], "max") == [{"best": 5.0, "n": 3}]
    assert pivot([], ["lang"], [], ["loss"]) == []


def test_what_is_left_out_is_known():
    assert without_value(ROWS, "loss") == ["d"]


def test_best_needs_a_direction():
    with pytest.raises(UsageError, match="--best min"):
        pivot(ROWS, [], [], ["loss"], ["best"])


def test_a_spread_counts_the_jobs_that_lack_the_value():
    (nine, ten) = pivot(ROWS, ["n_layers"], [], ["loss"], ["mean+-std"])
    assert (nine["loss"], ten["loss"]) == (Spread(3.0, None, 1, 1), Spread(3.0, pytest.approx(8**0.5), 2, 3))
    assert list(expanded([nine, {"n_layers": "0", "loss": None}])[1].values()) == ["0", None, None, 0, 0]
    assert expanded([nine]) == [{"n_layers": "9", "loss mean": 3.0, "loss std": None, "loss n": 1, "loss of": 1}]
    assert pivot(ROWS, ["n_layers"], ["lr"], ["loss"], ["mean±std"])[0] == {
        "n_layers": "9", "0.1": Spread(3.0, None, 1, 1), "0.5": None,
    }  # fmt: skip


def test_what_is_not_finite_is_left_out_and_counted():
    rows = [*ROWS, {"job_id": "e", "n_layers": 9, "loss": math.nan}, {"job_id": "f", "n_layers": 9, "loss": math.inf}]
    assert pivot(rows, ["n_layers"], [], ["loss"], ["mean"])[0]["loss"] == 3.0
    assert pivot(rows, ["n_layers"], [], ["loss"], ["mean±std"])[0]["loss"] == Spread(3.0, None, 1, 3)
    assert without_value(rows, "loss") == ["d", "e", "f"]


@pytest.mark.parametrize(
    ("spread", "text"),
    [
        (Spread(0.21571, 0.0091, 4, 4), "0.2157 ± 0.0091 (4 of 4)"),
        (Spread(12345.6, 321.0, 2, 3), "12346 ± 321 (2 of 3)"),
        (Spread(1.0, 0.0, 2, 2), "1 ± 0 (2 of 2)"),
        (Spread(0.5, None, 1, 4), "0.5 (1 of 4)"),
        (Spread(None, None, 0, 4), "- (0 of 4)"),
        (Spread(1e-12, 3e-13, 2, 2), "1e-12 ± 3e-13 (2 of 2)"),
    ],
)
def test_a_mean_has_the_decimals_of_its_deviation(spread, text):
    assert str(spread) == text


def test_several_values_and_aggregates_are_columns_of_their_own():
    assert list(pivot(ROWS, ["n_layers"], ["lr"], ["loss", "lr"], ["mean", "n"])[0]) == [
        "n_layers", "0.1 loss mean", "0.1 loss n", "0.1 lr mean", "0.1 lr n", "0.5 loss mean", "0.5 loss n",
        "0.5 lr mean", "0.5 lr n",
    ]  # fmt: skip


def test_a_failed_job_that_lacks_a_key_counts_beside_results_that_lack_it():
    results = Results()
    results.extend([
        {"job_id": "a", "method": "command", "loss": 0.5},
        {"job_id": "b", "method": "command"},
        {"job_id": "c", "method": "fft", "lang": "greek"},
        {"job_id": "d", "method": "align"},
    ])  # fmt: skip
    results.with_result = {"a"}
    placed = results.placed(["lang", "method"])
    # No result lacks a language as d does: the table needs no row for it.
    assert [row["job_id"] for row in placed] == ["a", "b", "c"]
    assert cells(placed, ["lang"], ["method"], ["loss"]).spread(("",), ("command",), "loss") == Spread(0.5, None, 1, 2)


def test_headings_have_a_line_for_each_key():
    rows = [{"lang": lang, "seed": 1, "method": method, "loss": 1.0} for lang in ("de", "es") for method in ("a", "b")]
    two = pivot(rows, ["seed"], ["lang", "method"], ["loss"])
    assert list(two[0]) == ["seed", "de a", "de b", "es a", "es b"], "programs have one name for each column"
    assert render(two, "plain", two.headings).splitlines() == [
        "lang    de  de  es  es",
        "method   a   b   a   b",
        "seed",
        "------  --  --  --  --",
        "1        1   1   1   1",
    ]
    several = pivot(rows, ["seed", "method"], ["lang"], ["loss"], ["mean", "n"])
    assert several.headings["seed"] == ["lang", "", "seed"]
    assert several.headings["method"] == ["", "", "method"]
    assert several.headings["de n"] == ["de", "n", ""]
    assert pivot(rows, [], ["lang"], ["loss"], ["mean", "n"]).headings["de n"] == ["de", "n"]
    assert not pivot(rows, ["seed"], ["lang"], ["loss"]).headings, "one line is enough"
    shortened = render(two, "plain", two.headings, width=14).splitlines()
    assert shortened[:3] == ["lang    de  de", "method   a   b", "seed"]
