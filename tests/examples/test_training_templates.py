"""The demo's templates as scripts; what the jobs in them do is tested with the jobs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher import contract
from dispatcher.config import Method
from dispatcher.matrix import Entry
from dispatcher.templates.training import render_training

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "templates"
# By hand a template runs in the checkout; these tests run it elsewhere.
EXAMPLE = str(ROOT / "examples" / "names")
METHODS = ("pretrain", "fft", "lora")
FEW_STEPS = {"steps": 3, "batch_size": 2}


def template(method):
    """The template as a module, imported anew."""
    spec = importlib.util.spec_from_file_location(f"train_{method}", TEMPLATES / f"train_{method}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(method, **params):
    module = template(method)
    return module.main({**module.PARAMS, "example": EXAMPLE, **params})


@pytest.fixture(autouse=True)
def by_hand(tmp_path, monkeypatch):
    """As run by hand in an empty workspace, even if the tests themselves run in an attempt."""
    monkeypatch.delenv(contract.ATTEMPT_DIR, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_importing_a_template_trains_and_writes_nothing(method, tmp_path, capfd):
    assert isinstance(template(method).PARAMS, dict)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out == ""


@pytest.mark.demo
@pytest.mark.slow
def test_the_templates_run_by_hand_only_once_and_fine_tuning_beats_the_pretrained_model_by_both_methods():
    """A fraction of the demo's steps, on the language with the smallest gain: the demo itself shows all of them."""
    settings = {"pretrain": {"steps": 100}} | {
        method: {"lang": "vietnamese", "seed": 1, "steps": 40} for method in ("fft", "lora")
    }
    rows = {method: run(method, **settings[method]) for method in METHODS}
    for method in ("fft", "lora"):
        assert rows[method]["base_bpc"] < 12
        assert rows[method]["gain"] > 0.1, (method, rows[method])
    files = written()
    assert {method: run(method, **settings[method]) for method in METHODS} == rows
    assert written() == files


def written():
    """What the jobs have left, and when it was written; a lock is taken also by a job that has nothing to do."""
    paths = [path for path in Path("runs").rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: path.stat().st_mtime_ns for path in paths}


@pytest.mark.demo
def test_a_rendered_script_reports_to_its_attempt(tmp_path):
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    source = TEMPLATES / "train_pretrain.py"
    entry = Entry(
        job_id="pretrain", method="pretrain", params={"output_dir": "a'; echo foo", "example": EXAMPLE, **FEW_STEPS}
    )
    script = tmp_path / "script.py"
    script.write_text(render_training(source, entry, Method(name="pretrain", template=source)))
    subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, contract.ATTEMPT_DIR: str(attempt)}, check=True
    )
    assert json.loads((attempt / contract.PROGRESS_FILE).read_text())["step"] == FEW_STEPS["steps"]
    assert json.loads((attempt / contract.RESULT_FILE).read_text())["n_trained"] > 50_000
    assert (tmp_path / "a'; echo foo" / "checkpoints" / "names" / "pretrain" / "pretrain" / "best").is_dir()
