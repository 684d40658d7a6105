"""scripts/bench: every row works at its smallest size, and its targets are those of docs/measurements.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from beds.fixtures import skip_without
from pages import blocks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "measurements.md"
PLAIN = ("claim", "lab", "contention", "turnover", "throughput", "status", "idle", "opening", "million")
JAX = ("step", "hold", "save", "start", "batch")
# nfs: see tests/beds/test_bench_on_nfs.py.
ON_BEDS = ("slurm", "hang", "nfs")


def bench(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *words], env={**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(directory: Path, *rows: str) -> dict[str, list[dict[str, Any]]]:
    """The figures of these rows at their smallest size, in a directory whose name shells choke on."""
    results = directory / "results.json"
    bench("-m", "benchmarks", *rows, "--smallest", f"--out={results}", f"--dir={directory / 'it is; $(x)'}")
    found: dict[str, list[dict[str, Any]]] = json.loads(results.read_text())["rows"]
    assert list(found) == list(rows)
    return found


def check(figures: list[dict[str, Any]]) -> None:
    """They were measured; only what is not installed may be left out, with the way to have it."""
    assert any(figure["ours"] for figure in figures), figures
    for figure in figures:
        assert figure["ours"] or figure["note"].endswith("here: scripts/install bench"), figure


def test_every_row_is_tested() -> None:
    listed = [line.split()[0] for line in bench("-m", "benchmarks", "--list").splitlines()]
    assert sorted(listed) == sorted(PLAIN + JAX + ON_BEDS)


@pytest.mark.slow
@pytest.mark.parametrize("row", PLAIN)
def test_a_row_at_its_smallest_size(tmp_path: Path, row: str) -> None:
    check(measured(tmp_path, row)[row])


@pytest.mark.slow
def test_the_rows_about_jobs_in_jax(tmp_path: Path) -> None:
    found = measured(tmp_path, *JAX)
    (batch,) = found.pop("batch")
    assert batch["note"] == "skipped: no GPU here"
    for figures in found.values():
        check(figures)


@pytest.mark.slurm
def test_the_row_about_slurm(tmp_path: Path) -> None:
    skip_without("slurm")
    check(measured(tmp_path, "slurm")["slurm"])


@pytest.mark.ssh
def test_the_row_about_a_host_that_hangs(tmp_path: Path) -> None:
    skip_without("sshd")
    check(measured(tmp_path, "hang")["hang"])


def test_the_targets_are_those_of_the_page() -> None:
    program = "import benchmarks.figures as f, json; print(json.dumps({k: str(v) for k, v in f.TARGETS.items()}))"
    page = PAGE.read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\w+) \| (.+) \| ([<>]= .+) \|$", page, re.MULTILINE)
    assert {figure: target for _, figure, target in lines} == json.loads(bench("-c", program))
    # The table of results has them too.
    table = next(block.text for block in blocks(page) if block.text.startswith("row ")).splitlines()[2:]
    row = ""
    for line in table:
        row = line.split("  ")[0] or row
        for target in re.findall(r"[<>]= [\d.]+(?: \w+)?", line):
            assert target.strip() in {each for name, _, each in lines if name == row}, line
