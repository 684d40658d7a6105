from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dispatcher import contract
from dispatcher.config import Method
from dispatcher.errors import UsageError
from dispatcher.matrix import Entry
from dispatcher.runtime.weights import read_arrays
from dispatcher.templates.training import render_training

TEMPLATES = Path(__file__).parents[2] / "templates"
METHODS = ("pretrain", "fft", "lora")
OUTPUTS = {"pretrain": "weights.npz", "fft": "weights.npz", "lora": "adapters.npz"}
FEW_STEPS = {"steps": 3, "batch_rows": 2}


def template(method):
    """The template as a module, imported anew."""
    spec = importlib.util.spec_from_file_location(f"train_{method}", TEMPLATES / f"train_{method}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(method, **params):
    module = template(method)
    return module.main({**module.PARAMS, **params})


@pytest.fixture(autouse=True)
def by_hand(tmp_path, monkeypatch):
    """As run by hand in an empty workspace, even if the tests themselves are somebody's job."""
    monkeypatch.delenv(contract.ATTEMPT_DIR, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Weights after a few steps: enough to start from, not to be good."""
    directory = tmp_path_factory.mktemp("base")
    run("pretrain", output_dir=str(directory), **FEW_STEPS)
    return str(directory / "weights.npz")


@pytest.mark.parametrize("method", METHODS)
def test_importing_a_template_trains_and_writes_nothing(method, tmp_path, capfd):
    assert isinstance(template(method).PARAMS, dict)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out == ""


@pytest.mark.demo
@pytest.mark.parametrize("method", ["fft", "lora"])
def test_a_fine_tune_reports_a_row_that_fits_together(method, tmp_path, base):
    row = run(method, lang="greek", seed=1, base=base, output_dir=str(tmp_path / "out"), **FEW_STEPS)
    assert row["gain"] == pytest.approx(row["base_bpc"] - row["test_bpc"], abs=2e-4)
    assert row["n_chars"] > 2000
    assert row["train_seconds"] > 0


@pytest.mark.demo
def test_both_methods_are_compared_with_the_same_pretrained_model(tmp_path, base):
    rows = {
        method: run(method, lang="greek", seed=1, base=base, output_dir=str(tmp_path / method), **FEW_STEPS)
        for method in ("fft", "lora")
    }
    # Two programs, rounded differently, and then both to four digits.
    assert rows["fft"]["base_bpc"] == pytest.approx(rows["lora"]["base_bpc"], abs=2e-4)
    assert rows["fft"]["n_chars"] == rows["lora"]["n_chars"]
    assert rows["lora"]["n_trained"] < 0.2 * rows["fft"]["n_trained"]


@pytest.mark.demo
@pytest.mark.parametrize("method", METHODS)
def test_a_repeated_attempt_writes_the_same_bytes(method, tmp_path, base):
    params = {"seed": 7, "output_dir": str(tmp_path / "out"), **FEW_STEPS}
    if method != "pretrain":
        params |= {"lang": "hindi", "base": base}
    output = tmp_path / "out" / OUTPUTS[method]
    run(method, **params)
    first = output.read_bytes()
    run(method, **params)
    assert output.read_bytes() == first
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.demo
def test_lora_saves_adapters_that_have_learned(tmp_path, base):
    run("lora", lang="hindi", seed=1, base=base, output_dir=str(tmp_path / "out"), **FEW_STEPS)
    arrays = read_arrays(tmp_path / "out" / "adapters.npz")
    assert arrays
    assert all("lora_" in name and np.any(array) for name, array in arrays.items())


@pytest.mark.demo
@pytest.mark.parametrize("method", ["fft", "lora"])
def test_a_language_that_is_not_there_is_named(method, tmp_path, base):
    with pytest.raises(UsageError, match="did you mean 'turkish'"):
        run(method, lang="turkisch", seed=1, base=base, output_dir=str(tmp_path / "out"), **FEW_STEPS)


@pytest.mark.demo
def test_a_rendered_script_reports_to_its_attempt(tmp_path):
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    source = TEMPLATES / "train_pretrain.py"
    entry = Entry(job_id="pretrain", method="pretrain", params={"output_dir": "a'; echo foo", **FEW_STEPS})
    script = tmp_path / "script.py"
    script.write_text(render_training(source, entry, Method(name="pretrain", template=source)))
    subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, contract.ATTEMPT_DIR: str(attempt)}, check=True
    )
    assert json.loads((attempt / contract.PROGRESS_FILE).read_text())["step"] == FEW_STEPS["steps"]
    assert json.loads((attempt / contract.RESULT_FILE).read_text())["n_chars"] > 10_000
    assert (tmp_path / "a'; echo foo" / "weights.npz").is_file()


@pytest.mark.demo
@pytest.mark.slow
def test_fine_tuning_beats_the_pretrained_model_by_both_methods(tmp_path):
    """A third of the demo's steps, on the language with the smallest gain: the demo itself shows all of them."""
    run("pretrain", output_dir=str(tmp_path / "base"), steps=200)
    base = str(tmp_path / "base" / "weights.npz")
    for method in ("fft", "lora"):
        row = run(method, lang="vietnamese", seed=1, base=base, steps=60, output_dir=str(tmp_path / method))
        assert row["gain"] > 0.1, (method, row)
