"""A pod that drains after so many failures, and a method that is paused after so many."""

from __future__ import annotations

import re
from types import SimpleNamespace

from fleet import Fleet, shell
from participants import backlog_of, shared_of

from dispatcher.pod.options import PodOptions
from dispatcher.pod.participants.failures import Failures
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import BY_HAND, Record, State

GATED = "echo on; until [ -e go ]; do sleep 0.05; done"
FAILED = Record(state=State.FAILED, attempt=1)


def test_what_counts_for_a_pod() -> None:
    records = Records()
    queue = SimpleNamespace(may_claim=lambda job: job != "foreign")
    known = Failures(shared_of(options=PodOptions(pod="pod", max_fails=2), records=records), backlog_of(queue=queue))

    def why_stop() -> str:
        found = known.obstacle()
        return "" if found is None else found.why

    records.put("before", FAILED, 0)
    known.note_all()
    known.note("before", Record(state=State.FAILED, attempt=1, priority=3, rev=9))
    known.note("foreign", FAILED)
    known.note("by_hand", Record(state=State.FAILED, attempt=1, reason=BY_HAND))
    known.note("a", FAILED)
    known.note("a", Record(state=State.QUEUED, attempt=1))
    known.note("a", Record(state=State.FAILED, attempt=2))
    assert why_stop() == "", "one job, however often it fails"
    known.note("undone", FAILED)
    assert why_stop() == "--max-fails 2: 2 jobs failed (a, undone)"
    known.note("undone", Record(state=State.RUNNING, attempt=1))
    assert why_stop() == "", "its end was not recorded"
    known.note("before", Record(state=State.FAILED, attempt=2))
    assert why_stop() == "--max-fails 2: 2 jobs failed (a, before)"
    records.remove("before")
    known.note_all()
    assert why_stop(), "what was once too much stays so"


def test_a_pod_lets_what_runs_end_and_claims_nothing_more(fleet: Fleet) -> None:
    jobs = [shell("slow", GATED), *(shell(f"f{n}", f"echo no {n}; exit {n + 1}") for n in range(4)), shell("z", "true")]
    fleet.write_manifest(jobs)
    pod = fleet.start("pod", "--slots", "2", "--max-fails", "2")
    pod.says("draining (--max-fails 2: 2 jobs failed (f0, f1)): no new claims, running jobs finish")
    pod.says("slow: runs for")
    assert pod.is_running()
    (fleet.root / "go").touch()
    assert pod.end() == 1
    assert fleet.states() == {
        "slow": "done",
        "f0": "failed",
        "f1": "failed",
        "f2": "queued",
        "f3": "queued",
        "z": "queued",
    }


def test_failures_that_other_pods_record_count_and_older_ones_do_not(fleet: Fleet) -> None:
    fleet.write_manifest([shell("old", "exit 1")])
    assert fleet.run_all().end() == 1
    fleet.write_manifest([shell("old", "exit 1"), *(shell(f"f{n}", "sleep 0.3; exit 1") for n in range(40))])
    pods = [fleet.start(name, "--slots", "1", "--max-fails", "3", poll="1") for name in ("one", "two")]
    assert [pod.end() for pod in pods] == [1, 1]
    failed = [job for job, state in fleet.states().items() if state == "failed" and job != "old"]
    # What the other one ran when the third failed has ended since.
    assert len(failed) in (3, 4), failed
    for pod in pods:
        assert re.search(r"draining \(--max-fails 3: [34] jobs failed \(f", pod.said), pod.said


def test_those_that_the_pod_does_not_take_do_not_count(fleet: Fleet) -> None:
    fleet.write_manifest([shell("bad", "exit 1", method="x"), shell("good", "sleep 0.5", method="y")])
    careful = fleet.start("careful", "--methods", "y", "--max-fails", "1", "--until-empty", poll="1")
    fleet.start("other", "--methods", "x", "--until-empty")
    assert careful.end() == 0
    assert fleet.states() == {"bad": "failed", "good": "done"}


def test_a_method_is_paused_and_goes_on_when_it_is_unpaused(fleet: Fleet) -> None:
    fleet.write_config("methods: {m: {max_fails: 2}}\n")
    fleet.write_manifest(
        [*(shell(f"f{n}", f"echo no {n}; exit {n + 1}") for n in range(4)), shell("o", "true", method="n")]
    )
    pod = fleet.start("pod", "--until-empty")
    assert pod.end() == 1
    assert "paused m: max_fails 2: 2 jobs failed (f0, f1). Continue with `dispatcher unpause m`" in pod.said
    assert fleet.states() == {"f0": "failed", "f1": "failed", "f2": "queued", "f3": "queued", "o": "done"}
    assert "method m is paused: max_fails 2: 2 jobs failed (f0, f1)" in fleet.run("show", "f2")
    fleet.run("unpause", "m")
    again = fleet.start("pod", "--until-empty")
    assert again.end() == 1
    # The two that had failed before count no more.
    assert fleet.states()["f2"] == fleet.states()["f3"] == "failed"
    assert "paused m: max_fails 2: 2 jobs failed (f2, f3)" in again.said


def test_the_option_comes_from_the_environment_and_must_be_a_number(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "exit 1"), shell("b", "true")])
    pod = fleet.start("pod", DISPATCHER_MAX_FAILS="1")
    assert pod.end() == 1 and fleet.states() == {"a": "failed", "b": "queued"}
    done = fleet.try_("--pod", "x", "--slots", "1", "--max-fails", "0")
    assert done.returncode == 2 and "--max-fails" in done.stderr
