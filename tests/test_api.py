"""The public Workspace, as a user's script would use it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import dispatcher
from dispatcher import DispatcherError, Workspace
from dispatcher.errors import ManifestError, StateError, UsageError
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State

ENTRIES = [
    {"job_id": "base", "method": "pretrain"},
    {"job_id": "fft_1", "method": "fft", "seed": 1, "needs": ["base"], "priority": 5},
    {"job_id": "fft_2", "method": "fft", "seed": 2},
]


@pytest.fixture
def workspace(tmp_path):
    root = tmp_path / "a'; echo foo"
    root.mkdir()
    made = Workspace(root, by="script")
    made.add(ENTRIES)
    made.layout.templates_dir.mkdir()
    for method in {entry["method"] for entry in ENTRIES}:
        made.layout.training_template(method).write_text("PARAMS = {'seed': 0}\n")
    return made


def test_public_names():
    assert dispatcher.__all__ == ["DispatcherError", "Workspace"]
    assert set(dispatcher.__all__) <= set(dir(dispatcher))
    with pytest.raises(AttributeError, match="nothing"):
        dispatcher.nothing  # noqa: B018
    program = "import sys, dispatcher; assert 'dispatcher.api' not in sys.modules; assert 'msgspec' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_looking(workspace):
    assert list(workspace.records()) == ["base", "fft_1", "fft_2"]
    assert workspace.entries()["fft_1"].needs == ("base",)
    status = workspace.status()
    assert (status.total, status.counts["queued"]) == (3, 3)
    assert workspace.status(where={"seed": "1"}).total == 1
    assert workspace.status(states=["done"]).total == 0
    assert workspace.queue() == [
        ("fft_1", "needs base (queued)"),
        ("base", "no pod is running"),
        ("fft_2", "no pod is running"),
    ]
    assert workspace.pods() == []
    assert workspace.results() == []
    assert not workspace.layout.run_state.exists()


def test_changing(workspace):
    assert workspace.hold("fft_*").changed == {"fft_1": "held", "fft_2": "held"}
    assert workspace.requeue(where={"seed": 1}).changed == {"fft_1": "requeued"}
    assert workspace.cancel("fft_2", "fft_1").changed == {"fft_2": "abandoned", "fft_1": "abandoned"}
    assert workspace.requeue("base").unchanged == {"base": "already queued"}
    assert {line.by for line in workspace.history()} == {"script"}
    assert json.loads(workspace.layout.status_file.read_text())["fft_1"]["state"] == "abandoned"
    assert workspace.delete("fft_1") == ["fft_1"]
    assert workspace.records()["fft_1"].rev == 0


def test_a_change_is_seen_by_others(workspace):
    other = Workspace(workspace.layout.root)
    assert other.status().counts["held"] == 0
    workspace.hold("base")
    assert other.status().counts["held"] == 1


def test_a_plan_that_has_been_overtaken(workspace):
    with workspace.transaction() as tx:
        tx.change("fft_2", Event.QUEUED, Change(state=State.QUEUED))
        tx.change("fft_2", Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
        tx.change("fft_2", Event.FAILED, Change(state=State.FAILED))
    plan = workspace.plan(State.QUEUED, ["fft_2"])
    with workspace.transaction() as tx:
        tx.change("fft_2", Event.REQUEUED, Change(state=State.QUEUED))
        tx.change("fft_2", Event.CLAIMED, Change(state=State.RUNNING, attempt=2))
    outcome = workspace.apply(plan)
    # It runs again already: stopping it is not what was wanted.
    assert outcome.unchanged == {"fft_2": "already running"}
    assert workspace.records()["fft_2"].desired is None


def test_forget_refuses_what_is_in_flight(workspace):
    with workspace.transaction() as tx:
        tx.change("base", Event.QUEUED, Change(state=State.QUEUED))
        tx.change("fft_2", Event.QUEUED, Change(state=State.QUEUED))
        tx.change("base", Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
    with pytest.raises(StateError, match="cancel it first"):
        workspace.delete("base", "fft_2")
    assert set(workspace.store.records) == {"base", "fft_2"}


def test_delete_without_names_deletes_nothing(workspace):
    workspace.hold("base")
    with pytest.raises(UsageError, match="name the jobs"):
        workspace.delete()
    assert set(workspace.store.records) == {"base"}


def test_add(workspace):
    workspace.hold("base")
    added = workspace.add([{"job_id": "fft_3", "method": "fft", "needs": ["fft_2"], "time_limit": "8h"}])
    assert list(added.entries) == ["base", "fft_1", "fft_2", "fft_3"]
    assert workspace.entries()["fft_3"].time_limit_s == 8 * 3600
    before = workspace.config.matrix.read_bytes()
    with pytest.raises(ManifestError, match="duplicate job_id: fft_3 "):
        workspace.add([{"job_id": "fft_3", "method": "fft"}])
    assert workspace.config.matrix.read_bytes() == before
    workspace.add([{"job_id": "more", "method": "fft", "needs": ["base"]}], "matrix/more.json")
    assert "more" not in workspace.records()


def test_errors(workspace, tmp_path):
    with pytest.raises(UsageError, match="name the jobs"):
        workspace.requeue()
    with pytest.raises(UsageError, match="did you mean 'fft_1'"):
        workspace.hold("fft1")
    with pytest.raises(UsageError, match="no pod has run here"):
        workspace.drain("pod-0")
    with pytest.raises(DispatcherError, match="is not a workspace"):
        Workspace(tmp_path).snapshot()


def test_waiting_until_a_job_runs(workspace, monkeypatch):
    with pytest.raises(UsageError, match=r"unknown job 'fft_3' \(did you mean 'fft_2'"):
        workspace.wait_until_running("fft_3")
    with pytest.raises(StateError, match="fft_1 does not run after 0 s: needs base"):
        workspace.wait_until_running("fft_1", timeout_s=0)
    moves = [
        (Event.CLAIMED, Change(state=State.SUBMITTED, pod="p", attempt=1, outlet="hpc")),
        (Event.STARTED, Change(state=State.RUNNING, host="node17")),
    ]

    def move(_):
        with Workspace(workspace.root, by="pod").transaction() as tx:
            tx.change("base", *moves.pop(0))

    monkeypatch.setattr("time.sleep", move)
    assert workspace.wait_until_running("base", timeout_s=60).host == "node17"
    assert not moves
    with workspace.transaction() as tx:
        tx.change("base", Event.FAILED, Change(state=State.FAILED, error="out of memory"))
    with pytest.raises(StateError, match="base does not run, it is failed: out of memory"):
        workspace.wait_until_running("base")


def test_root_from_the_environment(workspace, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISPATCHER_ROOT", str(workspace.layout.root))
    assert len(Workspace().records()) == 3


def test_an_attempt_whose_claimants_name_is_damaged_is_shown(workspace):
    paths = workspace.layout.attempt("base", 1)
    paths.directory.mkdir(parents=True)
    paths.claimant.write_bytes(b"pod\xff\n")
    assert [attempt["claimed_by"] for attempt in workspace.attempts("base")] == ["pod\N{REPLACEMENT CHARACTER}"]
