"""Dispatchers that die: their jobs run on, and whoever is alive records how they ended."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from fleet import Fleet, shell, wait_until
from sessions import kill_session

from dispatcher.base.host import host_name
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store

GATED = "echo begun; until [ -e go ]; do sleep 0.02; done; exit 3"
LONG = "echo begun; sleep 600"


def run_elsewhere(fleet: Fleet, job: str, **fields: Any) -> None:
    """Record the job as running under a dispatcher that died without leaving anything but its words."""
    with Store(fleet.layout, by="ghost").transaction() as tx:
        tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
        tx.make_attempt(job, 1)
        claim = Change(state=State.RUNNING, pod="ghost", attempt=1, host=host_name())
        tx.change(job, Event.CLAIMED, claim | Change(**fields))


def test_a_restart_finds_its_jobs_again(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", GATED), shell("b", "true")])
    first = fleet.start()
    pid = fleet.wait_running("a")
    first.kill()
    assert pid in fleet.pids()
    second = fleet.start("pod", "--until-empty")
    second.says("found a (attempt 1) again")
    (fleet.root / "go").touch()
    second.end()
    record = fleet.record("a")
    assert (record.state, record.exit_code, record.reason, record.attempt) == ("failed", 3, "exit 3", 1)
    assert fleet.claimed() == ["a", "b"], "the slot was given out while the job that it belongs to ran on"


def test_what_ended_while_nobody_looked_is_recorded(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", GATED)])
    first = fleet.start()
    fleet.wait_running("a")
    first.kill()
    (fleet.root / "go").touch()
    fleet.wait_gone("a")
    fleet.run_all()
    assert fleet.record("a").exit_code == 3
    assert fleet.record("a").attempt == 1


def test_another_pod_records_how_they_ended(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", GATED), shell("b", "true")])
    first = fleet.start("first")
    fleet.wait_running("a")
    second = fleet.start("second", poll="0.3")
    fleet.wait_for("b", "done")
    first.kill()
    (fleet.root / "go").touch()
    record = fleet.wait_for("a", "failed")
    assert (record.pod, record.exit_code, record.attempt) == ("first", 3, 1)
    second.says("of pod first")


def test_a_job_that_runs_on_is_not_taken_by_another_pod(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", GATED)])
    first = fleet.start("first")
    fleet.wait_running("a")
    first.kill()
    second = fleet.start("second", "--until-empty", poll="0.1").ready()
    fleet.write_manifest([shell("a", GATED), shell("b", "sleep 0.5"), shell("c", "true")])
    fleet.wait_for("c", "done")
    assert fleet.record("a").state == "running"
    (fleet.root / "go").touch()
    second.end()
    assert fleet.events("a") == ["queued", "claimed", "started", "failed"]


def test_an_attempt_that_was_killed_with_its_dispatcher_is_lost(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "echo begun; [ $DISPATCHER_ATTEMPT = 2 ] || sleep 600")])
    first = fleet.start()
    pid = fleet.wait_running("a")
    first.kill()
    kill_session(pid)
    fleet.run_all().says("requeued a (attempt 1): lost")
    record = fleet.record("a")
    assert (record.state, record.attempt) == ("done", 2)
    assert "auto_requeued" in fleet.events("a")


def test_lost_attempts_use_no_retries_up_to_a_cap(fleet: Fleet) -> None:
    fleet.write_config("max_requeues: 2\nmethods: {m: {retries: 5, retry_on: [exit], backoff: 0.1s}}\n")
    fleet.write_manifest([shell("a", "echo begun; kill -9 $PPID")])
    fleet.run_all()
    record = fleet.record("a")
    assert (record.state, record.attempt, record.retries) == ("failed", 3, 0)
    assert record.reason == "lost 3 times"


def test_a_second_dispatcher_of_the_same_name_is_refused(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    first = fleet.start().ready()
    second = fleet.start()
    assert second.end() == 1
    for part in ("'pod'", str(first.pid), host_name(), "--pod"):
        assert part in second.said, f"the refusal does not name {part}: {second.said}"
    assert "Traceback" not in second.said
    assert first.is_running()


def test_gpus_of_another_pod_on_this_host_are_refused(fleet: Fleet) -> None:
    fleet.write_manifest([])
    fleet.start("first", "--gpus", "0,1").ready()
    second = fleet.start("second", "--gpus", "1,2")
    assert second.end() == 1
    assert "first" in second.said


@pytest.mark.parametrize("pod", ["ghost", "pod"])
def test_a_pid_that_is_another_process_now(fleet: Fleet, pod: str) -> None:
    """It is neither waited for nor killed, whether the attempt was of this pod's name or of another's."""
    fleet.write_manifest([shell("a", "true")])
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        run_elsewhere(fleet, "a", pid=other.pid, pod=pod)
        fleet.run_all()
        assert other.poll() is None, "a process that is none of ours was killed"
        record = fleet.record("a")
        assert (record.state, record.attempt) == ("done", 2)
    finally:
        other.kill()
        other.wait()


def test_a_pid_that_nobody_could_record(fleet: Fleet) -> None:
    """The dispatcher was killed right after it had started the wrapper."""
    fleet.write_manifest([shell("a", GATED)])
    first = fleet.start()
    pid = fleet.wait_running("a")
    first.kill()
    with Store(fleet.layout, by="test").transaction() as tx:
        tx.change("a", Event.STARTED, Change(pid=None))
    again = fleet.start("pod", "--until-empty")
    again.says("found a (attempt 1) again")
    wait_until(lambda: fleet.record("a").pid == pid, "the wrapper's pid is recorded")
    (fleet.root / "go").touch()
    again.end()
    assert fleet.record("a").exit_code == 3


def test_a_running_entry_that_is_no_attempt_of_ours_is_left_alone(fleet: Fleet) -> None:
    """A lab comes with its own status file, in which its own script runs a job."""
    fleet.write_manifest([shell("a", "true"), shell("b", "true")])
    fleet.layout.run_state.mkdir()
    line = '"a": {"state": "running", "pod": "shivam-0", "pid": 1, "gpu": 2, "started_at": "2026-06-17T26:12:00Z"}'
    fleet.layout.status_file.write_text(f"{{{line}}}\n")
    pod = fleet.start("pod", poll="0.2")
    fleet.wait_for("b", "done")
    fleet.write_manifest([shell("a", "true"), shell("b", "true"), shell("c", "sleep 0.5")])
    fleet.wait_for("c", "done")
    assert fleet.record("a").state == "running"
    assert fleet.status()["a"]["started_at"] == "2026-06-17T26:12:00Z"
    assert pod.stop() == 0


def test_strays_of_a_dead_dispatcher_are_stopped_before_the_entry_goes_on(fleet: Fleet) -> None:
    """The dispatcher and the wrapper are gone, a child in a session of its own is not."""
    fleet.write_manifest([shell("a", "setsid sleep 600 & echo begun; [ $DISPATCHER_ATTEMPT = 2 ] || sleep 600")])
    first = fleet.start("first")
    pid = fleet.wait_running("a")
    wait_until(lambda: sum("sleep" in words for words in fleet.pids().values()) >= 2, "both sleep")
    first.kill()
    kill_session(pid)
    second = fleet.start("second", "--until-empty", poll="0.2")
    assert second.end() == 0
    assert fleet.record("a").attempt == 2
    assert fleet.pids() == {}


def test_an_attempt_that_is_not_the_entrys_any_more_is_killed(fleet: Fleet) -> None:
    """Its host was taken for gone, the entry was given away, and it came back."""
    fleet.write_manifest([shell("a", LONG)])
    pod = fleet.start()
    fleet.wait_running("a")
    with Store(fleet.layout, by="other").transaction() as tx:
        tx.change("a", Event.AUTO_REQUEUED, Change(state=State.QUEUED))
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, pod="other", attempt=2, host="elsewhere"))
    pod.says("was taken over by another pod")
    fleet.wait_gone("a")
    pod.says("not recorded")
    assert fleet.record("a").attempt == 2
    assert fleet.record("a").state == "running"


def test_a_claimant_that_died_before_the_journal_had_its_claim(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    with Store(fleet.layout, by="ghost").transaction() as tx:
        tx.change("a", Event.QUEUED, Change(state=State.QUEUED))
        tx.make_attempt("a", 1)
    fleet.run_all()
    record = fleet.record("a")
    assert (record.state, record.attempt) == ("done", 2)


def test_an_entry_that_a_labs_own_script_ran_is_queued_by_hand(fleet: Fleet) -> None:
    """The record comes with the lab's status file, and nothing of ours can tell whether that script still runs."""
    fleet.write_manifest([shell("a", "true")])
    fleet.layout.run_state.mkdir()
    line = {"state": "running", "pod": "old", "pid": 3328333, "gpu": 2, "started_at": "2026-06-17T22:48:00Z"}
    fleet.layout.status_file.write_text(json.dumps({"a": line}))
    pod = fleet.start("pod", "--max-jobs", "1", poll="0.2").ready()
    fleet.run("requeue", "a")
    assert fleet.wait_for("a", "done").attempt == 1
    assert pod.end() == 0
