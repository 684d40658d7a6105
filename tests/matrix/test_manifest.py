"""Manifests: what is accepted, and that every fault is named with its entry, key, value and expectation."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.base.users import name_of
from dispatcher.errors import ManifestError, StorageError
from dispatcher.matrix import load_manifest, write_manifest
from dispatcher.matrix.manifest import parse_manifest

LAB_ENTRY = {
    "job_id": "fft_spanish_cfgB_s42_main",
    "method": "fft",
    "lang": "spanish",
    "fleurs_code": "es_419",
    "config_id": "B",
    "seed": 42,
    "asr_ratio": 0.5,
    "output_dir": "/checkpoints/matrix_runs/fft_spanish_cfgB_s42_main",
}


def faults(content: Any, known_ids: tuple[str, ...] = ()) -> list[str]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(ManifestError) as caught:
        parse_manifest(data, "matrix.json", known_ids)
    assert str(caught.value).startswith("matrix.json: ")
    return caught.value.problems


def test_the_labs_schema_is_valid_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps([LAB_ENTRY]))
    entry = load_manifest(path).entries["fft_spanish_cfgB_s42_main"]
    assert entry.document() == {**LAB_ENTRY, "user": name_of(os.getuid())}
    assert entry.params["seed"] == 42 and entry.gpus is None and entry.order == 0


def test_a_list_and_an_object_keyed_by_job_id_say_the_same() -> None:
    keyed = {"a": {"method": "fft", "x": 1}, "b": {"job_id": "b", "method": "lora"}}
    listed = [{"job_id": "a", "method": "fft", "x": 1}, {"job_id": "b", "method": "lora"}]
    assert parse_manifest(json.dumps(keyed).encode(), "m") == parse_manifest(json.dumps(listed).encode(), "m")


def test_reserved_words_are_read_and_kept_as_written() -> None:
    written = {
        "job_id": "a",
        "method": "fft",
        "lr": 0.1,
        "command": ["python", "{script}"],
        "gpus": 0,
        "needs": ["b"],
        "priority": -3,
        "retries": 2,
        "retry_on": ["exit 1", "out of memory"],
        "time_limit": "8h",
        "env": {"OMP_NUM_THREADS": 2},
        "outlet": "local",
        "resources": {"chip": "h100", "cpus": 4, "memory": "64G"},
    }
    data = json.dumps([written, {"job_id": "b", "method": "fft"}]).encode()
    entry = parse_manifest(data, "m")["a"]
    assert entry.document() == written
    assert entry.params == {"lr": 0.1}
    assert entry.time_limit_s == 8 * 3600 and entry.env == {"OMP_NUM_THREADS": "2"} and entry.outlet == ("local",)
    assert entry.value("time_limit") == "8h" and entry.value("lr") == 0.1 and entry.value("absent") is None


def test_all_faults_of_a_file_are_listed_at_once() -> None:
    found = faults(
        [
            {"job_id": "a", "method": "fft", "needs": ["b"], "gpus": True},
            {"job_id": "b", "method": "fft", "needs": ["a"], "time_limit": "90"},
            {"job_id": "A", "method": "x/y"},
            {"job_id": "c", "method": "fft", "needs": ["aa"]},
            {"job_id": "c", "method": "fft"},
            {"method": "fft"},
            "text",
        ]
    )
    text = "\n".join(found)
    for expected in (
        "a (entry 1): gpus = true: expected a whole number",
        'b (entry 2): time_limit = "90": expected a time such as',
        'A (entry 3): method = "x/y": expected 1 to 200 letters',
        "entry 6: job_id is missing",
        'entry 7 = "text": expected an object',
        "duplicate job_id: c (entries 4 and 5)",
        "a and A: differ only in case",
        'c: needs = "aa": no entry of this manifest (did you mean a?)',
        "a -> b -> a: a cycle of needs",
    ):
        assert expected in text
    assert len(found) == 9


@pytest.mark.parametrize("job_id", ["", ".", "..", ".a", "-a", "a/b", "a b", "a\n", "é", "a" * 201, 7, None, "a\0"])
def test_ids_that_cannot_be_a_folder_or_an_argument_are_refused(job_id: object) -> None:
    assert "job_id" in faults([{"job_id": job_id, "method": "fft"}])[0]


@pytest.mark.parametrize("job_id", ["a", "_a", "0", "a.b-c_d", "a" * 200])
def test_ids_that_can_are_accepted(job_id: str) -> None:
    assert list(parse_manifest(json.dumps([{"job_id": job_id, "method": "fft"}]).encode(), "m")) == [job_id]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("command", ""),
        ("command", "python 'a"),
        ("command", []),
        ("command", ["python", 3]),
        ("command", ["python", "a\0b"]),
        ("gpus", -1),
        ("gpus", 1.0),
        ("needs", "a"),
        ("needs", [1]),
        ("priority", "high"),
        ("priority", 2**70),
        ("retries", -1),
        ("retry_on", ["exitt"]),
        ("retry_on", []),
        ("time_limit", "soon"),
        ("time_limit", 0),
        ("env", {"A": True}),
        ("env", {"A B": "x"}),
        ("env", {"DISPATCHER_JOB_ID": "x"}),
        ("env", {"A": "x\0"}),
        ("env", []),
        ("outlet", []),
        ("outlet", 3),
        ("resources", {"chips": 3}),
        ("resources", {"memory": 64}),
        ("resources", {"cpus": 0}),
    ],
)
def test_a_reserved_word_with_a_wrong_value_names_entry_key_and_value(word: str, value: object) -> None:
    (fault,) = faults([{"job_id": "job", "method": "fft", word: value}])
    assert re.match(rf"job \(entry 1\): {word}(\.\w+)?( = |: unknown key)", fault), fault


def test_null_counts_as_not_said() -> None:
    entry = parse_manifest(b'[{"job_id": "a", "method": "m", "gpus": null, "command": null}]', "m")["a"]
    assert entry.gpus is None and entry.command is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xef\xbb\xbf[]", "byte-order mark"),
        ("[]".encode("utf-16"), "UTF-16"),
        (b'[\n"\xc3\xa9\xff"]', "line 2, column 3: the byte 0xff is not UTF-8"),
        (b'[{"a": NaN}]', "line 1, column 8: NaN is not JSON"),
        (b'[\n{"a": -Infinity}]', "line 2, column 8: Infinity is not JSON"),
        (b'[{"a": 1e999}]', "entry 1: a = 1e999: a number that is too large for 64 bits"),
        (b'[{"a": 1}, {"b": {"lr": [1, -3e563]}}]', "entry 2: b.lr.1 = -3e563: a number that is too large"),
        (b"[" + b"9" * 6000 + b"]", "too many digits"),
        (b'["\\ud800"]', "entry 1: holds half of a surrogate pair"),
        (b'[{"a": 1}, {"b": ["\\ud800"]}]', "entry 2: holds half of a surrogate pair"),
        (b'{"a": {}, "b": {"c": "\\ud800"}}', "b: holds half of a surrogate pair"),
        (b"[" * 100_000, "nested more than 64 levels deep"),
        (b"[" * 70 + b"]" * 70, "nested more than 64 levels deep"),
        (b'[\n{"a": 1,}\n]', "line 2"),
        (b'[{"a": 1}\n {"b": 2}]', "line 2, column 2"),
        (b"[] x", "line 1, column 4"),
        (b"3", "expected a list of entries"),
        (b'{"job_id": "a", "method": "b"}', "holds a single entry"),
        (b'{"a": 3}', "a = 3: expected an object"),
        (b'{"a": {"job_id": "b", "method": "m"}}', 'a: job_id = "b": expected the same as its key'),
    ],
)
def test_files_that_are_no_manifest_are_told_apart(data: bytes, expected: str) -> None:
    assert expected in "\n".join(faults(data))


@pytest.mark.parametrize(
    "data",
    [
        b'[{"job_id": "a", "method": "m", "method": "m"}]',
        b'[{"job_id" : "a", "method": "m", "method" : "m"}]',
        b'[{"job_id":"a","method":"m","x":":","method"\n:"\\":"}]',
        b'{"a": {"method": "m", "method": "n"}}',
        b'[{"job_id": "a", "method": "m", "p": {"method": 1, "method": 2}}]',
    ],
)
def test_a_key_that_stands_twice_is_a_fault(data: bytes) -> None:
    assert any('duplicate key "method"' in fault and fault.startswith("a") for fault in faults(data))


def test_a_job_that_stands_twice_in_an_object_is_a_fault() -> None:
    assert 'duplicate key "a"' in faults(b'{"a": {"method": "m"}, "a": {"method": "m"}}')[0]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
parameters = st.dictionaries(st.text(max_size=8).map(lambda key: f"p{key}"), json_values, max_size=5)


@given(st.lists(parameters, max_size=5), st.booleans())
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, many: list[Any], ascii_only: bool
) -> None:
    """Colons, quotes and spaces anywhere in keys and values are no duplicate keys."""
    documents = [{"job_id": f"j{number}", "method": "m", **params} for number, params in enumerate(many)]
    data = json.dumps(documents, ensure_ascii=ascii_only, indent=2, separators=(",", " : ")).encode(errors="replace")
    read = parse_manifest(data, "m")
    assert [entry.document() for entry in read.values()] == json.loads(data)


def test_needs_may_name_jobs_that_the_run_state_knows() -> None:
    data = [{"job_id": "a", "method": "m", "needs": ["pretrained"]}]
    assert "no such job in the run state" in faults(data)[0]
    entries = parse_manifest(json.dumps(data).encode(), "m", ["pretrained"])
    assert entries["a"].needs == ("pretrained",)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="there is no such file"):
        load_manifest(tmp_path / "none.json")
    with pytest.raises(ManifestError, match="cannot be read"):
        load_manifest(tmp_path)


def test_write_manifest_writes_one_entry_per_line_in_the_given_key_order(tmp_path: Path) -> None:
    path = tmp_path / "matrix" / "m.json"
    entries = [{"method": "fft", "job_id": "b", "z": 1, "a": "ü"}, {"job_id": "a", "method": "fft"}]
    manifest = write_manifest(path, entries)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[1] == '{"method": "fft", "job_id": "b", "z": 1, "a": "ü"},'
    assert len(lines) == 4 and list(manifest.entries) == ["b", "a"]
    assert os.listdir(path.parent) == ["m.json"]


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, Path("x"), "\ud800"])
def test_write_manifest_refuses_what_is_no_json_and_keeps_the_old_file(tmp_path: Path, value: object) -> None:
    path = tmp_path / "m.json"
    path.write_text("old")
    with pytest.raises(ManifestError):
        write_manifest(path, [{"job_id": "a", "method": "m", "x": value}])
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["m.json"]


def test_write_manifest_follows_a_link_and_says_when_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("[]")
    (tmp_path / "link.json").symlink_to("real.json")
    write_manifest(tmp_path / "link.json", [{"job_id": "a", "method": "m"}])
    assert "a" in load_manifest(tmp_path / "real.json").entries and (tmp_path / "link.json").is_symlink()
    with pytest.raises(StorageError, match="cannot be written"):
        write_manifest(tmp_path / "real.json" / "m.json", [])


def test_reading_manifests_loads_no_heavy_library() -> None:
    code = (
        "import sys, dispatcher.matrix.manifest; print(sorted({'yaml', 'jinja2', 'click', 'jax'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_fault_of_very_many_entries_is_one_short_line(tmp_path):
    many = 100_000
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps([{"job_id": "a", "method": "m"}] * many))
    with pytest.raises(ManifestError) as raised:
        load_manifest(path, None)
    (fault,) = raised.value.problems
    assert fault.startswith("duplicate job_id: a (entries 1, 2, 3, 4, 5, ... 99,993 more ..., 99999 and 100000); ")
    ring = [{"job_id": f"j{one}", "method": "m", "needs": [f"j{(one + 1) % many}"]} for one in range(many)]
    path.write_text(json.dumps(ring))
    with pytest.raises(ManifestError) as raised:
        load_manifest(path, None)
    (fault,) = raised.value.problems
    assert fault.startswith("j0 -> j1 -> j2 -> j3 -> j4 -> ... 99,994 more ... -> j99999 -> j0: a cycle of needs")
    alike = ["".join(letters) for letters in itertools.product(*zip("abcdefghijkl", "ABCDEFGHIJKL", strict=True))]
    path.write_text(json.dumps([{"job_id": one, "method": "m"} for one in alike]))
    with pytest.raises(ManifestError) as raised:
        load_manifest(path, None)
    (fault,) = raised.value.problems
    assert len(fault) < 400 and "4,089 more" in fault
