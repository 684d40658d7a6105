"""Ending a dispatcher: SIGTERM once, twice, three times, `--on-exit`, and `dispatcher drain`."""

from __future__ import annotations

import signal

import pytest
from fleet import Fleet, shell, wait_until

GATED = "echo begun; until [ -e go ]; do sleep 0.02; done"
SAVING = "trap 'echo saved; exit 5' TERM; echo begun; while :; do sleep 0.02; done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_once_drains(fleet: Fleet, number: int) -> None:
    fleet.write_manifest([shell("a", GATED), shell("b", "true")])
    pod = fleet.start()
    fleet.wait_running("a")
    pod.send(number)
    said = pod.says("draining")
    assert "Signal again to stop them" in said
    (fleet.root / "go").touch()
    assert pod.end() == 0
    assert fleet.states() == {"a": "done", "b": "queued"}
    assert {job: line["state"] for job, line in fleet.status().items()} == fleet.states()


def test_twice_stops_and_puts_back(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", SAVING), shell("b", "true")])
    pod = fleet.start()
    fleet.wait_running("a")
    pod.send(signal.SIGTERM)
    pod.says("draining")
    pod.send(signal.SIGTERM)
    assert pod.end() == 0
    assert "Signal again to exit at once" in pod.said
    assert fleet.output("a").endswith("saved\n")
    record = fleet.record("a")
    assert (record.state, record.reason, record.requeues, record.retries) == ("queued", "preempted", 0, 0)
    assert fleet.exit_file("a")["reason"] == "preempted"
    assert fleet.pids() == {}


def test_a_job_that_does_not_stop_is_killed(fleet: Fleet) -> None:
    fleet.write_config("kill_grace: 1s\n")
    fleet.write_manifest([shell("a", "trap '' TERM; echo begun; while :; do sleep 0.02; done")])
    pod = fleet.start("pod", "--on-exit", "stop")
    fleet.wait_running("a")
    pod.send(signal.SIGTERM)
    assert pod.end() == 0
    assert fleet.record("a").reason == "preempted"
    assert fleet.record("a").state == "queued"


def test_thrice_leaves_at_once_and_the_jobs_run_on(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", f"trap '' TERM; {GATED}"), shell("b", "true")])
    pod = fleet.start()
    pid = fleet.wait_running("a")
    for word in ("draining", "stopping", "leaving"):
        pod.send(signal.SIGTERM)
        pod.says(word)
    pod.end()
    assert fleet.record("a").state == "running"
    assert pid in fleet.pids()
    again = fleet.start("pod", "--until-empty")
    again.says("found a (attempt 1) again")
    (fleet.root / "go").touch()
    again.end()
    assert fleet.states() == {"a": "done", "b": "done"}


@pytest.mark.parametrize(("choice", "state"), [("stop", "queued"), ("leave", "running")])
def test_on_exit(fleet: Fleet, choice: str, state: str) -> None:
    fleet.write_manifest([shell("a", GATED)])
    pod = fleet.start("pod", "--on-exit", choice)
    fleet.wait_running("a")
    pod.send(signal.SIGTERM)
    pod.end()
    assert fleet.record("a").state == state
    assert fleet.status()["a"]["state"] == state
    (fleet.root / "go").touch()
    wait_until(lambda: not fleet.pids(), "what was left to run has ended")


def test_leaving_right_after_the_start_records_the_pid(fleet: Fleet) -> None:
    fleet.write_manifest([shell(job, GATED) for job in "abc"])
    pod = fleet.start("pod", "--on-exit", "leave", "--slots", "3")
    pod.says("start c")
    pod.send(signal.SIGTERM)
    pod.end()
    assert all(record.pid in fleet.pids() for record in fleet.records().values())
    (fleet.root / "go").touch()
    wait_until(lambda: not fleet.pids(), "what was left to run has ended")


def test_drain_by_command(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", GATED), shell("b", "true")])
    pod = fleet.start()
    fleet.wait_running("a")
    fleet.run("drain", "pod")
    pod.says("draining")
    (fleet.root / "go").touch()
    assert pod.end() == 0
    assert fleet.states() == {"a": "done", "b": "queued"}
    # The request was for that dispatcher, not for the next of its name.
    assert fleet.run_all().end() == 0
    assert fleet.states() == {"a": "done", "b": "done"}


def test_a_drain_that_is_taken_back(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", GATED), shell("b", "true")])
    pod = fleet.start("pod", "--until-empty")
    fleet.wait_running("a")
    fleet.run("drain", "pod")
    pod.says("draining")
    assert fleet.run("undrain", "pod").strip() == "pod may claim again"
    pod.says("claiming jobs again")
    assert "there is nothing to undo" in fleet.run("undrain", "pod")
    (fleet.root / "go").touch()
    assert pod.end() == 0
    assert fleet.states() == {"a": "done", "b": "done"}


def test_a_drain_of_a_pod_that_does_not_run_is_not_kept_for_its_next_start(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    fleet.start().ready().kill()
    assert "nothing to drain" in fleet.run("drain", "pod")
    assert fleet.run_all().end() == 0
    assert fleet.states() == {"a": "done"}
