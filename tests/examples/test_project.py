"""examples/names as a workspace of its own: a user's project, with no part in the package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import _text as text
from tiny_runs import environment

from dispatcher import contract
from dispatcher.matrix.sweep import expand

EXAMPLE = Path(__file__).parents[2] / "examples" / "names"
SWEEP = EXAMPLE / "matrix" / "names.yaml"


@pytest.fixture
def project(tmp_path):
    """A copy outside of the checkout."""
    return shutil.copytree(
        EXAMPLE, tmp_path / "names", ignore=shutil.ignore_patterns("runs", "run_state", "__pycache__")
    )


def dispatcher(project, cache, *words):
    """What `dispatcher` prints in the project; it has to succeed."""
    command = [sys.executable, "-P", "-m", "dispatcher", *words]
    outside = environment(cache, PYTHONPATH="", PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    done = subprocess.run(command, cwd=project, env=outside, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_sweep_has_every_language_by_both_methods():
    first, *fine_tunes = expand(SWEEP)
    assert first["job_id"] == "pretrain"
    assert {entry["names.lang"] for entry in fine_tunes} == set(text.LOCALES)
    assert {(entry["method"], entry["job"]) for entry in fine_tunes} == {
        ("fft", "names/fine-tune"),
        ("lora", "names/lora"),
    }
    assert len(fine_tunes) == 24
    assert all(entry["needs"] == ["pretrain"] for entry in fine_tunes)


@pytest.mark.demo
@pytest.mark.slow
def test_the_project_runs_from_outside_of_the_checkout(project, jax_cache):
    listed = dispatcher(project, jax_cache, "job", "list")
    assert {line.split()[0] for line in listed.splitlines()} >= {"names/fine-tune", "names/lora", "names/pretrain"}

    dispatcher(project, jax_cache, "matrix", "make", "matrix/names.yaml")
    dispatcher(project, jax_cache, "matrix", "check")
    manifest = project / "matrix" / "matrix.json"
    few = {"pretrain": None, "fft_greek_s42": None, "lora_greek_s42": None}
    entries = [entry for entry in json.loads(manifest.read_text()) if entry["job_id"] in few]
    assert [entry["job_id"] for entry in entries] == list(few)
    # A small model, whose sizes the fine-tunes take from its checkpoint.
    entries[0] |= {"model.d_model": 16, "model.d_ff": 24}
    manifest.write_text(json.dumps([{**entry, "training.steps": 3} for entry in entries]))

    dispatcher(project, jax_cache, "--pod", "test", "--slots", "1", "--until-empty")
    rows = [json.loads((project / "run_state/jobs" / job / "1" / contract.RESULT_FILE).read_text()) for job in few]
    assert rows[0]["test_bpc"] > 0
    assert rows[1]["base_bpc"] == pytest.approx(rows[2]["base_bpc"], abs=2e-4)
    assert rows[1]["n_trained"] > rows[2]["n_trained"]
