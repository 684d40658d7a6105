"""What a script leaves in files of its own: which files they may be, and what of them is the result."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from syncs import noted_syncs

from dispatcher.base import files, outputs
from dispatcher.base.outputs import MetricsTable, Outputs, ResultFile, Table, collect_result, read_outputs
from dispatcher.base.schema.reading import convert
from dispatcher.base.values import BadValueError

NO_FILE = "there is no such file in {0}: the script writes it there if its command has {{attempt_dir}}"


def collect(directory: Path) -> str:
    return collect_result(directory, read_outputs(directory))


def collected(directory: Path, source: object, text: str | bytes | None) -> tuple[dict[str, Any] | None, str]:
    """The result of an attempt whose script has left `text`, and what it lacks."""
    parsed = convert(ResultFile, source)
    (directory / "script-outputs.json").write_bytes(outputs.encode(Outputs(parsed)))
    if text is not None:
        path = directory / parsed.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    lacking = collect(directory)
    result = directory / "result.json"
    return (json.loads(result.read_bytes()) if result.exists() else None), lacking


CSV = "epoch, loss,acc\n1,0.5,0.25\n2,0.4,\n"


@pytest.mark.parametrize(
    ("source", "text", "result"),
    [
        ("a.json", '{"loss": 0.5, "eval": {"acc": 1}, "bad": NaN}', {"loss": 0.5, "eval": {"acc": 1}, "bad": None}),
        ("{attempt_dir}/out/a.json", '{"loss": 1}', {"loss": 1}),
        ({"path": "a.json", "values": ["e.acc", "a.b"]}, '{"e": {"acc": 1}, "a.b": 2}', {"e.acc": 1, "a.b": 2}),
        ("a.jsonl", '{"loss": 2, "lr": 1}\n\n{"loss": 1}', {"loss": 1, "lr": 1}),
        ("a.csv", CSV, {"epoch": 2, "loss": 0.4, "acc": 0.25}),
        ("a.csv", CSV.replace("\n", "\r\n").rstrip(), {"epoch": 2, "loss": 0.4, "acc": 0.25}),
        ({"path": "a.csv", "values": "acc"}, CSV, {"acc": 0.25}),
        ("a.csv", b'\xef\xbb\xbfname,n,x\n"a, ""b""",1e3,-inf\nname,n,x\n', {"name": 'a, "b"', "n": 1000.0, "x": None}),
        ("a.csv", "id,day\n1_000,2026-11-27\n", {"id": "1_000", "day": "2026-11-27"}),
        ("a.json", '{"name": "\\ud800"}', {"name": "\ud800"}),
    ],
)  # fmt: skip
def test_the_result(tmp_path: Path, source: object, text: str, result: dict[str, Any]) -> None:
    assert collected(tmp_path, source, text) == (result, "")


@pytest.mark.parametrize(
    ("source", "text", "result", "lacking"),
    [
        ("out/a.json", None, None, f"out/a.json: {NO_FILE}"),
        ("a.json", '{"loss": ', None, "a.json: not a JSON object"),
        ("a.json", "[1]", None, "a.json: not a JSON object"),
        ("a.json", "{}", None, "a.json: it has no values"),
        ("a.json", '{"a":' * 900 + "1" + "}" * 900, None, "a.json: maximum recursion depth exceeded"),
        ("a.jsonl", '{"loss": 1}\n{"lo', None, "a.jsonl: line 2 is not a JSON object"),
        ("a.csv", "loss,acc\n1,2\n3\n", None, "a.csv: row 3 does not have as many cells as the first one, which has 2"),
        ("a.csv", "loss,acc\n", None, "a.csv: it has no values"),
        ("a.csv", "", None, "a.csv: it has no values"),
        ({"path": "a.csv", "values": ["loss", "val"]}, "loss,vall\n1,2\n", {"loss": 1},
         "a.csv: it has no val (did you mean 'vall'?)"),
    ],
)  # fmt: skip
def test_what_is_lacking_is_named(
    tmp_path: Path, source: object, text: str | None, result: dict[str, Any] | None, lacking: str
) -> None:
    assert collected(tmp_path, source, text) == (result, lacking.format(tmp_path))


def test_what_the_job_has_reported_itself_stays(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"loss": 1}')
    assert collected(tmp_path, "a.json", '{"loss": 2}') == ({"loss": 1}, "")
    assert collected(tmp_path, "a.json", None) == ({"loss": 1}, "")


def test_another_attempts_file_is_not_taken_by_a_link(tmp_path: Path) -> None:
    own = tmp_path / "2"
    for directory in (tmp_path / "1", own):
        directory.mkdir()
    (tmp_path / "1" / "a.json").write_text('{"loss": 1}')
    (own / "a.json").symlink_to("../1/a.json")
    why = "a.json: a link out of the attempt's directory, which may be to another attempt or job"
    assert collected(own, "a.json", None) == (None, why)


def test_an_error_of_the_storage_is_no_proof_of_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected(tmp_path, "a.json", None)
    read = files.read_at_once

    def fails(path: Path) -> bytes:
        if path.name == "a.json":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(path)

    monkeypatch.setattr(files, "read_at_once", fails)
    with pytest.raises(OSError, match="Stale"):
        collect(tmp_path)


def test_the_result_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = noted_syncs(monkeypatch)
    collected(tmp_path, "a.json", '{"loss": 2}')
    assert "result.json" in syncs[-1][1]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("/data/a.json", "is not in the attempt's directory, so it may be of another attempt or job"),
        ("runs/../../1/a.json", "is not in the attempt's directory"),
        ("x" * 256 + ".json", "has a name of more than 255 bytes, which filesystems do not take"),
        ("exit.json", "exit.json in the attempt's directory is the dispatcher's: choose another name"),
        ("output.log/a.json", "output.log in the attempt's directory is the dispatcher's"),
        ("a.txt", "expected a file whose name ends in .json, .jsonl, .csv"),
        ({"values": ["a"]}, "path: is missing"),
        ({"path": "a.json", "value": "a"}, "value: unknown key (did you mean 'values'?)"),
        ({"path": "a.json", "values": {"a": 1}}, 'values = {"a": 1}: expected names such as [val_loss, acc]'),
        ({"path": "result.json", "values": ["a"]}, "all of result.json is the result"),
    ],
)
def test_paths_that_cannot_be_an_attempts_own(value: object, fault: str) -> None:
    with pytest.raises(BadValueError) as raised:
        convert(ResultFile, value)
    assert fault in str(raised.value)


def test_what_metrics_may_be() -> None:
    assert convert(MetricsTable, "metrics.jsonl") == MetricsTable("metrics.jsonl")
    assert convert(MetricsTable, {"path": "{attempt_dir}/./a.csv", "step": "epoch"}) == MetricsTable("a.csv", "epoch")
    for value, fault in (("a.json", "expected a file"), ({"path": "a.csv", "step": 3}, "step = 3: expected the name")):
        with pytest.raises(BadValueError, match=fault):
            convert(MetricsTable, value)


def test_rows_that_arrive_in_parts() -> None:
    table = Table()
    assert table.rows(b"") == []
    assert table.rows(b"a,b\n1,x\n") == [{"a": 1, "b": "x"}]
    assert table.rows(b"2,\n3\n") == [{"a": 2}, None]


def test_what_is_lacking_is_said_again_by_a_second_try(tmp_path: Path) -> None:
    (tmp_path / "script-outputs.json").write_bytes(outputs.encode(Outputs(ResultFile("a.json", ("loss", "acc")))))
    (tmp_path / "a.json").write_text('{"loss": 1}')
    assert [collect(tmp_path) for _ in range(2)] == ["a.json: it has no acc (known: loss)"] * 2
    (tmp_path / "result.json").write_text('{"loss": 3}\n')
    assert collect(tmp_path) == "", "what the job has reported stays"


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_list_of_files_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "script-outputs.json").write_text(text)
    assert collect(tmp_path) == "script-outputs.json, which says where it is, is damaged"


def test_metrics_behind_a_link_out_of_the_attempt_are_not_its_own(tmp_path: Path) -> None:
    attempt = tmp_path / "1"
    attempt.mkdir()
    (tmp_path / "m.csv").write_text("loss\n5\n")
    (attempt / "m.csv").symlink_to("../m.csv")
    assert not outputs.is_own(attempt, "m.csv")
    (attempt / "n.csv").symlink_to("other.csv")
    assert outputs.is_own(attempt, "n.csv")
