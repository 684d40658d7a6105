from __future__ import annotations

import csv
import io
import json

from dispatcher.report.tables import number_text, render

ROWS = [{"job": "1e5", "loss": 2.34567, "n": 3}, {"job": "b", "loss": None, "n": 12, "gpu": [2, 3]}]


def test_plain_aligns_numbers_and_leaves_names_alone():
    assert render(ROWS, "plain").splitlines() == [
        "job   loss   n  gpu",
        "---  -----  --  -----",
        "1e5  2.346   3",
        "b           12  [2,3]",
    ]


def test_plain_counts_columns_of_wide_letters():
    lines = render([{"a": "日本", "b": "x"}, {"a": "e\u0301", "b": "y"}], "plain").splitlines()
    assert lines[2:] == ["日本  x", "e\u0301     y"]


def test_colour_does_not_disturb_the_alignment():
    lines = render(ROWS, "plain", ("job", "n"), lambda name, cell: f"<{cell}>" if name == "job" else cell).splitlines()
    assert lines[2:] == ["<1e5>   3", "<b>    12"]


def test_github_and_latex_escape_what_would_break_the_table():
    rows = [{"error": "a|b_c & 5%\nnext"}]
    assert render(rows, "github").splitlines()[2] == "| a\\|b_c & 5% next |"
    assert r"a|b\_c \& 5\% next" in render(rows, "latex")


def test_csv_and_json_keep_everything():
    rows = [{"a": 'say "hi", twice', "b": 0.1234567891, "c": [1], "d": None}]
    assert list(csv.DictReader(io.StringIO(render(rows, "csv")))) == [
        {"a": 'say "hi", twice', "b": "0.1234567891", "c": "[1]", "d": ""}
    ]
    assert json.loads(render(rows, "json", ("a",))) == rows


def test_no_rows():
    assert render([], "plain", ("job", "state")) == "job  state\n---  -----"
    assert render([], "csv", ("job",)) == "job"
    assert json.loads(render([], "json")) == []
    assert "job" in render([], "github", ("job",))


def test_numbers():
    assert [number_text(n) for n in (0.000123456, 1.5, 12345.6, 1e300, float("nan"))] == [
        "0.0001235", "1.5", "12346", "1e+300", "nan",
    ]  # fmt: skip
