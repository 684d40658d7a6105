"""The bootstrap of an attempt: rendered like a training template, valid Python whatever the values are."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_words import HOSTILE_WORDS
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import TemplateError
from dispatcher.templates import bootstrap
from dispatcher.templates.render import render_bootstrap

IDENTITY = {"job_id": "a", "attempt": 2, "pod": "pod-0"}
HOSTILE = {
    "job_id": "a",
    "method": "m",
    "job": "lab/x",
    "config": {word: [word, {"k": word}] for word in HOSTILE_WORDS},
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def params_of(script: bytes) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "rendered"}
    exec(compile(script, "bootstrap.py", "exec"), names)
    found: dict[str, Any] = names["PARAMS"]
    return found


def test_it_holds_exactly_what_was_given() -> None:
    hardware = {"gpus": 4, "chip": "h100", "checkpoints": "gs://lab/it's"}
    script = render_bootstrap(HOSTILE, hardware, IDENTITY)
    assert params_of(script) == {"entry": HOSTILE, "hardware": hardware, "identity": IDENTITY}


@given(value=json_values)
def test_any_value_of_a_manifest_comes_through(value: Any) -> None:
    script = render_bootstrap({"job_id": "a", "config": {"k": value}}, {}, IDENTITY)
    found = params_of(script)["entry"]["config"]["k"]
    assert json.dumps(found) == json.dumps(value)


def test_only_the_one_assignment_differs_from_the_template() -> None:
    def rest(text: str) -> str:
        tree = ast.parse(text)
        tree.body = [node for node in tree.body if not isinstance(node, ast.Assign) or "PARAMS" not in ast.dump(node)]
        return ast.dump(tree)

    template = Path(bootstrap.__file__).read_text()
    assert rest(render_bootstrap(HOSTILE, {}, IDENTITY).decode()) == rest(template)
    assert len(ast.parse(template).body) > 5


@pytest.mark.parametrize("version", [(3, 7), (3, 9)])
def test_an_older_python_can_read_it_to_say_that_it_is_too_old(version: tuple[int, int]) -> None:
    ast.parse(render_bootstrap(HOSTILE, {}, IDENTITY), feature_version=version)


def test_ruff_finds_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed: scripts/install lint")
    path = tmp_path / "bootstrap.py"
    path.write_bytes(render_bootstrap(HOSTILE, {"gpus": None}, IDENTITY))
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_value_that_is_no_literal_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"bootstrap\.py: a: entry = .*finite"):
        render_bootstrap({"job_id": "a", "lr": float("nan")}, {}, IDENTITY)


def test_the_project_is_found_from_anywhere_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "it's" / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert bootstrap.project() == str(inner)
    (tmp_path / "it's" / "jobs").mkdir()
    assert bootstrap.project() == str(tmp_path / "it's")
