"""Values come back as what they were, for us and for other readers of YAML."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.base import yaml_text

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
# Words that one version of YAML or another takes for something else than text.
traps = st.sampled_from(
    [
        "\x85",
        "a\u2028b",
        "\u2029 ",
        "\ufeffa",
        " \r\n",
        "no",
        "on",
        "1e-4",
        "1:30",
        "null",
        "~",
        "",
        "0o7",
        "0x1F",
        "010",
        "1_000",
        ".inf",
        ".nan",
        "2026-01-01",
        "<<",
        "=",
    ]
)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | traps | st.integers().map(str)
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | traps, inner, max_size=4),
    max_leaves=12,
)


def same(one: object, other: object) -> bool:
    """Equal, and of equal types all the way down: 1, 1.0 and true are three values."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(documents)
@settings(max_examples=300)
def test_what_is_written_is_read_back(document: object) -> None:
    assert same(yaml_text.load(yaml_text.dump(document)), document)


@given(documents)
@settings(max_examples=300)
def test_other_readers_read_the_same(document: object) -> None:
    assert same(yaml.safe_load(yaml_text.dump(document)), document)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("12", 12),
        ("0x10", 16),
        ("true", True),
        ("null", None),
        ("", None),
        ("no", "no"),
        ("2026-01-01", "2026-01-01"),
        ("http://host:80/#a", "http://host:80/#a"),
        ("a: b # c", "a: b # c"),
        ("'1'", "1"),
        ('"a\\n"', "a\n"),
        ("[1, 2.0, x]", [1, 2.0, "x"]),
        ("{a: 1e-3}", {"a": 1e-3}),
        ("-", "-"),
        ("*x", "*x"),
    ],
)
def test_one_word(text: str, value: object) -> None:
    assert same(yaml_text.load_scalar(text), value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        (" 0.5 ", 0.5),
        ("1e-4", 1e-4),
        ("5E-05", 5e-05),
        ("true", True),
        ("null", None),
        ("[1, [2,3]]", [1, [2, 3]]),
        ('{"a":{"b":[]}}', {"a": {"b": []}}),
        ('"2.10"', "2.10"),
        ("'it''s, so'", "it's, so"),
        ('" a"', " a"),
    ],
)
def test_a_word_without_a_declared_type(text: str, value: object) -> None:
    assert same(yaml_text.read_value(text), value)


@pytest.mark.parametrize(
    "text",
    ["007", "1.10", "0.50", "2.10", "1e3", "1.5e3", "nan", "NaN", "-0", "1e999", "1e-999", "0x10", "True", "yes", "[a]",
     "[1.10]", "{a: 1}", '{"a":1,"a":2}', "[", "range(0,3)", "0.12345678901234567890", "12345678901234567890123",
     "it's", "[NaN]", "1_000", ""],
)  # fmt: skip
def test_what_a_program_would_get_as_something_else_stays_text(text: str) -> None:
    assert same(yaml_text.read_value(text), text)


@given(st.text("[]{}()\"',:\\a ", max_size=14))
@settings(max_examples=500)
def test_whatever_is_split_nothing_is_lost(text: str) -> None:
    assert ",".join(yaml_text.split_values(text)) == text.replace("\\,", ",") or "\\," in text
    assert text.endswith(yaml_text.last_value(text))


@pytest.mark.parametrize(
    "text", ["(" * 200_000, "([{" * 60_000 + ")" * 60_000, "'a," * 60_000, '"",' * 60_000, "()," * 60_000]
)
def test_splitting_takes_time_in_proportion(text: str) -> None:
    # A quadratic one would not end.
    assert len(yaml_text.split_values(text)) >= 1
    yaml_text.read_value(text)


def test_words_of_a_document_that_programs_get_as_others() -> None:
    text = """
grid:
  torch: [2.9, 2.10, "2.10", 1.0]
  steps: [1e3, 1000, 1e-3, 5E-4, 0x10, 0o17]
  flag: [True, true, yes, off, ~, null]
  code: [007, 1_000, 1:30, 2026-01-01]
same: &x [+5]
again: *x
"""
    found = [(lost.path, lost.line, lost.written, lost.value) for lost in yaml_text.lost_forms(text)]
    assert found == [
        (("grid", "torch", 1), 3, "2.10", 2.1),
        (("grid", "steps", 0), 4, "1e3", 1000.0),
        (("grid", "steps", 4), 4, "0x10", 16),
        (("grid", "steps", 5), 4, "0o17", 15),
        (("grid", "flag", 0), 5, "True", True),
        (("same", 0), 7, "+5", 5),
        (("again", 0), 7, "+5", 5),
    ]
    assert list(yaml_text.lost_forms("")) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2\n", "line 2, column 1: duplicate key 'a'"),
        ("a: [1", "line 1"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        yaml_text.load(text)


def nested(levels: int, of_each: int = 10) -> str:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * of_each)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("read", [yaml_text.load, lambda text: yaml_text.load_mapping(text, "a mapping")])
def test_aliases_that_expand_to_billions_of_values(read):
    with pytest.raises(ValueError, match=r"^line 5, column \d+: with the alias \*a3, .* more than 100000 values"):
        read(nested(9, of_each=20))


@pytest.mark.parametrize("document", ["&a [*a]", "&a {x: {y: *a}}", "&a {x: 1, <<: *a}"])
def test_an_alias_inside_its_own_value(document):
    with pytest.raises(ValueError, match=r"line 1, column \d+: the alias \*a refers to a value that contains it"):
        yaml_text.load(document)


def test_values_that_share_what_they_alias():
    assert yaml_text.load("a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3}") == {
        "a": {"x": [1, 2]},
        "b": {"x": [1, 2]},
        "c": {"x": [1, 2], "y": 3},
    }
    assert len(yaml_text.load("a: &a [" + "x, " * 40_000 + "]\nb: [*a, *a]")["b"][1]) == 40_000
    # What is written out has no bound.
    assert len(yaml_text.load("[" + "x, " * 100_001 + "]")) == 100_001


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "methods: {fft: {max_running: 4}}\n"),
        ("# ours\nmatrix: a.json", "# ours\nmethods: {fft: {max_running: 4}}\nmatrix: a.json"),
        ("methods:\n", "methods: {fft: {max_running: 4}}\n"),
        ("methods:\n  fft:  # slow\n", "methods:\n  fft: {max_running: 4}  # slow\n"),
        ("methods: {fft: {max_running: 2}} # x\n", "methods: {fft: {max_running: 4}} # x\n"),
        ("methods: {fft: {gpus: 1}}\n", "methods: {fft: {max_running: 4, gpus: 1}}\n"),
        ("methods: {}\n", "methods: {fft: {max_running: 4}}\n"),
        (
            "methods:\n  # why\n  fft:\n    gpus: 1  # one\n\n  lora: {}\n",
            "methods:\n  # why\n  fft:\n    max_running: 4\n    gpus: 1  # one\n\n  lora: {}\n",
        ),
        (
            "methods:\n  fft:\n    gpus: 1\n    max_running: 10   # many\n",
            "methods:\n  fft:\n    gpus: 1\n    max_running: 4   # many\n",
        ),
        ("methods:\n  lora: {gpus: 0}\n", "methods:\n  fft: {max_running: 4}\n  lora: {gpus: 0}\n"),
    ],
)
def test_a_number_is_written_into_a_document(before: str, after: str) -> None:
    assert yaml_text.with_number(before, ("methods", "fft", "max_running"), 4) == after


@pytest.mark.parametrize(
    "text", ["x: &a {gpus: 1}\nmethods: {fft: *a, lora: *a}\n", "methods: [1]\n", "methods: {fft: 3}\n"]
)
def test_a_document_that_would_change_elsewhere_is_left_alone(text: str) -> None:
    with pytest.raises(ValueError, match=r"a program cannot change safely|other things than keys"):
        yaml_text.with_number(text, ("methods", "fft", "max_running"), 4)
