"""Launchers: every value is one word of bash, shown by running what comes out."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hostile_words import HOSTILE_WORDS
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.errors import TemplateError
from dispatcher.templates import shell
from dispatcher.templates.render import render_launcher
from dispatcher.workspace import Layout

WORDS = [*HOSTILE_WORDS, "\\'\n", "if", "time", "{a,b}", "\x1b", "[[", "\r", "{{ x }}"]


def rendered(tmp_path: Path, text: str, **values: Any) -> str:
    folder = tmp_path / "templates"
    folder.mkdir(exist_ok=True)
    (folder / "launch.sh.j2").write_text(text, encoding="utf-8")
    return render_launcher(Layout(tmp_path), "launch.sh.j2", values)


def run(script: str, folder: Path) -> str:
    path = folder / "job.sh"
    path.write_text(script, encoding="utf-8")
    return subprocess.run(["bash", str(path)], cwd=folder, capture_output=True, check=True).stdout.decode()


def test_values_arrive_as_they_are_wherever_a_launcher_may_put_them(tmp_path: Path) -> None:
    text = """#!/bin/bash
# it's for {{ value }}
set -eu
{% for word in words %}
printf '%s\\0' {{ word }}
{% endfor %}
printf '%s\\0' {{ words }}
export NAME={{ value }} #{{ value }}
printf '%s\\0' "$NAME" "$(printf %s {{ value }}.)" pre{{ value }}post {{ value|upper|lower }} ${#NAME}
"""
    for value in (word for word in WORDS if word.isascii()):
        arrived = run(rendered(tmp_path, text, words=WORDS, value=value), tmp_path).split("\0")[:-1]
        expected = [*WORDS, *WORDS, value, f"{value}.", f"pre{value}post", value.lower(), str(len(value))]
        assert arrived == expected
    assert not (tmp_path / "pwned").exists()


@settings(max_examples=25)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=20))
def test_any_words_survive_bash(words: list[str]) -> None:
    script = f"printf '%s\\0' x {shell.quoted(words)} # {shell.quoted(words)}\n"
    out = subprocess.run(["bash", "-s"], input=script.encode(), capture_output=True, check=True).stdout
    assert out.decode().split("\0")[1:-1] == words


def test_a_program_is_never_read_as_an_assignment_or_grammar(tmp_path: Path) -> None:
    for name in ("A=b", "if", "a b"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho ran\n")
        program.chmod(0o755)
        assert run(rendered(tmp_path, "PATH=.:$PATH\n{{ words }}\n", words=[name]), tmp_path) == "ran\n"


def test_numbers_booleans_and_paths(tmp_path: Path) -> None:
    text = rendered(tmp_path, "{{ a }} {{ b }} {{ c }} {{ d }} {{ e }}", a=1, b=0.5, c=True, d=Path("/a b"), e=("x", 2))
    assert text == "1 0.5 true '/a b' x 2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('x="{{ x }}"', "line 1: a value inside quotes"),
        ("\n\nx='{{ x }}'", "line 3: a value inside quotes"),
        ("x=`echo {{ x }}`", "inside quotes"),
        ('x="$(echo "{{ x }}")"', "inside quotes"),
        ('x="${y:-{{ x }}}"', "inside quotes"),
        ("echo ${{ x }}", "after '$'"),
        ("echo \\{{ x }}", "after '$' or '\\'"),
        ("cat <<EOF\n{{ x }}\nEOF", "here-documents are not possible"),
        ("cat <<{{ x }}", "here-documents are not possible"),
        ("{% filter upper %}{{ x }}{% endfilter %}", "filter blocks are not possible"),
        ("x='", "line 1: the file ends inside quotes"),
        ('x="\n{% include "part.sh.j2" %}"', "line 2: include inside quotes"),
        ('#{% include "part.sh.j2" %}', "line 1: include inside quotes or a comment"),
        ('{% extends "part.sh.j2" %}', "line 1: 'extends' is not possible"),
        ("{{ y }}", "'y' is undefined; this launcher is given: x"),
        ("{{ x.y }}", "no attribute 'y'"),
        ("{{ x", "line 1: unexpected end of template"),
        ("{{ none }}", "a value of type NoneType"),
        ("{{ {'a': 1} }}", "a value of type dict"),
        ("{{ '\\0' }}", "NUL"),
    ],
)
def test_launchers_that_could_lose_a_values_quotes_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(tmp_path, text, x="v")
    assert expected in str(caught.value) and "launch.sh.j2" in str(caught.value)


def test_marking_a_value_as_safe_changes_nothing(tmp_path: Path) -> None:
    assert rendered(tmp_path, "{{ x|safe }}{{# a comment #}}", x="a;b") == "'a;b'"


def test_a_projects_launcher_overrides_the_packaged_one(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="there is no such launcher"):
        render_launcher(Layout(tmp_path), "none.sh.j2", {})
    assert rendered(tmp_path, "first {{ x }}", x=1) == "first 1"
    assert rendered(tmp_path, "second, longer {{ x }}", x=1) == "second, longer 1"


def test_parts_of_a_launcher(tmp_path: Path) -> None:
    text = 'a\n{% include "part.sh.j2" %}\nc\n'
    with pytest.raises(TemplateError, match=r"part\.sh\.j2: there is no such launcher"):
        rendered(tmp_path, text)
    part = tmp_path / "templates" / "part.sh.j2"
    part.write_text("echo {{ x }}\n")
    assert rendered(tmp_path, text, x="b c") == "a\necho 'b c'\nc\n"
    part.write_text("echo changed {{ x }}\n")
    assert rendered(tmp_path, text, x="b c") == "a\necho changed 'b c'\nc\n"
    for fault, expected in (('echo "{{ x }}"', "part.sh.j2: line 1: a value inside quotes"), ("{{ x", "part.sh.j2")):
        part.write_text(fault)
        with pytest.raises(TemplateError, match=expected):
            rendered(tmp_path, text, x="b c")


def test_a_project_may_replace_a_part_of_a_packaged_launcher(tmp_path: Path) -> None:
    """Also one that was rendered before."""
    layout = Layout(tmp_path)
    values = {"directory": "/d", "root": "/r", "local_dir": "/tmp", "work": "", "work_id": "0", "label": "a.1"}
    others = (
        "group_may_write",
        "juicefs",
        "container",
        "exports",
        "unset",
        "modules",
        "uv",
        "setup",
        "cwd",
        "facts",
        "watch",
        "env_files",
        "activate",
        "tmpdir",
    )
    values |= dict.fromkeys(others, "")
    assert "# mine" not in render_launcher(layout, "node.sh.j2", values)
    layout.templates_dir.mkdir()
    (layout.templates_dir / "node_work.sh.j2").write_text("# mine {{ label }}\n")
    assert "# mine a.1" in render_launcher(layout, "node.sh.j2", values)
