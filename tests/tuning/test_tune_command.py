"""`dispatcher matrix tune` with real pods: from the file to the best trial, whatever is killed meanwhile."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import pytest
from fleet import Fleet, wait_until
from study import suggested_again

from dispatcher.run_state.store import Store
from dispatcher.tuning.trials import Status, TrialState, trial_states

TRIAL = """
import math, sys, time
from dispatcher.contract import report_result
print("begun", flush=True)
time.sleep(float(sys.argv[3]))
report_result(loss=(math.log10(float(sys.argv[1])) + 3.5) ** 2 + 0.05 * abs(int(sys.argv[2]) - 6))
"""


def write(fleet: Fleet, *, trials: int, parallel: int, takes_s: float = 0.0, more: str = "") -> None:
    (fleet.root / "trial.py").write_text(TRIAL)
    fleet.write_config(f"methods: {{command: {{python: {sys.executable}}}}}\n")
    (fleet.root / "tune.yaml").write_text(
        f"name: s\ndefaults: {{command: '{{python}} trial.py {{lr}} {{layers}} {takes_s}', gpus: 0}}\n"
        "space: {lr: {log_uniform: [1e-5, 1e-2]}, layers: {integer: [2, 12]}}\n"
        f"objective: {{value: loss, goal: min}}\ntrials: {trials}\nparallel: {parallel}\n{more}"
    )


def trials(fleet: Fleet) -> list[TrialState]:
    store = Store(fleet.layout, by="test")
    store.refresh(to_the_end=True)
    return trial_states(store.fold.studies["s"], store.records)


@pytest.mark.slow
def test_a_study_from_its_file_to_its_best_trial(fleet: Fleet) -> None:
    write(fleet, trials=12, parallel=3)
    fleet.start("pod", "--slots", "3", poll="600")
    said = fleet.run("matrix", "tune", "tune.yaml")
    assert "12 trials: 12 done" in said
    found = trials(fleet)
    best = min(found, key=lambda one: one.value or 0.0)
    assert f"best: {best.job}: done, loss" in said
    assert said.count("(best so far)") >= 1
    rows = json.loads(fleet.run("matrix", "trials", "s", "--sort", "value", "--json"))
    assert [row["trial"] for row in rows if row["best"]] == [best.number] == [rows[0]["trial"]]
    assert [row["loss"] for row in rows] == sorted(one.value for one in found if one.value is not None)
    for number, params, again in suggested_again(fleet.layout):
        assert params == again, f"trial {number}"
    # A restart of a study that is over asks for nothing.
    assert "queued" not in fleet.run("matrix", "tune", "tune.yaml")
    assert len(trials(fleet)) == 12


@pytest.mark.slow
def test_once_asks_for_what_is_due(fleet: Fleet) -> None:
    write(fleet, trials=5, parallel=3)
    assert "3 trials queued" in fleet.run("matrix", "tune", "--once", "tune.yaml")
    assert fleet.run("matrix", "tune", "--once", "tune.yaml") == ""
    fleet.run_all("--slots", "3")
    assert "2 trials queued" in fleet.run("matrix", "tune", "--once", "tune.yaml")
    assert [one.status for one in trials(fleet)] == [Status.DONE] * 3 + [Status.QUEUED] * 2


@pytest.mark.slow
def test_a_new_version_is_never_silent(fleet: Fleet) -> None:
    write(fleet, trials=2, parallel=2)
    fleet.run("matrix", "tune", "--once", "tune.yaml")
    file = fleet.root / "tune.yaml"
    file.write_text(file.read_text().replace("[2, 12]", "[2, 20]").replace("trials: 2", "trials: 4"))
    refused = fleet.try_("matrix", "tune", "--once", "tune.yaml")
    assert refused.returncode == 2
    assert "space.layers changed since version 1: 2 of its 2 trials so far count" in refused.stderr
    assert "begin version 2 of s?" in refused.stderr
    assert len(trials(fleet)) == 2
    file.write_text(file.read_text().replace("parallel: 2", "parallel: 4"))
    assert "2 trials queued" in fleet.run("matrix", "tune", "--once", "--yes", "tune.yaml")
    assert [row["version"] for row in json.loads(fleet.run("matrix", "trials", "s", "--json"))] == [1, 1, 2, 2]


@pytest.mark.slow
def test_stop_and_cancel(fleet: Fleet) -> None:
    write(fleet, trials=50, parallel=2, takes_s=600)
    pod = fleet.start("pod", poll="600")
    tuner = fleet.start_command("tuner", "matrix", "tune", "tune.yaml")
    fleet.wait_running("s_0000")
    assert "s: no new trials; 2 trials still open" in fleet.run("matrix", "tune", "--stop", "s")
    refused = fleet.try_("matrix", "tune", "tune.yaml")
    assert refused.returncode == 1
    assert "--resume goes on with it" in refused.stderr
    assert "2 trials stopped" in fleet.run("matrix", "tune", "--cancel", "s")
    fleet.wait_for("s_0000", "abandoned")
    assert fleet.exit_file("s_0000", 1)["exit_code"] == 143
    assert tuner.end() == 1, "there is no best trial"
    assert "was stopped by" in tuner.said
    assert len(trials(fleet)) == 2
    assert pod.is_running()
    unknown = fleet.try_("matrix", "tune", "--stop", "z")
    assert (unknown.returncode, "there is no study 'z' (known: s)" in unknown.stderr) == (2, True)
    assert fleet.try_("matrix", "tune").returncode == 2
    assert fleet.try_("matrix", "tune", "tune.yaml", "--stop", "s").returncode == 2


def test_why_trials_wait(fleet: Fleet) -> None:
    write(fleet, trials=2, parallel=2)
    tuner = fleet.start_command("tuner", "matrix", "tune", "tune.yaml")
    tuner.says("no pod is running")
    fleet.start("pod", poll="600")
    assert tuner.end() == 0


def survive_kills(fleet: Fleet, generator: random.Random, rounds: int) -> int:
    """Two tuners and two pods, of which one is killed and started again in each round; how many were alive then.

    Ends when both tuners have ended well.
    """
    processes = {}

    def start(name: str) -> None:
        if name.startswith("pod"):
            processes[name] = fleet.start(name, "--slots", "2", poll="0.3")
        else:
            processes[name] = fleet.start_command(name, "matrix", "tune", "tune.yaml")

    for name in ("pod-1", "pod-2", "tuner-1", "tuner-2"):
        start(name)
    wait_until(fleet.layout.submitted_manifest.exists, "the first trials")
    kills = 0
    for _ in range(rounds):
        time.sleep(generator.uniform(0.3, 1.2))
        name = generator.choice(sorted(processes))
        if processes[name].is_running():
            processes[name].kill()
            kills += 1
        start(name)
    for name in ("tuner-1", "tuner-2"):
        if not processes[name].is_running():
            start(name)
        assert processes[name].end(120) == 0, processes[name].said
    return kills


@pytest.mark.slow
def test_tuners_and_pods_that_are_killed_lose_no_trial_and_ask_for_none_twice(fleet: Fleet) -> None:
    """Two tuners, two pods, all of them killed at random moments and started again."""
    write(fleet, trials=20, parallel=4, takes_s=0.2)
    assert survive_kills(fleet, random.Random(7), 14) >= 5
    found = trials(fleet)
    assert [one.number for one in found] == list(range(20))
    assert {one.status for one in found} == {Status.DONE}
    written = [json.loads(line)["job_id"] for line in fleet.layout.submitted_manifest.read_text().splitlines()]
    assert sorted(set(written)) == [f"s_{number:04d}" for number in range(20)]
    asked = [line.job for line in fleet.history() if line.event == "trial"]
    assert asked == [f"s_{number:04d}" for number in range(20)]
    measured = [(line.job, (line.data or {})["attempt"]) for line in fleet.history() if line.event == "measured"]
    assert len(measured) == len(set(measured)) == 20
    for number, params, again in suggested_again(fleet.layout):
        assert params == again, f"trial {number}"


def test_without_optuna_one_line_says_what_to_install(fleet: Fleet, tmp_path: Path) -> None:
    write(fleet, trials=2, parallel=2)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("import sys; sys.modules['optuna'] = None\n")
    said = fleet.try_("matrix", "tune", "tune.yaml", PYTHONPATH=str(tmp_path / "hidden"))
    assert said.returncode == 1
    assert "has no module optuna; install what dispatcher needs" in said.stderr
    assert "[tune]" in said.stderr
    assert not fleet.layout.journal_dir.exists()


CLIMB = """
import json, os, signal, sys, time
from dispatcher.contract import attempt_dir, report_checkpoint, report_result
slope, saved = float(sys.argv[1]), "step-" + os.environ["DISPATCHER_JOB_ID"]
step = int(open(saved).read()) if os.path.exists(saved) else 0
print("begun at", step, flush=True)

def leave(*_):
    open(saved, "w").write(str(step))
    report_checkpoint(step)
    print("saved", step, flush=True)
    sys.exit(75)

signal.signal(signal.SIGTERM, leave)
while step < 80:
    step += 1
    with open(attempt_dir() / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "val_loss": slope * step}) + "\\n")
    time.sleep(STEP_S)
report_result(loss=slope * step)
"""
HALVING = "halving: {metric: val_loss, min_step: 5, reduction: 2, max_step: 80}\n"


def write_climb(fleet: Fleet, *, trials: int, parallel: int, step_s: float = 0.05) -> None:
    (fleet.root / "climb.py").write_text(CLIMB.replace("STEP_S", str(step_s)))
    fleet.write_config(f"methods: {{command: {{python: {sys.executable}}}}}\n")
    (fleet.root / "tune.yaml").write_text(
        "name: s\ndefaults: {command: '{python} climb.py {slope}', gpus: 0}\n"
        "space: {slope: {uniform: [0, 1]}}\nsampler: random\n"
        f"objective: {{value: loss, goal: min}}\ntrials: {trials}\nparallel: {parallel}\n{HALVING}"
    )


def rungs(fleet: Fleet) -> list[dict[str, object]]:
    return [dict(line.data or {}) for line in fleet.history() if line.event == "rung"]


def check_decisions(fleet: Fleet) -> None:
    """Each decision is the one that the values before it in the journal ask for, and none was made twice."""
    known: dict[object, list[float]] = {}
    found = rungs(fleet)
    for one in found:
        values = known.setdefault(one["rung"], [])
        value = float(str(one["value"]))
        values.append(value)
        may_go_on = sorted(values).index(value) < max(1, len(values) // 2)
        assert one.get("goes_on", True) or not may_go_on, one
    assert len({(one["number"], one["rung"]) for one in found}) == len(found)


@pytest.mark.slow
def test_halving_stops_what_is_worse_and_a_requeued_trial_goes_on(fleet: Fleet) -> None:
    write_climb(fleet, trials=8, parallel=4)
    fleet.start("pod", "--slots", "4", poll="600")
    said = fleet.start_command("tuner", "matrix", "tune", "tune.yaml")
    assert said.end(120) == 0, said.said
    found = trials(fleet)
    stopped = [one for one in found if one.status is Status.PRUNED]
    done = [one for one in found if one.status is Status.DONE]
    assert stopped
    assert len(stopped) + len(done) == 8
    check_decisions(fleet)
    assert said.said.count(": pruned at step ") == len(stopped)
    for one in stopped:
        record = fleet.record(one.job)
        assert (record.state, record.reason) == ("done", "pruned")
        assert fleet.events(one.job)[-2:] == ["requested", "pruned"]
        assert "saved" in fleet.output(one.job, 1), "it had its time to save"
    # Outside of the results, with a column of its own in the account.
    results = json.loads(fleet.run("results", "--json"))
    assert sorted(row["trial"] for row in results) == [one.number for one in done]
    account = fleet.run("usage", "--since", "1h")
    assert any(line.startswith("pruned ") for line in account.splitlines()), account
    rows = json.loads(fleet.run("matrix", "trials", "s", "--sort", "value", "--json"))
    assert [row["loss"] for row in rows if row["loss"] is None] == [None] * len(stopped)
    assert [row["state"].partition(" at step ")[0] for row in rows] == ["done"] * len(done) + ["pruned"] * len(stopped)
    # A person thinks otherwise of one.
    job = stopped[0].job
    at = int(fleet.output(job, 1).split("saved ")[1].split()[0])
    fleet.run("requeue", job)
    fleet.wait_for(job, "done", attempt=2)
    assert f"begun at {at}" in fleet.output(job, 2)
    again = fleet.start_command("tuner", "matrix", "tune", "tune.yaml")
    again.end()
    assert len(trials(fleet)) == 8, "it is the same trial"


@pytest.mark.slow
def test_a_trial_that_is_to_end_is_stopped_by_whoever_comes(fleet: Fleet) -> None:
    """The pod of a pruned trial is killed before it has carried anything out."""
    write_climb(fleet, trials=2, parallel=2, step_s=0.5)
    pod = fleet.start("pod-1", "--slots", "2", poll="600")
    fleet.run("matrix", "tune", "--once", "tune.yaml")
    for number in range(2):
        fleet.wait_running(f"s_{number:04d}")
    pod.kill()

    def has_reached(number: int) -> bool:
        file = fleet.attempt(f"s_{number:04d}").directory / "metrics.jsonl"
        return file.exists() and file.read_text().count("\n") >= 5

    wait_until(lambda: has_reached(0) and has_reached(1), "both have reached the first rung")
    fleet.run("matrix", "tune", "--once", "tune.yaml")
    worse = next(str(one["number"]) for one in rungs(fleet) if not one.get("goes_on", True))
    job = f"s_000{worse}"
    assert fleet.record(job).desired == "done"
    fleet.start("pod-2", "--slots", "1", poll="1")
    record = fleet.wait_for(job, "done")
    assert record.reason == "pruned"
    fleet.wait_gone(job, 1)
    check_decisions(fleet)
    # The other one goes on, whoever looks after it.
    other = "s_0001" if job == "s_0000" else "s_0000"
    assert fleet.record(other).state == "running"
    fleet.run("matrix", "tune", "--cancel", "s")
    fleet.wait_for(other, "abandoned")
    fleet.wait_gone(other, 1)


@pytest.mark.slow
def test_halving_under_kills(fleet: Fleet) -> None:
    """Two tuners and two pods, killed at random: each rung is decided once, and every trial ends."""
    write_climb(fleet, trials=12, parallel=4)
    survive_kills(fleet, random.Random(11), 15)
    found = trials(fleet)
    assert [one.number for one in found] == list(range(12))
    assert {one.status for one in found} <= {Status.DONE, Status.PRUNED}
    check_decisions(fleet)
    for one in found:
        going = [rung for rung in rungs(fleet) if rung["number"] == one.number]
        if one.status is Status.PRUNED:
            assert not going[-1].get("goes_on", True)
        assert fleet.record(one.job).desired is None
