"""When an entry is tried again: pauses that grow, what begins them anew, and what each method wants."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from itertools import pairwise

import pytest
from fleet import Fleet, shell

from dispatcher.outlets.base import Ended
from dispatcher.pod.outcome import Policy, after, classify
from dispatcher.run_state.states import Record, State

LOST = Ended(None, exit_reason="lost", ran_s=0.1)
PREEMPTED = Ended(75, exit_reason="preempted", ran_s=0.1)
FAILED = Ended(1, exit_reason="exit 1", ran_s=0.1)
PATIENT = Policy(retries=100, max_requeues=100)
RUNNING = Record(state=State.RUNNING)
KEPT = ("retries", "requeues", "backoff", "furthest_step", "furthest_checkpoint")


def pauses(endings: list[Ended], policy: Policy = PATIENT) -> list[float]:
    """The seconds that an entry waits after each of these ends in a row."""
    record, found = RUNNING, []
    for ending in endings:
        _, change = after(ending, record, policy, now_s=0.0)
        assert change.state == "queued"
        found.append(datetime.fromisoformat(change.retry_at).timestamp() if change.retry_at else 0.0)
        known = {name: change.fields().get(name) for name in KEPT}
        record = Record(state=State.RUNNING, **{name: value for name, value in known.items() if value is not None})
    return found


@pytest.mark.parametrize("ending", [LOST, PREEMPTED])
def test_the_first_return_is_quick_and_the_others_wait_longer_and_longer(ending: Ended) -> None:
    assert pauses([ending] * 6) == [1, 30, 60, 120, 240, 480]
    assert pauses([ending] * 60)[-1] == 3600
    assert pauses([ending] * 3, Policy(backoff_s=0.1)) == [0.1, 0.1, 0.2]


def test_the_pause_before_a_retry_doubles_and_has_an_end() -> None:
    assert pauses([FAILED] * 3) == [30, 60, 120]
    assert pauses([FAILED] * 60)[-1] == 3600


def at_step(step: float, of: Ended = PREEMPTED, ran_s: float = 0.1) -> Ended:
    return Ended(of.exit_code, exit_reason=of.exit_reason, step=step, ran_s=ran_s)


def test_one_that_got_further_begins_anew() -> None:
    assert pauses([at_step(0), at_step(100), at_step(200)]) == [1, 1, 1]
    assert pauses([at_step(100), at_step(100), at_step(40), at_step(101), at_step(101)]) == [1, 30, 60, 1, 30]
    # One that died before it said anything is no step back.
    assert pauses([at_step(100), LOST, LOST, at_step(90), at_step(101)]) == [1, 30, 60, 120, 1]
    assert pauses([at_step(1, FAILED), at_step(2, FAILED), at_step(2, FAILED)]) == [30, 30, 60]


def test_one_that_ran_for_hours_waits_as_after_its_first_preemption() -> None:
    hours = Ended(75, exit_reason="preempted", ran_s=7200.0)
    assert pauses([PREEMPTED, PREEMPTED, hours, hours]) == [1, 30, 1, 1]
    # But not when it ends at the same step every time.
    assert pauses([at_step(5, ran_s=7200), at_step(5, ran_s=7200), at_step(5, ran_s=7200)]) == [1, 30, 60]


def saved(checkpoint: float | None, step: float | None = None, ran_s: float = 0.1, of: Ended = PREEMPTED) -> Ended:
    return Ended(of.exit_code, exit_reason=of.exit_reason, step=step, checkpoint=checkpoint, ran_s=ran_s)


def test_what_is_not_saved_does_not_count_where_checkpoints_are_reported() -> None:
    assert pauses([saved(0), saved(10), saved(20)]) == [1, 1, 1]
    assert pauses([saved(10, 900), saved(10, 950), saved(10, 1000), saved(11, 20)]) == [1, 30, 60, 1]
    # Nor do an attempt that saves nothing where one before it did, an older checkpoint, and time.
    assert pauses([saved(10), at_step(900), LOST, saved(9), saved(10, ran_s=7200), saved(None, ran_s=7200)]) == [
        1, 30, 60, 120, 240, 480
    ]  # fmt: skip
    assert pauses([saved(1, of=FAILED), saved(2, 5, of=FAILED), saved(2, 6, of=FAILED)]) == [30, 30, 60]


def test_a_first_checkpoint_is_further_than_any_step() -> None:
    assert pauses([at_step(900), at_step(900), saved(100, 900), saved(100, 900), saved(200)]) == [1, 30, 1, 30, 1]


def test_returns_are_counted_from_the_last_newer_checkpoint() -> None:
    record = Record(state=State.RUNNING, requeues=2, furthest_checkpoint=0, furthest_step=50)
    policy = Policy(max_requeues=3)
    assert after(saved(0, 100), record, policy, 0.0)[1].requeues == 3
    assert after(saved(1, 40), record, policy, 0.0)[1].requeues == 1


def test_what_is_known_of_checkpoints_ends_with_the_entry_and_outlives_its_pod() -> None:
    record = Record(state=State.RUNNING, furthest_checkpoint=7, furthest_step=9)
    stopped = Ended(143, exit_reason="preempted", pod_stopped=True, checkpoint=8)
    change = after(stopped, record, Policy(), 0.0)[1]
    assert (change.furthest_checkpoint, change.furthest_step) == (8, 9)
    change = after(Ended(0), record, Policy(), 0.0)[1]
    assert (change.furthest_checkpoint, change.furthest_step) == (None, None)


def test_returns_are_counted_from_where_where_it_last_got_further() -> None:
    record = Record(state=State.RUNNING, requeues=2, furthest_step=100)
    policy = Policy(max_requeues=3)
    assert after(at_step(100), record, policy, 0.0)[1].requeues == 3
    assert after(at_step(101), record, policy, 0.0)[1].requeues == 1
    # Retries are what a person allows, however far each of them gets.
    used = Record(state=State.RUNNING, retries=2, furthest_step=100)
    assert after(at_step(101, FAILED), used, Policy(retries=2), 0.0)[0] == "failed"


def test_a_stopped_pod_costs_its_entries_nothing() -> None:
    ending = classify(Ended(143, "preempted"), "")
    record = Record(state=State.RUNNING, requeues=20, backoff=4, furthest_step=7)
    event, change = after(ending, record, Policy(on_preempted="fail"), 0.0)
    assert (event, change.state, change.retry_at) == ("auto_requeued", "queued", None)
    assert (change.requeues, change.backoff, change.furthest_step) == (20, 4, 7)


@pytest.mark.parametrize(
    ("ending", "policy", "event"),
    [
        (LOST, Policy(), "auto_requeued"),
        (LOST, Policy(on_lost="fail"), "failed"),
        (LOST, Policy(on_preempted="fail"), "auto_requeued"),
        (PREEMPTED, Policy(on_preempted="fail"), "failed"),
        (PREEMPTED, Policy(on_lost="fail"), "auto_requeued"),
        # Then it counts as any other failure does.
        (LOST, Policy(on_lost="fail", retries=1), "retried"),
        (LOST, Policy(on_lost="fail", retries=1, retry_on=("exit",)), "failed"),
    ],
)
def test_what_becomes_of_lost_and_preempted_attempts(ending: Ended, policy: Policy, event: str) -> None:
    found, change = after(ending, RUNNING, policy, 0.0)
    assert found == event
    assert change.reason == ending.exit_reason


def test_each_method_says_what_becomes_of_its_jobs(fleet: Fleet) -> None:
    fleet.write_config("methods: {strict: {on_lost: fail, on_preempted: fail}, m: {backoff: 0.1s}}\n")
    killed, left = "[ $DISPATCHER_ATTEMPT = 2 ] || kill -9 $PPID", "[ $DISPATCHER_ATTEMPT = 2 ] || exit 75"
    jobs = [shell(f"{m}_{n}", script, method=m) for m in ("strict", "m") for n, script in (("k", killed), ("p", left))]
    fleet.write_manifest(jobs)
    assert fleet.run_all().end() == 1
    found = {job: (record.state, record.attempt, record.reason) for job, record in fleet.records().items()}
    assert found == {
        "strict_k": ("failed", 1, "lost"),
        "strict_p": ("failed", 1, "preempted"),
        "m_k": ("done", 2, None),
        "m_p": ("done", 2, None),
    }


def test_one_that_exits_75_at_once_does_not_go_round(fleet: Fleet) -> None:
    fleet.write_config("max_requeues: 4\nmethods: {m: {backoff: 0.2s}}\n")
    fleet.write_manifest([shell("a", "exit 75")])
    assert fleet.run_all().end() == 1
    record = fleet.record("a")
    assert (record.attempt, record.reason) == (5, "preempted 5 times")
    ended = [line for line in fleet.history("a") if line.event == "auto_requeued"]
    claimed = [line.at for line in fleet.history("a") if line.event == "claimed"]
    for end, due, at in zip(ended, (0.2, 0.2, 0.4, 0.8), claimed[1:], strict=True):
        waited = (datetime.fromisoformat(at) - datetime.fromisoformat(end.at)).total_seconds()
        assert waited >= due - 0.01, f"claimed {waited:.3f} s after it was given back"


def test_a_person_need_not_wait_for_the_end_of_a_pause(fleet: Fleet) -> None:
    fleet.write_config("methods: {m: {retries: 3, backoff: 10h}}\n")
    fleet.write_manifest([shell("a", "[ $DISPATCHER_ATTEMPT = 2 ]")])
    pod = fleet.start("pod", "--until-empty", poll="600")
    fleet.wait_for("a", "queued", attempt=1)
    fleet.run("requeue", "a")
    assert pod.end() == 0
    record = fleet.record("a")
    assert (record.state, record.attempt, record.retries, record.backoff) == ("done", 2, 0, 0)


def test_a_job_that_goes_on_from_its_checkpoint_is_not_kept_waiting(fleet: Fleet) -> None:
    """It is preempted time and again, more often than entries may come back, and gets further each time."""
    step = json.dumps({"step": 0, "of": 10}).replace("0,", "$DISPATCHER_ATTEMPT,", 1).replace('"', '\\"')
    script = f'echo "{step}" >"$DISPATCHER_ATTEMPT_DIR/progress.json"; [ $DISPATCHER_ATTEMPT = 5 ] || exit 75'
    fleet.write_config("max_requeues: 2\nmethods: {m: {backoff: 600s}}\n")
    fleet.write_manifest([shell("a", script)])
    assert fleet.run_all().end() == 0
    assert fleet.record("a").attempt == 5
    times = [datetime.fromisoformat(line.at) for line in fleet.history("a") if line.event == "claimed"]
    assert all((later - earlier).total_seconds() >= 1 for earlier, later in pairwise(times))


def test_one_that_never_saves_anew_is_given_up_and_one_that_does_goes_on(fleet: Fleet) -> None:
    """Each of them is preempted more often than entries may come back."""
    code = (
        "import os, sys\nfrom dispatcher.contract import report_checkpoint, report_progress\n"
        "attempt = int(os.environ['DISPATCHER_ATTEMPT'])\n"
        "report_progress({step}, 1000)\nreport_checkpoint({saved})\nsys.exit(0 if attempt == 5 else 75)"
    )
    said = {"saves": {"step": 900, "saved": "10 * attempt"}, "repeats": {"step": "100 * attempt", "saved": 10}}
    fleet.write_config("max_requeues: 2\nmethods: {m: {backoff: 0.1s}}\n")
    commands = {job: [sys.executable, "-c", code.format(**words)] for job, words in said.items()}
    fleet.write_manifest([shell(job, "", command=command) for job, command in commands.items()])
    assert fleet.run_all().end() == 1
    found = {job: (record.state, record.attempt, record.reason) for job, record in fleet.records().items()}
    assert found == {"saves": ("done", 5, None), "repeats": ("failed", 3, "preempted 3 times")}
