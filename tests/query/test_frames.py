"""Results and metrics as frames of pandas and polars, as a notebook uses them."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys

import pandas
import polars
import pytest

from dispatcher.api import Workspace
from dispatcher.errors import UsageError
from dispatcher.query.results import frames
from dispatcher.query.results.columns import ColumnType, kind_of
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State

BEGUN, ENDED = "2026-06-17T22:48:00.250Z", "2026-06-17T23:48:00.000Z"


@pytest.fixture
def empty(tmp_path):
    return Workspace(tmp_path, by="test")


def write(workspace, entries):
    workspace.layout.matrix_dir.mkdir(exist_ok=True)
    workspace.layout.default_matrix.write_text(json.dumps(entries))


@pytest.fixture
def lab(empty):
    """Four jobs: with all values, with a NaN, without a value, and one that has failed."""
    workspace = empty
    entries = [
        {"job_id": "a", "method": "fft", "seed": 1, "lr": 0.1, "data": {"hours": 10}, "final": True},
        {"job_id": "b", "method": "fft", "seed": 2, "lr": 1},
        {"job_id": "c", "method": "lora", "lr": 0.1, "seed": "all"},
        {"job_id": "d", "method": "lora", "lr": 0.5},
    ]
    write(workspace, entries)
    put(workspace, entries[0], {"loss": 1.5, "steps": 2**53 + 1})
    put(workspace, entries[1], {"loss": None, "steps": 7})
    put(workspace, entries[2], {"accuracy": 1})
    put(workspace, entries[3], {"loss": 9.0}, state=State.FAILED)
    return workspace


def put(workspace, entry, result, number=1, state=State.DONE):
    with workspace.transaction() as tx:
        event = Event.QUEUED if number == 1 else Event.REQUEUED
        tx.change(entry["job_id"], event, Change(state=State.QUEUED))
        tx.change(entry["job_id"], Event.CLAIMED, Change(state=State.RUNNING, attempt=number, started_at=BEGUN))
        tx.change(entry["job_id"], Event(state.value), Change(state=state, finished_at=ENDED))
    paths = workspace.layout.attempt(entry["job_id"], number)
    paths.directory.mkdir(parents=True)
    paths.entry.write_text(json.dumps(entry))
    paths.exit.write_text(json.dumps({"exit_code": int(state is not State.DONE), "ended_at": ENDED}) + "\n")
    if result is not None:
        paths.result.write_text(json.dumps(result))


def test_a_pandas_frame_keeps_kinds_and_tells_nan_from_missing(lab):
    frame = lab.results().to_pandas()
    assert list(frame.columns) == [
        "job_id", "state", "method", "seed", "lr", "data", "final", "attempt", "started_at", "finished_at", "loss",
        "steps", "accuracy",
    ]  # fmt: skip
    types = {name: str(kind) for name, kind in frame.dtypes.items()}
    assert types["attempt"] == types["steps"] == types["accuracy"] == "Int64"
    assert (types["lr"], types["loss"], types["final"], types["seed"]) == ("Float64", "Float64", "boolean", "string")
    assert types["started_at"].startswith("datetime64") and "UTC" in types["started_at"]
    assert frame["steps"][0] == 2**53 + 1
    assert list(frame["seed"]) == ["1", "2", "all"]
    assert frame["data"][0] == '{"hours": 10}'
    loss = frame["loss"]
    assert (loss[0], math.isnan(loss[1]), loss[2] is pandas.NA) == (1.5, True, True)
    assert frame["final"][1] is pandas.NA
    assert (frame["finished_at"] - frame["started_at"]).dt.total_seconds().tolist() == [3599.75] * 3
    assert frame.groupby("method")["accuracy"].max()["lora"] == 1


def test_a_polars_frame_keeps_kinds_and_tells_nan_from_missing(lab):
    frame = lab.results().to_polars()
    assert frame.schema["steps"] == polars.Int64
    assert frame.schema["loss"] == polars.Float64
    assert frame.schema["started_at"] == polars.Datetime("us", "UTC")
    assert frame["loss"].is_null().to_list() == [False, False, True]
    assert frame["loss"].is_nan().to_list() == [False, True, None]
    assert frame.filter(polars.col("method") == "lora")["job_id"].to_list() == ["c"]


def test_every_job_has_a_row_where_that_is_asked_for(lab):
    results = lab.results(every_job=True)
    assert [(row["job_id"], row["state"], row.get("loss")) for row in results] == [
        ("a", "done", 1.5), ("b", "done", None), ("c", "done", None), ("d", "failed", None),
    ]  # fmt: skip
    assert results.failed == ["d"]
    assert results.to_pandas()["loss"].isna().tolist() == [False, False, True, True]
    assert (results.parameters, results.values) == (["seed", "lr", "data", "final"], ["loss", "steps", "accuracy"])


def test_the_parameters_are_those_of_the_attempt(lab):
    write(lab, [{"job_id": "a", "method": "fft", "seed": 1, "lr": 99}])
    assert lab.results(where={"job_id": "a"}).to_pandas()["lr"][0] == 0.1


def test_a_job_that_runs_again_has_the_times_of_its_success(lab):
    with lab.transaction() as tx:
        tx.change("a", Event.REQUEUED, Change(state=State.QUEUED, started_at=None, finished_at=None))
        later = Change(state=State.RUNNING, attempt=2, started_at="2026-07-01T00:00:00.000Z")
        tx.change("a", Event.CLAIMED, later)
    row = lab.results()[0]
    assert (row["state"], row["attempt"]) == ("running", 1)
    assert (row["started_at"], row["finished_at"], row["loss"]) == (BEGUN, ENDED, 1.5)


def test_names_of_results_do_not_hide_parameters_nor_the_job(lab):
    entry = {"job_id": "a", "method": "fft", "lr": 0.1, "attempt": "first", "seed": 3}
    put(lab, entry, {"lr": 0.2, "job_id": "other", "seed": 3}, number=2)
    row = next(row for row in lab.results() if row["job_id"] == "a")
    assert (row["job_id"], row["attempt"]) == ("a", 2)
    assert (row["lr"], row["parameter.lr"], row["seed"]) == (0.2, 0.1, 3)
    assert (row["result.job_id"], row["parameter.attempt"]) == ("other", "first")


def test_a_result_that_python_wrote_with_a_nan_is_read(lab):
    path = lab.layout.attempt("a", 1).result
    path.write_text(json.dumps({"loss": math.nan, "top": math.inf}))
    row = lab.results()[0]
    assert math.isnan(row["loss"]) and row["top"] == math.inf
    path.write_text('{"loss": ')
    results = lab.results()
    assert (results.unreadable, "loss" in results[0]) == ({"a": "not a JSON object"}, False)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (os.mkfifo, "no plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "no plain file"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (lambda path: (path.touch(), os.truncate(path, 20 << 30)), "20 GiB long, more than the 16 MiB that are read"),
    ],
)
def test_a_result_that_has_no_end_or_is_too_long_is_named_and_not_read(lab, spoil, why):
    path = lab.layout.attempt("a", 1).result
    path.unlink()
    spoil(path)
    results = lab.results()
    assert (results.unreadable, "loss" in results[0]) == ({"a": why}, False)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, None], ColumnType.BOOL),
        ([1, None, 2], ColumnType.INT),
        ([1, 2.5], ColumnType.FLOAT),
        ([1, True], ColumnType.TEXT),
        ([2**63], ColumnType.TEXT),
        ([None], ColumnType.FLOAT),
        ([[1], 2], ColumnType.TEXT),
        (["1", 2], ColumnType.TEXT),
    ],
)
def test_the_kind_of_a_column_suits_all_its_values(values, kind):
    assert kind_of(values) is kind


def test_without_results_a_frame_has_its_columns(empty):
    write(empty, [])
    for frame in (empty.results().to_pandas(), empty.results().to_polars()):
        assert list(frame.columns) == ["job_id", "state", "method", "attempt", "started_at", "finished_at"]
        assert len(frame) == 0
    assert list(empty.metrics().to_pandas().columns) == list(empty.metrics().to_polars().columns)


def test_what_to_install_is_one_line(lab, monkeypatch):
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UsageError) as raised:
            getattr(lab.results(), f"to_{name}")()
        assert str(raised.value) == (
            f"a {name} frame needs {name}, which is not installed: pip install 'dispatcher[{name}]'"
        )


def test_a_broken_library_is_not_one_that_is_missing(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("no numpy", name="numpy")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="no numpy"):
        frames.library("pandas", "a frame")


def test_frames_alone_import_their_libraries(lab):
    program = (
        "import sys; from dispatcher import Workspace\n"
        f"workspace = Workspace({str(lab.root)!r})\n"
        "results, metrics = workspace.results(), workspace.metrics()\n"
        "assert not {'pandas', 'polars', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "results.to_polars(); metrics.to_polars()\n"
        "assert not {'pandas', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
