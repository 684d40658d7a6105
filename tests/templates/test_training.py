"""Training templates: what is replaced, what stays, and that the result runs with exactly the entry's values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.config import Method
from dispatcher.errors import TemplateError
from dispatcher.hosts.types import Container
from dispatcher.matrix import Entry
from dispatcher.templates.render import encode_script, render_training

TEMPLATE = '''#!/usr/bin/env python
"""A template."""
from __future__ import annotations

import json, sys

BEFORE = "é字"; PARAMS: dict[str, object] = {
    "lang": ...,  # required
    "lr": 3e-4, "steps": 4 * 25, "job_id": "by hand",
    "layers": [1,
        2],
    "env": {}, "note": None,
}  # kept
print(json.dumps(PARAMS))
'''

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "train_m.py"
    path.write_text(TEMPLATE, encoding="utf-8")
    return path


def method(**fields: Any) -> Method:
    return Method(name="m", template=Path("unused"), **fields)


def entry(**params: Any) -> Entry:
    return Entry(job_id="job", method="m", params=params)


def params_of(script: str | bytes) -> dict[str, Any]:
    names: dict[str, Any] = {"print": lambda *_: None}
    exec(compile(script, "script", "exec"), names)
    result: dict[str, Any] = names["PARAMS"]
    return result


def test_one_assignment_changes_and_nothing_else(template: Path) -> None:
    script = render_training(template, entry(lang="español's", lr=0.1, unread=1), method())
    head, _, rest = TEMPLATE.partition('{\n    "lang"')
    assert script.startswith(head) and script.endswith("}  # kept\nprint(json.dumps(PARAMS))\n")
    assert "    'lang': \"español's\",\n    'lr': 0.1,\n    'steps': 4 * 25,\n" in script
    assert rest
    assert params_of(script) == {
        "lang": "español's",
        "lr": 0.1,
        "steps": 100,
        "job_id": "job",
        "layers": [1, 2],
        "env": {},
        "note": None,
    }


def test_the_script_runs_and_prints_what_the_entry_says(template: Path, tmp_path: Path) -> None:
    values = ["a b", "$(x)", "'\"", "-n", "l1\nl2", "ü字", ";", "\\", "\0", "{}", "\u2028"]
    target = tmp_path / "job.py"
    target.write_bytes(encode_script(render_training(template, entry(lang=values), method())))
    result = subprocess.run([sys.executable, str(target)], capture_output=True, check=True)
    assert json.loads(result.stdout)["lang"] == values


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(json_values, st.sampled_from(["utf-8", "latin-1", "ascii"]), st.sampled_from(["\n", "\r\n"]))
def test_any_value_in_any_encoding_reads_back(tmp_path: Path, value: Any, encoding: str, newline: str) -> None:
    path = tmp_path / f"t_{encoding}_{len(newline)}.py"
    path.write_bytes(f"# -*- coding: {encoding} -*-\nPARAMS = {{'x': ...}}\n".replace("\n", newline).encode(encoding))
    target = tmp_path / "out.py"
    target.write_bytes(encode_script(render_training(path, entry(x=value), method())))
    data = target.read_bytes()
    assert data.count(newline.encode()) == data.count(b"\n") == 4
    assert params_of(data)["x"] == value


def test_a_mark_at_the_beginning_stays(tmp_path: Path) -> None:
    path = tmp_path / "t.py"
    path.write_bytes(b"\xef\xbb\xbfPARAMS = {'x': 1}\n")
    (tmp_path / "out.py").write_bytes(encode_script(render_training(path, entry(x=2), method())))
    assert (tmp_path / "out.py").read_bytes() == b"\xef\xbb\xbfPARAMS = {\n    'x': 2,\n}\n"


def test_words_of_the_method_are_known_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.py"
    path.write_text(
        "PARAMS = {'gpus': 1, 'env': {}, 'method': '', 'time_limit': None, 'retries': 7, 'container': None,"
        " 'queue_limit': 0}\n"
    )
    container = Container(runtime="podman", image="a:1")
    described = method(gpus=4, env={"A": "1", "B": "1"}, time_limit_s=60.0, container=container, queue_limit_s=5.0)
    one = Entry(job_id="j", method="m", env={"B": "2"})
    assert params_of(render_training(path, one, described)) == {
        "gpus": 4,
        "env": {"A": "1", "B": "2"},
        "method": "m",
        "time_limit": 60.0,
        "retries": 7,
        "container": {"runtime": "podman", "image": "a:1"},
        "queue_limit": 5.0,
    }


def test_a_missing_required_parameter_names_template_entry_and_key(template: Path) -> None:
    with pytest.raises(TemplateError, match=r"train_m.py: job has no lang, which the template requires"):
        render_training(template, entry(lr=1), method())


def test_a_changed_template_is_read_again(template: Path) -> None:
    render_training(template, entry(lang="x"), method())
    template.write_text("PARAMS = {'changed': 1}\n")
    assert params_of(render_training(template, entry(lang="x"), method())) == {"changed": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "x = 1\n",
            "has no PARAMS = {...} at module level: write one with the parameters and their defaults, or give the",
        ),
        ("def f():\n    PARAMS = {}\n", "has no PARAMS = {...} at module level"),
        ("PARAMS = {}\nx = 1\nPARAMS = {}\n", "assigns PARAMS 2 times, in lines 1 and 3"),
        ("PARAMS = {}\nPARAMS |= {}\n", "assigns PARAMS 2 times"),
        ("PARAMS = dict(a=1)\n", "line 1: PARAMS is not a dict display"),
        ("PARAMS: dict\n", "line 1: PARAMS is not a dict display"),
        ("PARAMS = {**{}}\n", "every key of PARAMS must be a text"),
        ("PARAMS = {1: 2}\n", "every key of PARAMS must be a text"),
        ("PARAMS = {'a': 1, 'a': 2}\n", "has the key 'a' twice"),
        ("PARAMS = {\n", "line 1: the template is not valid Python"),
        ("PARAMS = {}\nreturn\n", "line 2: the template is not valid Python"),
        ("PARAMS = {}\0", "the template is not valid Python"),
        ("# coding: nonsense\nPARAMS = {}\n", "the template is not valid Python"),
    ],
)
def test_templates_that_cannot_be_used(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "t.py"
    path.write_text(text)
    with pytest.raises(TemplateError) as caught:
        render_training(path, entry(), method())
    assert str(path) in str(caught.value) and expected in str(caught.value)


def test_a_missing_template_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="there is no such template; write it, or give the method"):
        render_training(tmp_path / "none.py", entry(), method())


@pytest.mark.parametrize("value", [float("inf"), Path("x"), {"a": float("nan")}])
def test_values_without_a_literal_are_refused(template: Path, value: object) -> None:
    with pytest.raises(TemplateError, match="job: lang = "):
        render_training(template, entry(lang=value), method())
