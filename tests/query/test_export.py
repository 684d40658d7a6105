"""Exports, read back by TensorBoard, and from the files that `wandb sync` uploads."""

from __future__ import annotations

import json
import math
import os
import sys

import pytest
from wandb_files import history, records

from dispatcher.api import Workspace
from dispatcher.cli.main import main
from dispatcher.errors import StateError
from dispatcher.query.export.tensorboard import EVENTS_FILE, MARK_FILE, TensorBoardExport
from dispatcher.query.export.wandb import run_id
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State

BEGUN_S = 1_781_736_480.0
ENTRIES = [
    {"job_id": "a", "method": "fft", "lr": 0.1, "final": True, "data": {"hours": 10}},
    {"job_id": "b", "method": "lora", "lr": 1},
    {"job_id": "queued", "method": "lora", "lr": 2},
]
LINES = [{"step": 1, "wall_s": 0.5, "loss": 3.0}, {"step": 20, "wall_s": 9.0, "loss": "NaN", "acc": 0.5}]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A job that is done, and one that has failed; its first attempt was interrupted."""
    workspace = Workspace(tmp_path / "lab", by="test")
    workspace.layout.matrix_dir.mkdir(parents=True)
    workspace.layout.default_matrix.write_text(json.dumps(ENTRIES))
    with workspace.transaction() as tx:
        for job, end, attempts in (("a", State.DONE, 1), ("b", State.FAILED, 2)):
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
            for number in range(1, attempts + 1):
                begun = Change(state=State.RUNNING, attempt=number, started_at=f"2026-06-17T2{number + 1}:48:00.000Z")
                tx.change(job, Event.CLAIMED, begun)
                if number < attempts:
                    again = Change(state=State.QUEUED, finished_at="2026-06-17T22:50:00.000Z", reason="preempted")
                    tx.change(job, Event.AUTO_REQUEUED, again)
            tx.change(job, Event(end.value), Change(state=end, finished_at="2026-06-17T23:58:00.000Z"))
    for entry, number in ((ENTRIES[0], 1), (ENTRIES[1], 1), (ENTRIES[1], 2)):
        paths = workspace.layout.attempt(entry["job_id"], number)
        paths.directory.mkdir(parents=True)
        paths.entry.write_text(json.dumps(entry))
        lines = LINES if entry["job_id"] == "a" else LINES[:number]
        paths.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    workspace.layout.attempt("a", 1).result.write_text('{"loss": 0.25, "bleu": null, "note": "good"}')
    monkeypatch.chdir(tmp_path)
    return workspace


def export(lab, capsys, *words):
    capsys.readouterr()
    code = main(["--root", str(lab.root), "export", *words])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def read(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    found.Reload()
    return found


def test_tensorboard_reads_metrics_results_and_parameters(lab, tmp_path, capsys):
    from tensorboard.plugins.hparams import metadata

    assert export(lab, capsys, "tensorboard", "tb") == f"{tmp_path}/tb: 2 runs written, 0 unchanged\n"
    assert sorted(path.name for path in (tmp_path / "tb").iterdir()) == ["a", "b"]
    found = read(tmp_path / "tb" / "a")
    assert set(found.Tags()["scalars"]) == {"loss", "acc", "result/loss", "result/bleu"}
    loss = found.Scalars("loss")
    assert [(one.wall_time, one.step) for one in loss] == [(BEGUN_S + 0.5, 1), (BEGUN_S + 9, 20)]
    assert loss[0].value == 3.0 and math.isnan(loss[1].value)
    (result,) = found.Scalars("result/loss")
    assert (result.step, result.value, result.wall_time) == (20, 0.25, BEGUN_S + 4200)
    assert math.isnan(found.Scalars("result/bleu")[0].value)
    contents = found.summary_metadata
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG].plugin_data.content)
    given = {key: one.number_value or one.string_value or one.bool_value for key, one in start.hparams.items()}
    assert given == {
        "method": "fft", "lr": 0.1, "final": True, "data": '{"hours": 10}',
    }  # fmt: skip
    assert metadata.SESSION_END_INFO_TAG in contents
    # Of a job that was interrupted, steps count their time from the begin of the first attempt.
    assert [one.wall_time for one in read(tmp_path / "tb" / "b").Scalars("loss")] == [BEGUN_S + 0.5, BEGUN_S + 9]


def test_a_job_whose_metrics_have_no_end_does_not_stop_the_export_of_all(lab, tmp_path, capsys):
    path = lab.layout.attempt("a", 1).metrics
    os.truncate(path, 20 << 30)
    assert main(["--root", str(lab.root), "export", "tensorboard", "tb"]) == 0
    printed = capsys.readouterr()
    assert "2 runs written" in printed.out
    assert f"{path}: 20 GiB long: only the first 256 MiB are read" in printed.err
    assert [one.step for one in read(tmp_path / "tb" / "a").Scalars("loss")] == [1, 20]


def test_another_export_writes_what_has_changed(lab, tmp_path, capsys):
    export(lab, capsys, "tensorboard", "tb")
    before = {path: path.read_bytes() for path in (tmp_path / "tb").rglob("*") if path.is_file()}
    assert "0 runs written, 2 unchanged" in export(lab, capsys, "tensorboard", "tb")
    assert {path: path.read_bytes() for path in before} == before
    with open(lab.layout.attempt("a", 1).metrics, "a") as file:
        file.write('{"step": 30, "loss": 1}\n')
    assert "1 run written, 1 unchanged" in export(lab, capsys, "tensorboard", "tb")
    assert [one.step for one in read(tmp_path / "tb" / "a").Scalars("loss")] == [1, 20, 30]
    assert len(list((tmp_path / "tb" / "a").glob("*tfevents*"))) == 1
    assert "0 runs written, 1 unchanged" in export(lab, capsys, "tensorboard", "tb", "--where", "method=fft")


def test_an_interrupted_export_is_run_again(lab, tmp_path, capsys, monkeypatch):
    done = []
    whole = TensorBoardExport.export

    def interrupted(self, run):
        if done:
            raise KeyboardInterrupt
        done.append(run)
        return whole(self, run)

    with monkeypatch.context() as patch:
        patch.setattr(TensorBoardExport, "export", interrupted)
        assert main(["--root", str(lab.root), "export", "tensorboard", "tb"]) == 130
    assert "1 run written, 0 unchanged, 1 not reached: run it again" in capsys.readouterr().out
    # Killed between the file and its mark.
    (tmp_path / "tb" / "a" / MARK_FILE).unlink()
    assert "2 runs written, 0 unchanged" in export(lab, capsys, "tensorboard", "tb")
    (tmp_path / "tb" / "a" / EVENTS_FILE).unlink()
    assert "1 run written, 1 unchanged" in export(lab, capsys, "tensorboard", "tb")


def test_the_export_of_another_workspace_is_not_overwritten(lab, tmp_path, capsys):
    export(lab, capsys, "tensorboard", "tb")
    lab.layout.id_file.write_text("0123456789ab\n")
    assert main(["--root", str(lab.root), "export", "tensorboard", "tb"]) == 1
    assert "from another workspace" in capsys.readouterr().err
    (tmp_path / "tb" / "a" / MARK_FILE).write_text("{half")
    with pytest.raises(StateError, match="not a file of `dispatcher export`"):
        from dispatcher.query.export.marks import read_mark

        read_mark(tmp_path / "tb" / "a" / MARK_FILE, "0123456789ab", "a")


def test_what_to_install_is_one_line(lab, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["--root", str(lab.root), "export", "tensorboard", "tb"]) == 2
    assert capsys.readouterr().err == (
        "dispatcher: an export to TensorBoard needs tensorboard, which is not installed: "
        "pip install 'dispatcher[tensorboard]'\n"
    )
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["--root", str(lab.root), "export", "wandb", "--project", "p"]) == 2
    assert "pip install 'dispatcher[wandb]'" in capsys.readouterr().err


@pytest.mark.slow
def test_wandb_has_a_run_per_job(lab, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    words = ("wandb", "--project", "p", "--dir", "wb", "--where", "job_id=a")
    assert export(lab, capsys, *words) == "project p: 1 run written, 0 unchanged\n"
    identity = run_id(lab.layout.id_file.read_text().strip(), "a")
    (path,) = (tmp_path / "wb" / "wandb").glob(f"offline-run-*/run-{identity}.wandb")
    first, second = history(path)
    assert (first["_step"], first["loss"], first["wall_s"], first["_timestamp"]) == (1, 3.0, 0.5, BEGUN_S + 0.5)
    assert (second["_step"], second["acc"]) == (20, 0.5) and math.isnan(float(second["loss"]))
    (run,) = [record.run for record in records(path) if record.WhichOneof("record_type") == "run"]
    config = {one.key: json.loads(one.value_json) for one in run.config.update}
    assert (run.project, run.display_name, config["lr"], config["data"]) == ("p", "a", 0.1, {"hours": 10})
    summary = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "summary":
            summary |= {one.key or one.nested_key[0]: one.value_json for one in record.summary.update}
    assert json.loads(summary["result/loss"]) == 0.25
    assert export(lab, capsys, *words) == "project p: 0 runs written, 1 unchanged\n"
    assert [path] == list((tmp_path / "wb" / "wandb").glob("offline-run-*/*.wandb"))
    with open(lab.layout.attempt("a", 1).metrics, "a") as file:
        file.write('{"step": 30, "loss": 1, "speed/step_s": 2}\n')
    assert export(lab, capsys, *words) == "project p: 1 run written, 0 unchanged\n"
    (path,) = (tmp_path / "wb" / "wandb").glob("offline-run-*/*.wandb")
    assert [row["_step"] for row in history(path)] == [1, 20, 30] and identity in path.name
    # Resumed: the same values at another speed.
    with open(lab.layout.attempt("a", 1).metrics, "a") as file:
        file.write('{"step": 30, "loss": 1, "speed/step_s": 3}\n{"step": 40, "loss": 0}\n')
    assert "1 run written" in export(lab, capsys, *words)
    (path,) = (tmp_path / "wb" / "wandb").glob("offline-run-*/*.wandb")
    assert [row["_step"] for row in history(path)] == [1, 20, 30, 40] and identity in path.name
    # Rewound: W&B would not take step 20 again, so this is another run.
    with open(lab.layout.attempt("a", 1).metrics, "a") as file:
        file.write('{"step": 20, "loss": 7, "speed/step_s": 3}\n')
    assert "1 run written" in export(lab, capsys, *words)
    (path,) = (tmp_path / "wb" / "wandb").glob("offline-run-*/*.wandb")
    assert [(row["_step"], row["loss"]) for row in history(path)] == [(1, 3.0), (20, 7.0)] and identity not in path.name
