"""Command lines, shown by what really arrives in a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_words import HOSTILE_WORDS
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.config import Method
from dispatcher.errors import TemplateError
from dispatcher.matrix import Entry
from dispatcher.templates.command import placeholders, too_long, unfilled
from dispatcher.templates.render import command_line, uses_script

WORDS = [*HOSTILE_WORDS, "{script}", "{{x}}", "%s", "|", ">", "\x1b[0m"]
ECHO = "import sys, json; sys.stdout.write(json.dumps(sys.argv[1:]))"
METHOD = Method(name="m", template=Path("t.py"))
SCRIPT = Path("a'; echo foo/script.py")


def arrived(line: list[str]) -> Any:
    return json.loads(subprocess.run(line, capture_output=True, check=True).stdout)


def entry(command: Any = None, job_id: str = "job", **params: Any) -> Entry:
    return Entry(job_id=job_id, method="m", command=command, params=params)


def test_every_value_arrives_as_one_argument(tmp_path: Path) -> None:
    values = {f"v{number}": value for number, value in enumerate(WORDS)}
    words = " ".join(f"{{{key}}} --k={{{key}}}" for key in values)
    for command in (f"{{python}} -c '{ECHO}' {words}", [sys.executable, "-c", ECHO, *words.split()]):
        line = command_line(METHOD, entry(command if isinstance(command, str) else tuple(command), **values), SCRIPT)
        assert arrived(line) == [word for value in WORDS for word in (value, f"--k={value}")]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_is_one_word(value: str) -> None:
    assert command_line(METHOD, entry("run {x} '{x} {x}'", x=value), SCRIPT) == ["run", value, f"{value} {value}"]


def test_values_other_than_text_arrive_as_json() -> None:
    line = command_line(METHOD, entry("run {a} {b} {c} {d} {e}", a=True, b=1e-5, c=[1, "x y"], d=None, e=3), SCRIPT)
    assert line == ["run", "true", "1e-05", '[1, "x y"]', "null", "3"]


def test_the_default_command_runs_the_script_with_this_interpreter() -> None:
    assert command_line(METHOD, entry(), SCRIPT) == [sys.executable, str(SCRIPT)]
    assert uses_script(METHOD, entry()) and not uses_script(METHOD, entry("/bin/true"))


def test_the_entrys_command_comes_before_the_methods() -> None:
    method = Method(name="m", template=Path("t.py"), command="theirs {job_id} {method}")
    assert command_line(method, entry(), SCRIPT) == ["theirs", "job", "m"]
    assert command_line(method, entry("ours"), SCRIPT) == ["ours"]
    assert placeholders(method, entry()) == {"job_id", "method"}


def test_braces_that_are_no_placeholder_stay() -> None:
    words = ("awk", "{print $1}", '{"lr": {lr}}', "{{lr}}", "${{HOME}}", "{}", "{1,2}")
    line = command_line(METHOD, entry(words, lr=3), SCRIPT)
    assert line == ["awk", "{print $1}", '{"lr": 3}', "{lr}", "${HOME}", "{}", "{1,2}"]


def test_reserved_words_and_awkward_keys_are_available() -> None:
    one = Entry(
        job_id="j", method="m", command="run {gpus} {learning-rate} {'my key'}", gpus=2, params={"learning-rate": 1}
    )
    with_spaces = Entry(job_id="j", method="m", command=("run", "{my key}"), params={"my key": "v"})
    with pytest.raises(TemplateError):
        command_line(METHOD, entry("run {learning-rat}"), SCRIPT)
    assert command_line(METHOD, one, SCRIPT)[1:3] == ["2", "1"]
    assert command_line(METHOD, with_spaces, SCRIPT) == ["run", "v"]


@pytest.mark.parametrize(
    ("command", "params", "expected"),
    [
        (
            "run {lnag}",
            {"lang": "es"},
            "job: the command's \"{lnag}\" has {lnag}, which the entry does not have (did you mean 'lang'?)",
        ),
        ("run {x}", {"x": "a\0b"}, "job: x = .* holds a NUL character"),
        ("run {x}", {"x": "\ud800"}, "job: x = .* half of a surrogate pair"),
        ("run {x}", {"x": ["\0"]}, None),
    ],
)
def test_what_cannot_be_filled_is_named(command: str, params: dict[str, Any], expected: str | None) -> None:
    if expected is None:
        # JSON spells it as six harmless characters.
        assert command_line(METHOD, entry(command, **params), SCRIPT) == ["run", '["\\u0000"]']
        return
    with pytest.raises(TemplateError) as caught:
        command_line(METHOD, entry(command, **params), SCRIPT)
    assert all(part in str(caught.value) for part in expected.split(".*"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--amp", "--amp=true", "true", "x-amp-y"]),
        ("O1", ["--amp", "--amp=O1", "O1", "x-amp-y"]),
        (0, ["--amp", "--amp=0", "0", "x-amp-y"]),
        *((value, ["x-y"]) for value in (False, None, "", " ", "False", "None", "null")),
    ],
)
def test_optional_words(value: Any, words: list[str]) -> None:
    command = "run {amp?--amp} {amp?--amp={amp}} {amp?} x-{amp?amp-}y"
    assert command_line(METHOD, entry(command, amp=value), SCRIPT) == ["run", *words]
    assert command_line(METHOD, entry(tuple(command.split()), amp=value), SCRIPT) == ["run", *words]
    assert placeholders(METHOD, entry(command)) == {"amp"}


def test_an_optional_word_of_a_method_is_left_out_where_the_entry_has_no_such_key() -> None:
    method = Method(name="m", template=Path("t.py"), command="run {lr} {amp?--amp}")
    assert command_line(method, entry(lr=1), SCRIPT) == ["run", "1"]
    assert unfilled(method, entry(lr=1)) == []
    assert unfilled(METHOD, entry("run {amp?--amp}", lr=1)) == ["amp"], "one of the job's own command is misspelt"
    assert unfilled(METHOD, entry("run {amp?--lr={lrr}}", amp=1)) == ["lrr"]


def test_optional_words_that_cannot_be_used() -> None:
    with pytest.raises(TemplateError, match=r"each word is optional by itself, as in \{name\?--name\} \{name\?\}"):
        command_line(METHOD, entry("run {amp?--amp {amp}}", amp=1), SCRIPT)
    with pytest.raises(TemplateError, match="a program cannot be optional"):
        command_line(METHOD, entry("{tool?} x", tool=None), SCRIPT)


def test_an_empty_text_that_is_not_optional_is_an_argument() -> None:
    line = command_line(METHOD, entry("run {x} -{x} {{x?y}} {?} {1?2}", x=""), SCRIPT)
    assert line == ["run", "", "-", "{x?y}", "{?}", "{1?2}"]


@pytest.mark.parametrize("size", [200_000, 131_071])
def test_a_word_that_no_linux_takes_is_told_before_the_claim(size: int) -> None:
    method = Method(name="m", template=Path("none.py"))
    entry = Entry(job_id="a", method="m", command=("echo", "x" * size, "{text}"), params={"text": "y" * 131_072})
    assert "bytes, and Linux takes less than 131072: write the text into a file" in too_long(method, entry)
    fits = Entry(job_id="a", method="m", command=("echo", "x" * 131_071))
    assert too_long(method, fits) == ""
    many = Entry(job_id="a", method="m", command=("echo", *["x" * 100_000] * 40))
    assert "the command has 4000004 bytes, and this host takes about" in too_long(method, many)
