"""What is shown is what happened: a manifest that changes after a run changes nothing in the tables of that run."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import pytest
from fleet import Fleet, shell

from dispatcher.api import Workspace
from dispatcher.matrix.entry import Entry, read_entry
from dispatcher.query.ran import RanWith

RESULT = 'echo "{\\"loss\\": $LOSS}" >"$DISPATCHER_ATTEMPT_DIR/result.json"'


def entry(job: str, lr: float, **rest: Any) -> dict[str, Any]:
    return shell(job, RESULT, lr=lr, env={"LOSS": "0.5"}, **rest)


def results(fleet: Fleet) -> dict[str, dict[str, Any]]:
    return {row["job_id"]: row for row in json.loads(fleet.run("results", "--format", "json"))}


@pytest.fixture
def ran(fleet: Fleet) -> Fleet:
    """Four jobs that are done; then `lr` changes for two of them, one leaves the manifest, and one stays as it was."""
    fleet.write_manifest([entry("a", 0.1), entry("b", 0.2), entry("gone", 0.3), entry("same", 0.4)])
    assert fleet.run_all().end() == 0
    fleet.write_manifest([entry("a", 9.0), entry("b", 9.0), entry("same", 0.4, priority=7, time_limit="8h")])
    return fleet


def test_tables_show_what_the_attempts_ran_with(ran: Fleet) -> None:
    assert {job: row["lr"] for job, row in results(ran).items()} == {"a": 0.1, "b": 0.2, "gone": 0.3, "same": 0.4}
    by = json.loads(ran.run("status", "--by", "lr,method", "--format", "json"))
    assert [(row["lr"], row["method"], row["done"]) for row in by] == [
        ("0.1", "m", 1), ("0.2", "m", 1), ("0.3", "m", 1), ("0.4", "m", 1),
    ]  # fmt: skip
    assert list(results_where(ran, "lr=9.0")) == []
    assert list(results_where(ran, "lr=0.3")) == ["gone"]
    pivot = json.loads(ran.run("results", "--rows", "lr", "--value", "loss", "--format", "json"))
    assert [row["lr"] for row in pivot] == ["0.1", "0.2", "0.3", "0.4"]


def results_where(fleet: Fleet, where: str) -> list[str]:
    return [row["job_id"] for row in json.loads(fleet.run("results", "--where", where, "--format", "json"))]


def test_what_differs_is_counted_shown_and_run_again(ran: Fleet) -> None:
    said = ran.try_("status")
    assert "2 done jobs ran with other parameters than the manifest has now (a, b)" in said.stderr
    rows = {row["job"]: row["changed"] for row in json.loads(ran.run("status", "--json"))["jobs"]}
    assert rows == {"a": True, "b": True, "gone": False, "same": False}

    shown = json.loads(ran.run("show", "a", "--json"))
    assert (shown["entry"]["lr"], shown["ran_with"]["lr"]) == (9.0, 0.1)
    assert [attempt["claimed_by"] for attempt in shown["attempts"]] == ["pod"]
    assert shown["changes"] == [{"key": "lr", "ran_with": 0.1, "manifest": 9.0}]
    assert "ran_with" in ran.run("show", "a")
    assert json.loads(ran.run("show", "same", "--json"))["changes"] == []
    assert "(what attempt 1 ran with: the job is in no manifest)" in ran.run("show", "gone")

    assert ran.run("requeue", "--changed", "--where", "lr=0.1").splitlines() == ["a: requeued"]
    # From now on it is the next attempt that counts, and that one takes the manifest's parameters.
    assert json.loads(ran.run("show", "a", "--json"))["changed"] is False
    assert "(from the manifest: the next attempt will run with these values)" in ran.run("show", "a")
    assert results(ran)["a"]["lr"] == 0.1, "the result is still that of the first attempt"
    assert ran.run("requeue", "--changed").splitlines() == ["b: requeued"]
    assert ran.run_all().end() == 0
    assert {job: (row["lr"], row["attempt"]) for job, row in results(ran).items()} == {
        "a": (9.0, 2), "b": (9.0, 2), "gone": (0.3, 1), "same": (0.4, 1),
    }  # fmt: skip
    assert "other parameters" not in ran.try_("status").stderr
    assert ran.run("requeue", "--changed").strip() == (
        "nothing to requeue: no job ran with other parameters than the manifest has now, "
        "or before what it needs was done again"
    )


def test_an_attempt_that_left_nothing_falls_back_to_the_manifest_and_says_so(ran: Fleet) -> None:
    ran.attempt("a").entry.unlink()
    shutil.rmtree(ran.attempt("b").directory)
    said = ran.try_("results", "--format", "json")
    assert {row["job_id"]: row["lr"] for row in json.loads(said.stdout)} == {"a": 9.0, "gone": 0.3, "same": 0.4}
    assert "1 result with the parameters of the current manifest, because their attempts have no" in said.stderr
    assert "no entry.json that can be read: a" in said.stderr
    assert "attempt 1 has no entry.json, so it is unknown what it ran with" in ran.run("show", "b")


def test_no_file_is_opened_for_what_has_not_changed(ran: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    read = RanWith.attempt

    def watched(self: RanWith, job: str, number: int) -> Entry | None:
        opened.append(job)
        return read(self, job, number)

    monkeypatch.setattr(RanWith, "attempt", watched)
    workspace = Workspace(ran.root)
    workspace.status()
    assert opened == [], "counting what differs must not cost a file per job"
    workspace.results()
    assert sorted(opened) == ["a", "b", "gone"]


def test_a_job_that_runs_is_counted_too(fleet: Fleet) -> None:
    gated = "echo begun; until [ -e go ]; do sleep 0.02; done"
    fleet.write_manifest([shell("a", gated, lr=1)])
    pod = fleet.start("pod", "--until-empty")
    fleet.wait_running("a")
    fleet.write_manifest([shell("a", gated, lr=2)])
    assert "1 running job ran with other parameters than the manifest has now (a)" in fleet.try_("status").stderr
    assert fleet.run("requeue", "--changed").strip() == "nothing to requeue", "what runs is stopped by name only"
    (fleet.root / "go").touch()
    assert pod.end() == 0


def test_what_nobody_knows_is_said(fleet: Fleet) -> None:
    fleet.write_manifest([entry("adopted", 1), entry("marked", 2), entry("never", 3)])
    fleet.layout.run_state.mkdir()
    fleet.layout.status_file.write_text('{"adopted": {"state": "done"}}')
    fleet.run("mark", "done", "marked")
    fleet.run("cancel", "never")
    fleet.write_manifest([entry("adopted", 9), entry("marked", 9), entry("never", 9)])
    assert "other parameters" not in fleet.try_("status").stderr
    done = fleet.try_("requeue", "--changed")
    assert "2 jobs left alone (adopted, marked): adopted or marked by hand, so what they ran with is not known" in (
        done.stderr
    )
    for job in ("adopted", "marked"):
        assert "(from the manifest: it is unknown what the job ran with)" in fleet.run("show", job)
    assert "(from the manifest: it has not run)" in fleet.run("show", "never")


def test_what_a_script_runs_outside_is_not_taken_for_the_attempt_before(ran: Fleet) -> None:
    assert ran.record("a").ran_with is not None
    ran.run("requeue", "a")
    status = ran.status()
    status["a"] |= {"state": "running", "pod": "script", "pid": os.getpid()}
    ran.layout.status_file.write_text(json.dumps(status))
    ran.run("requeue", "b")
    record = ran.record("a")
    assert (record.external, record.attempt, record.ran_with) == (True, 2, None)
    assert "other parameters" not in ran.try_("status").stderr
    assert results(ran)["a"]["lr"] == 0.1, "the result is that of the first attempt, whatever runs now"


def read(**document: Any) -> Entry:
    entry, faults = read_entry({"job_id": "a", "method": "m", **document}, 0)
    assert entry is not None and not faults
    return entry


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"lr": 1e-4, "seed": 1}, {"seed": 1, "lr": 0.0001}, True),
        ({"x": {"b": 1, "a": 2}}, {"x": {"a": 2, "b": 1}}, True),
        ({"env": {}}, {"env": None}, True),
        ({"priority": 3, "needs": ["b"], "retries": 2, "time_limit": "8h", "outlet": "slurm"}, {}, True),
        ({"lr": 0}, {"lr": False}, False),
        ({"lr": 0}, {}, False),
        ({"lr": 1}, {"lr": "1"}, False),
        ({"tags": [1, 2]}, {"tags": [2, 1]}, False),
        ({"command": "a b"}, {"command": "a c"}, False),
        ({"env": {"A": "1"}}, {"env": {"A": "2"}}, False),
        ({"gpus": 1}, {"gpus": 2}, False),
        ({"method": "n"}, {}, False),
        ({"job": "a/b", "config": {"lr": 1}}, {"job": "a/b", "config": {"lr": 2}}, False),
        ({"big": 2**70}, {"big": 2**70 + 1}, False),
        ({"half": "\ud800"}, {"half": "\ud801"}, False),
    ],
)
def test_what_counts_as_a_difference(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    assert (read(**one).digest() == read(**other).digest()) is same
    assert read(**one).digest() == read(**one).digest()


def older(fleet: Fleet) -> dict[str, dict[str, int]]:
    rows = json.loads(fleet.run("status", "--json"))["jobs"]
    return {row["job"]: row["newer_inputs"] for row in rows if row["newer_inputs"]}


def test_what_began_before_an_input_was_done_again_is_counted_shown_and_run_again(fleet: Fleet) -> None:
    train, other, evals = entry("train", 0.1), entry("other", 0.2), entry("eval", 1, needs=["train", "other"])
    fleet.write_manifest(
        [train, other, evals, entry("table", 1, needs=["eval"]), entry("eval_other", 1, needs=["other"])]
    )
    assert fleet.run_all().end() == 0
    assert not older(fleet)

    assert fleet.try_("requeue", "train").stderr.splitlines() == [
        "note: 2 done jobs that need them are not run again (eval, table): `--downstream` runs such jobs again, too"
    ]
    assert not older(fleet), "the input is not done again yet"
    assert fleet.run_all().end() == 0
    assert older(fleet) == {"eval": {"train": 2}}, "what needs the eval is as old as the eval"
    expected = (
        "1 done job began before what it needs was done again (eval): `dispatcher show eval` says what that is, "
        "`dispatcher requeue --changed --downstream` queues these again, those whose parameters have changed, and "
        "those that need them"
    )
    assert expected in fleet.try_("status").stderr
    assert "newer inputs  train (attempt 2), done again since this job began\n" in fleet.run("show", "eval")
    assert json.loads(fleet.run("show", "eval", "--json"))["newer_inputs"] == {"train": 2}
    assert "1 result from before what its job needs was done again: eval" in fleet.try_("results").stderr

    assert fleet.run("requeue", "--changed", "--downstream").splitlines() == ["eval: requeued", "table: requeued"]
    assert not older(fleet)
    assert fleet.run_all().end() == 0
    assert not older(fleet)
    assert {job: record.attempt for job, record in fleet.records().items()} == {
        "train": 2, "other": 1, "eval": 2, "table": 2, "eval_other": 1,
    }  # fmt: skip
    assert fleet.claimed()[-2:] == ["eval", "table"]

    # Without --downstream each step shows the next one.
    fleet.run("requeue", "train")
    fleet.run_all()
    fleet.run("requeue", "--changed")
    fleet.run_all()
    assert older(fleet) == {"table": {"eval": 3}}


def test_dependents_wait_for_the_input_that_is_queued_with_them(fleet: Fleet) -> None:
    fleet.write_manifest([
        entry("last", 1, needs=["eval"], priority=9), entry("eval", 1, needs=["train"], priority=5),
        entry("train", 0.1), entry("apart", 0.1),
    ])  # fmt: skip
    assert fleet.run_all("--slots", "3").end() == 0
    said = fleet.try_("requeue", "--downstream")
    assert said.returncode == 2 and "name the jobs" in said.stderr and "--downstream adds those" in said.stderr
    found = json.loads(fleet.run("requeue", "--downstream", "train", "--json"))
    assert found["changed"] == {"train": "requeued", "eval": "requeued", "last": "requeued"}
    assert fleet.run_all("--slots", "3").end() == 0
    assert fleet.claimed()[-3:] == ["train", "eval", "last"]
    assert not older(fleet)


def test_a_job_that_runs_while_its_input_is_done_again_is_older_though_a_checkpoint_resumes_it(fleet: Fleet) -> None:
    """Its second attempt begins after the input, but goes on with what the first one has made of the old input."""
    waits = 'while [ ! -e "$DISPATCHER_ROOT/go" ]; do sleep 0.05; done'
    saves = (
        'mkdir -p ckpt; echo "{\\"step\\": 5, \\"path\\": \\"$PWD/ckpt\\"}" >"$DISPATCHER_ATTEMPT_DIR/checkpoint.json"'
    )
    tune = shell("tune", f"echo begun; [ -e go ] && exit 0; {saves}; {waits}; exit 75", needs=["train"])
    fleet.write_manifest([entry("train", 0.1), tune])
    pod = fleet.start("pod", "--slots", "2", "--until-empty", poll="0.2")
    fleet.wait_running("tune")
    said = fleet.try_("requeue", "--downstream", "train")
    assert said.stdout == "train: requeued\n"
    assert "1 job matched and left alone (tune)" in said.stderr
    fleet.wait_for("train", "done", attempt=2)
    assert older(fleet) == {"tune": {"train": 2}}
    (fleet.root / "go").touch()
    assert pod.end() == 0
    record = fleet.record("tune")
    assert (record.state, record.attempt) == ("done", 2)
    assert older(fleet) == {"tune": {"train": 2}}
    assert fleet.run("requeue", "--changed") == "tune: requeued\n"
    assert fleet.run_all().end() == 0
    assert not older(fleet)


def test_what_is_not_made_again_makes_nothing_older(fleet: Fleet) -> None:
    """Marks of people, failed attempts, and retries; but a record that was deleted and is done again does."""
    fleet.write_manifest([entry("train", 0.1), entry("eval", 1, needs=["train"])])
    assert fleet.run_all().end() == 0
    fleet.run("mark", "failed", "train")
    fleet.run("mark", "done", "train")
    fleet.run("requeue", "train")
    fleet.run("mark", "done", "train")
    assert not older(fleet)
    fleet.write_manifest([shell("train", "exit 3"), entry("eval", 1, needs=["train"])])
    fleet.run("requeue", "train")
    fleet.run_all()
    assert fleet.record("train").state == "failed" and not older(fleet)
    # A person says that it is as good as done: what it is made of, nobody knows.
    fleet.run("mark", "done", "train")
    assert not older(fleet)
    fleet.write_manifest([entry("train", 0.1), entry("eval", 1, needs=["train"])])
    fleet.run("delete", "train", "--yes")
    assert fleet.run_all().end() == 0
    assert older(fleet) == {"eval": {"train": 3}}
    fleet.run("mark", "failed", "eval")
    assert not older(fleet), "what a person has set is unknown"
