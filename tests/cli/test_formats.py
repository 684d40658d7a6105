"""`--format github|latex|csv`: stdout has the table and nothing else, whatever there is to say."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from dispatcher.run_state.facets.pauses import Paused

COMMANDS = [
    ["status"],
    ["status", "--state", "failed"],
    ["status", "--by", "lang,method"],
    ["status", "--by", "reason"],
    ["results"],
    ["results", "--rows", "lang", "--cols", "method", "--value", "bpc"],
]


@pytest.fixture
def busy(lab):
    """Results, one of which lacks the value, a failure with a word for tables in its error, and notices."""
    for number, job in enumerate(("fft_german_s1", "lora_german_s1", "fft_spanish_s1")):
        lab.put(job, "done")
        result = {"bpc": number, "note": "a | b, c\nd"} if number else {"other": 1}
        lab.attempt(job, 1, result=json.dumps(result), exit='{"exit_code": 0}')
    lab.put("lora_spanish_s1", "failed", reason="exit 1", error='ValueError: a | b, "c" & d_e')
    with lab.workspace.transaction() as tx:
        tx.note(Paused(scope="lora", why="by hand"))
    return lab


@pytest.mark.parametrize("words", COMMANDS)
def test_github(busy, words):
    outcome = busy.run(*words, "--format", "github")
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert len(lines) > 2
    assert all(line.startswith("|") and line.endswith("|") for line in lines), outcome.out
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


@pytest.mark.parametrize("words", COMMANDS)
def test_latex(busy, words):
    lines = busy.run(*words, "--format", "latex").out.splitlines()
    assert lines[0].startswith("\\begin{tabular}")
    assert lines[-1] == "\\end{tabular}"
    assert all(line.endswith("\\\\") for line in lines if "&" in line)


@pytest.mark.parametrize("words", COMMANDS)
def test_csv(busy, words):
    rows = list(csv.reader(io.StringIO(busy.run(*words, "--format", "csv").out)))
    assert len(rows) > 1
    assert len({len(row) for row in rows}) == 1, rows


@pytest.mark.parametrize("style", ["github", "latex"])
def test_no_table_is_no_output(lab, style):
    outcome = lab.run("results", "--format", style)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no results yet\n")


def test_notices_go_to_stderr(busy):
    for style in ("github", "latex", "csv"):
        notes = busy.run("status", "--format", style).err
        # They are for people: local time without milliseconds.
        assert re.search(r"lora is paused since \d\d:\d\d:\d\d: by hand", notes), notes
        assert "left out" in busy.run("results", "--rows", "lang", "--value", "bpc", "--format", style).err
