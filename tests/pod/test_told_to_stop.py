"""What is told to stop and leaves with 0: what was requested decides, unless the job proves that it is complete."""

from __future__ import annotations

import os
import signal

import pytest
from clocks import UptimeClock
from fleet import Fleet, shell

from dispatcher.contract import EXIT_COMPLETE

# As most scripts that save: they hear TERM, save, and leave in good order.
SAVES = "trap '{0}; exit {1}' TERM; echo ready; while :; do sleep 0.05; done"
PLAIN = SAVES.format("echo saved", 0)
WITH_RESULT = SAVES.format('echo "{{}}" >"$DISPATCHER_ATTEMPT_DIR/result.json"', 0)
COMPLETE = SAVES.format("true", EXIT_COMPLETE)
ENDINGS = pytest.mark.parametrize(
    ("script", "proves"), [(PLAIN, False), (WITH_RESULT, True), (COMPLETE, True)], ids=["plain", "result", "complete"]
)


@ENDINGS
@pytest.mark.parametrize(("request_", "state"), [("hold", "held"), ("cancel", "abandoned")])
def test_what_a_person_requests(fleet: Fleet, script: str, proves: bool, request_: str, state: str) -> None:
    fleet.write_manifest([shell("a", script)])
    pod = fleet.start()
    fleet.wait_running("a")
    fleet.run(request_, "a", "--yes")
    fleet.wait_for("a", "done" if proves else state)
    pod.stop()


@ENDINGS
def test_a_time_limit(fleet: Fleet, script: str, proves: bool) -> None:
    fleet.write_manifest([shell("a", script, time_limit="60s")])
    clock = UptimeClock(fleet.layout)
    pod = fleet.start("pod", "--until-empty")
    fleet.wait_running("a")
    clock.passes(60)
    assert pod.end() == (0 if proves else 1)
    record = fleet.record("a")
    assert (record.state, record.reason) == (("done", None) if proves else ("failed", "time limit"))


@ENDINGS
def test_a_pod_that_is_told_twice_to_stop(fleet: Fleet, script: str, proves: bool) -> None:
    fleet.write_manifest([shell("a", script)])
    pod = fleet.start()
    fleet.wait_running("a")
    pod.process.send_signal(signal.SIGTERM)
    pod.says("draining")
    pod.process.send_signal(signal.SIGTERM)
    pod.end()
    record = fleet.record("a")
    assert (record.state, record.reason) == (("done", None) if proves else ("queued", "preempted"))


def test_somebody_elses_signal_puts_it_back_and_a_requeued_job_runs_again(fleet: Fleet) -> None:
    once = "[ $DISPATCHER_ATTEMPT != 1 ] || { " + PLAIN + "; }"
    fleet.write_manifest([shell("a", once), shell("b", once)])
    pod = fleet.start("pod", "--slots", "2", "--until-empty")
    os.kill(fleet.wait_running("a"), signal.SIGTERM)
    fleet.wait_running("b")
    fleet.run("requeue", "b", "--yes")
    assert pod.end() == 0
    assert {job: (r.state, r.attempt) for job, r in fleet.records().items()} == {"a": ("done", 2), "b": ("done", 2)}
