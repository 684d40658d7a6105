"""What a dispatcher says about the status file while people save it, and which lines it takes for jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fleet import COMMAND, Fleet, fleet_at, shell, wait_until

from dispatcher.config import load_config
from dispatcher.pod.participant import Pass
from dispatcher.pod.participants.status_problem import StatusProblem
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

# A busy machine may take its time between the two halves of a save.
PATIENT = "import dispatcher.pod.participants.status_problem as c; c._SAVE_S = 600.0; "


def test_a_save_that_begins_with_an_empty_file_is_not_reported(tmp_path: Path) -> None:
    """The dispatcher works on while the file is empty."""
    with fleet_at(tmp_path) as fleet:
        fleet.command = [*COMMAND[:-1], PATIENT + COMMAND[-1]]
        fleet.write_manifest([shell("a", "true"), shell("b", "true")])
        fleet.run_all()
        pod = fleet.start().ready()
        lines = fleet.status()
        for number in range(1, 7):
            lines["a"]["priority"] = number
            with open(fleet.layout.status_file, "w") as file:
                with Store(fleet.layout, by="test").transaction() as tx:
                    tx.change("b", Event.REQUEUED, Change(state=State.QUEUED))
                fleet.wait_for("b", "done", attempt=number + 1)
                json.dump(lines, file)
            wait_until(lambda number=number: fleet.record("a").priority == number, f"priority {number}")
        pod.stop()
        assert "warning" not in pod.said


def test_a_broken_file_is_complained_about_once_and_again_when_it_is_broken_again(tmp_path: Path) -> None:
    with fleet_at(tmp_path) as fleet:
        fleet.write_manifest([shell("a", "true"), shell("b", "true")])
        fleet.run_all()
        pod = fleet.start().ready()
        whole = fleet.layout.status_file.read_text()
        broken = whole.replace('"b": {', '"b" {').replace('"a": {"state": "done"', '"a": {"state": "queued"')
        for times in (1, 2):
            fleet.layout.status_file.write_text(broken)
            wait_until(lambda times=times: pod.said.count("line 3: ") == times, f"report {times}")
            # The other line counted, and its job ran again, once.
            fleet.wait_for("a", "done", attempt=2)
            assert fleet.layout.status_file.read_text() == broken
            assert "line 3" in fleet.try_("status").stderr
            fleet.layout.status_file.write_text(whole)
            wait_until(lambda: fleet.status()["a"]["attempt"] == 2, "the projection")
        pod.stop()
        assert fleet.record("b").attempt == 1


def test_a_broken_file_is_reported_by_a_dispatcher_that_ends_at_once(tmp_path: Path) -> None:
    with fleet_at(tmp_path) as fleet:
        fleet.write_manifest([shell("a", "true")])
        fleet.run_all()
        fleet.layout.status_file.write_text('{"a": ')
        assert "line 1, column 7" in fleet.run_all().said


def test_a_renamed_job_is_refused_by_a_dispatcher(tmp_path: Path) -> None:
    with fleet_at(tmp_path) as fleet:
        fleet.write_manifest([shell("fft_spanish_s42", "true"), shell("fft_hindi_s42", "true")])
        fleet.run_all()
        # Where the pod replaces the file at that moment, the answer may come a poll interval later.
        pod = fleet.start(poll="0.5").ready()
        file = fleet.layout.status_file
        text = file.read_text()
        file.write_text(text.replace("fft_spanish_s42", "fft_spansih_s42"))
        wait_until(lambda: fleet.status().keys() == {"fft_spanish_s42", "fft_hindi_s42"}, "the old name is back")
        # A pod that replaces the file in the middle of the save reads the rest of the save a moment later.
        wait_until(lambda: "note: hand edit of" in fleet.try_("status").stderr, "the refusal")
        said = fleet.try_("status").stderr
        assert said.count("note: hand edit of") == 1
        assert "unknown job 'fft_spansih_s42': the line was that of fft_spanish_s42" in said
        # In the manifest it is a job, and the line of one that has just been added there counts.
        fleet.layout.status_file.write_text(text.replace("{\n", '{\n"new": {"state": "held"},\n', 1))
        wait_until(lambda: "unknown job: no manifest has it" in fleet.try_("status").stderr, "the refusal")
        wait_until(lambda: "new" not in fleet.status(), "the line is gone")
        fleet.write_manifest([shell("new", "true")], "more.json")
        text = fleet.layout.status_file.read_text()
        fleet.layout.status_file.write_text(text.replace("{\n", '{\n"new": {"state": "held"},\n', 1))
        fleet.wait_for("new", "held")
        pod.stop()
        assert set(fleet.records()) == {"fft_spanish_s42", "fft_hindi_s42", "new"}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "a'; echo foo $(x)")


def test_the_jobs_of_all_manifests_are_known(fleet: Fleet) -> None:
    fleet.write_config("matrix: lists/main.json\n")
    (fleet.root / "lists").mkdir()
    config = load_config(fleet.layout)
    started = fleet.root / "started.json"
    known = ManifestJobs(config, started)
    assert not known.ids()
    config.matrix.write_text(json.dumps([{"job_id": "a", "method": "m", "needs": ["z"]}]))
    started.write_text(json.dumps({"b": {"method": "m"}}))
    fleet.write_manifest([{"job_id": "c"}], "c.json")
    fleet.write_manifest([{"job_id": "d", "x": "e"}], "d.json")
    assert known.ids() == set("abcd")
    # A manifest that was replaced counts at once; one that is broken brings nothing.
    fleet.write_manifest([{"job_id": "e"}], "d.json")
    (fleet.layout.matrix_dir / "c.json").write_text('[{"job_id": "c"')
    os.utime(fleet.layout.matrix_dir / "c.json", (1, 1))
    assert known.ids() == set("abe")


def test_only_a_lasting_problem_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now_s = [100.0]
    monkeypatch.setattr("dispatcher.pod.participants.status_problem.time.monotonic", lambda: now_s[0])
    store = Store(Layout(tmp_path), by="pod")
    said: list[str] = []
    problem = StatusProblem(store, said.append)
    # Saved again and again, and each time seen before it is whole.
    for number in range(50):
        store.problem, store._edits.examined = "line 1: the file is empty", (1, 0, number)
        assert problem.due_in_s()
        problem.after(Pass(claiming=True))
        now_s[0] += 0.5
    assert said == []
    now_s[0] += problem.due_in_s() or 0.0
    problem.after(Pass(claiming=True))
    problem.after(Pass(claiming=True))
    assert said == ["warning: line 1: the file is empty"]
    assert problem.due_in_s() is None
    store.problem = None
    problem.after(Pass(claiming=True))
    assert problem.reported == ""


def test_a_save_into_a_file_that_a_command_has_replaced_and_ended(tmp_path: Path) -> None:
    """Without a pod it is shown; a pod applies it, also one that runs already."""
    with fleet_at(tmp_path) as fleet:
        fleet.write_manifest([shell("a", "true"), shell("b", "true")])
        fleet.run_all()
        for is_running in (False, True):
            pod = fleet.start(poll="300").ready() if is_running else None
            with open(fleet.layout.status_file, "r+") as file:
                text = file.read()
                fleet.run("requeue", "b")
                file.seek(0)
                file.write(text.replace('"a": {"state": "done"', '"a": {"state": "queued"'))
                file.truncate()
            if pod is None:
                assert "1 hand edit not applied yet" in fleet.try_("status").stderr
                pod = fleet.start().ready()
            fleet.wait_for("a", "done", attempt=2 + is_running)
            pod.stop()
        assert [name for name in os.listdir(fleet.layout.run_state) if name.startswith(".")] == [".gitignore"]
