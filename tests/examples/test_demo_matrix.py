from __future__ import annotations

import collections
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import _text as text

from dispatcher.config import Method
from dispatcher.matrix import load_manifest
from dispatcher.templates.training import render_training

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "make_demo_matrix.py"


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    path = tmp_path_factory.mktemp("workspace") / "matrix" / "matrix.json"
    subprocess.run([sys.executable, str(SCRIPT), str(path)], check=True)
    return load_manifest(path).entries


def test_every_language_configuration_seed_and_method_is_there_once(entries):
    fine_tunes = [entry for entry in entries.values() if entry.method != "pretrain"]
    assert len(fine_tunes) >= 24
    keys = ("lang", "config_id", "seed")
    points = collections.Counter((entry.method, *(entry.params[key] for key in keys)) for entry in fine_tunes)
    axes = [{point[axis] for point in points} for axis in range(4)]
    assert len(points) == len(fine_tunes) == len(axes[0]) * len(axes[1]) * len(axes[2]) * len(axes[3])
    assert axes[0] == {"fft", "lora"}
    assert axes[1] == set(text.LOCALES)


def test_all_fine_tunes_need_the_pretraining_and_begin_with_its_checkpoint(entries):
    first, *fine_tunes = entries.values()
    assert first.method == "pretrain"
    assert first.needs == ()
    for entry in fine_tunes:
        assert entry.needs == (first.job_id,)
        assert entry.params["base"] == f"names/pretrain/{first.job_id}/best"
        assert entry.params["output_dir"] == first.params["output_dir"]


def test_every_entry_renders_to_a_script_with_its_own_parameters(entries, tmp_path):
    for number, entry in enumerate(entries.values()):
        template = ROOT / "templates" / f"train_{entry.method}.py"
        script = tmp_path / f"script_{number}.py"
        script.write_text(render_training(template, entry, Method(name=entry.method, template=template)))
        params = runpy.run_path(str(script))["PARAMS"]
        assert ... not in params.values()
        assert {key: value for key, value in entry.params.items() if key in params}.items() <= params.items()


def test_importing_the_script_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(SCRIPT), run_name="imported")
    assert list(tmp_path.iterdir()) == []
