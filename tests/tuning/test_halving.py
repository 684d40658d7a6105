"""Asynchronous successive halving: which trials go on, decided once, from what they have reported."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from study import FILE, Lab

from dispatcher.base.mounts import Mount
from dispatcher.errors import StateError
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.tuning import rungs as rungs_module
from dispatcher.tuning import tuner as tuner_module
from dispatcher.tuning.halving import Halving
from dispatcher.tuning.rungs import Rungs, RungValues
from dispatcher.tuning.trials import Status, best_of
from dispatcher.tuning.tuner import Tuner
from dispatcher.tuning.writing import Writer
from dispatcher.workspace import Layout

HALVED = FILE.replace("parallel: 3", "parallel: 8") + (
    "halving: {metric: val_loss, min_step: 10, reduction: 2, max_step: 80}\n"
)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "a'; echo lab", HALVED)


def report(layout: Layout, job: str, attempt: int, *lines: Mapping[str, Any] | str) -> None:
    with open(layout.attempt(job, attempt).directory / "metrics.jsonl", "a") as file:
        file.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)


def at(step: int, value: object) -> dict[str, Any]:
    return {"step": step, "wall_s": 1.0, "loss": 3.0, "val_loss": value}


def running(lab: Lab, count: int = 8) -> Tuner:
    tuner = lab.tuner()
    tuner.step()
    for number in range(count):
        lab.start(f"s_{number:04d}")
    return tuner


def decisions(lab: Lab) -> list[tuple[int, int, float | None, bool]]:
    found = []
    for line in lab.workspace.history():
        if line.event is Event.RUNG:
            data = line.data or {}
            found.append((data["number"], data["rung"], data.get("value"), data.get("goes_on", True)))
    return found


def desired(lab: Lab) -> dict[int, str | None]:
    """Of the jobs that run: whether they are to end."""
    lab.trials()
    records = lab.workspace.store.records
    return {int(job[-4:]): record.desired for job, record in records.items() if record.state == "running"}


def test_the_rungs() -> None:
    assert Halving(metric="m", min_step=100, reduction=3, max_step=2700).rungs() == [100, 300, 900]
    assert Halving(metric="m", min_step=1, reduction=2, max_step=9).rungs() == [1, 2, 4, 8]


@pytest.mark.parametrize("goal", ["min", "max"])
@pytest.mark.parametrize("reduction", [2, 3, 4])
def test_a_trial_goes_on_if_few_enough_are_better(goal: str, reduction: int) -> None:
    """The definition, counted out: the best 1/reduction of those known, at least one, may go on."""
    halving = Halving(metric="m", min_step=1, reduction=reduction, max_step=100)
    generator = random.Random(reduction)
    for _ in range(300):
        others = [generator.choice([None, *range(6)]) for _ in range(generator.randrange(12))]
        value = generator.choice([None, *range(6)])
        better = sum(
            other is not None and value is not None and (other < value if goal == "min" else other > value)
            for other in others
        )
        may = max(1, (len(others) + 1) // reduction)
        expected = value is not None and better < may
        assert halving.goes_on(value, others, goal) is expected, (value, others)


def test_metrics_are_read_once_as_they_grow(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    attempt = layout.attempt("a", 1).directory
    attempt.mkdir(parents=True)
    files = RungValues(layout, "val_loss", [10, 20, 40])

    def found() -> list[tuple[int, float, float | None]]:
        return [(one.rung, one.step, one.value) for one in files.reached("a", 1)]

    assert found() == []
    report(layout, "a", 1, at(5, 9.0), {"step": 10, "loss": 1.0}, "no json\n", "[1]\n", '{"step": 11, "val_loss": 0.')
    assert found() == [], "no line of a metric at step 10 or later is complete"
    report(layout, "a", 1, "5}\n")
    assert found() == [(10, 11, 0.5)]
    # A NaN as Python's json writes it.
    report(layout, "a", 1, at(19, 0.4), at(45, math.nan), at(50, 0.1))
    assert found() == [(10, 11, 0.5), (20, 45, None), (40, 45, None)]
    read = os.stat(attempt / "metrics.jsonl").st_size
    assert files._read["a"].parts[0].offset == read
    # An attempt that resumes begins with a file of its own.
    layout.attempt("a", 2).directory.mkdir()
    report(layout, "a", 2, at(10, 0.7))
    assert [(one.rung, one.value) for one in files.reached("a", 2)] == [(10, 0.7)]
    # It is replaced by one that is shorter, so that it goes on where the first attempt was at step 19.
    temporary = layout.attempt("a", 2).directory / "new"
    temporary.write_text(json.dumps(at(21, 0.6)) + "\n")
    temporary.replace(layout.attempt("a", 2).directory / "metrics.jsonl")
    assert [(one.rung, one.value) for one in files.reached("a", 2)] == [(10, 0.5), (20, 0.6)]


def test_a_trial_is_judged_by_the_values_that_count(tmp_path: Path) -> None:
    """A training that was rewound, and one whose next attempt goes on behind a rung."""
    layout = Layout(tmp_path)
    for number in (1, 2):
        layout.attempt("a", number).directory.mkdir(parents=True)
    report(layout, "a", 1, at(10, 17.0), at(20, 16.0), at(10, 7.0))
    values = RungValues(layout, "val_loss", [10, 20, 40])
    assert [(one.rung, one.value) for one in values.reached("a", 1)] == [(10, 7.0)]
    report(layout, "a", 2, at(11, 6.0), at(20, 5.0))
    assert [(one.rung, one.value) for one in values.reached("a", 2)] == [(10, 7.0), (20, 5.0)]


def test_a_table_that_a_method_names_and_that_is_written_anew_with_another_heading(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    attempt = layout.attempt("a", 1).directory
    attempt.mkdir(parents=True)
    (attempt / "script-outputs.json").write_text('{"metrics": {"path": "log.csv"}}')
    files = RungValues(layout, "val_loss", [2, 4])
    assert files.reached("a", 1) == []
    (attempt / "log.csv").write_text("step,loss\n1,9\n2,8\n")
    assert files.reached("a", 1) == []
    (attempt / "log.csv").write_text("step,val_loss,loss\n1,,9\n2,,8\n2,0.5,\n")
    assert [(one.rung, one.value) for one in files.reached("a", 1)] == [(2, 0.5)]
    with open(attempt / "log.csv", "a") as file:
        file.write("4,0.25,7\n")
    assert [(one.rung, one.value) for one in files.reached("a", 1)] == [(2, 0.5), (4, 0.25)]


def test_an_attempt_without_its_directory_or_with_a_pipe_in_place_of_metrics_stops_no_tuner(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network filesystem names are fetched first."""
    network = Mount("/", "nfs4", "server:/", "")
    for module in (rungs_module, tuner_module):
        monkeypatch.setattr(module, "mount_of", lambda _: network)
    tuner = running(lab)
    shutil.rmtree(lab.layout.attempt("s_0000", 1).directory)
    lab.layout.attempt("s_0001", 1).directory.mkdir(parents=True, exist_ok=True)
    os.mkfifo(lab.layout.attempt("s_0001", 1).directory / "metrics.jsonl")
    report(lab.layout, "s_0002", 1, at(10, 0.5))
    lab.end("s_0003", attempt=1)
    shutil.rmtree(lab.layout.attempt("s_0003", 1).directory)
    tuner.step()
    assert lab.trials()[3].why == "no result.json"
    assert [number for number, *_ in decisions(lab)] == [2]


@pytest.mark.parametrize(
    "step", ['"Infinity"', '"NaN"', 10**400, '"10"', "null", "true"], ids=lambda one: str(one)[:10]
)
def test_a_step_that_is_no_finite_number_reaches_no_rung(lab: Lab, step: object) -> None:
    """The journal could not hold it, and nobody could read the workspace any more."""
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, f'{{"step": {step}, "val_loss": 0.1}}\n')
    report(lab.layout, "s_0001", 1, at(10, 10**400), at(20, 0.1))
    tuner.step()
    assert decisions(lab) == [(1, 10, None, False)]
    assert Lab(lab.root, HALVED).trials()[1].rungs == {10: None}, "a reader that begins anew"


def test_of_two_tuners_that_have_read_the_same_one_decides(lab: Lab) -> None:
    tuner = running(lab, 2)
    report(lab.layout, "s_0000", 1, at(10, 0.5))
    seen = lab.trials()
    tuner.step()
    halving = Halving(metric="val_loss", min_step=10, reduction=2, max_step=80)
    Rungs(lab.workspace, Writer(lab.workspace), "s", halving, "min").decide(seen)
    assert decisions(lab) == [(0, 10, 0.5, True)]


def test_without_metrics_the_progress_counts(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    paths = layout.attempt("a", 1)
    paths.directory.mkdir(parents=True)
    files = RungValues(layout, "val_loss", [10, 20, 40])
    for step, value in ((9, 3.0), (12, 2.0), (25, None)):
        paths.progress.write_text(json.dumps({"step": step, "of": 100, "metrics": {"val_loss": value}}))
        found = [(one.rung, one.step, one.value) for one in files.reached("a", 1)]
    assert found == [(10, 12, 2.0), (20, 25, None)]


def test_decisions_are_those_of_the_definition(lab: Lab) -> None:
    """Eight trials that report in a random order, against an account of its own."""
    tuner = running(lab)
    generator = random.Random(5)
    values = {number: generator.uniform(1, 9) for number in range(8)}
    known: dict[int, list[float]] = {10: [], 20: [], 40: []}
    expected = []
    next_step = dict.fromkeys(range(8), 10)
    alive = list(range(8))
    while alive:
        number = generator.choice(alive)
        step = next_step[number]
        value = values[number] / step
        report(lab.layout, f"s_{number:04d}", 1, at(step, value))
        tuner.step()
        known[step].append(value)
        is_better = sorted(known[step]).index(value) < max(1, len(known[step]) // 2)
        expected.append((number, step, value, is_better))
        next_step[number] *= 2
        if not is_better or step == 40:
            alive.remove(number)
    assert decisions(lab) == expected
    stopped = {number for number, _, _, goes_on in expected if not goes_on}
    assert 0 < len(stopped) < 8
    assert {number for number, state in desired(lab).items() if state == "done"} == stopped


def test_two_tuners_decide_once(lab: Lab) -> None:
    tuners = [running(lab), lab.tuner()]
    for number in range(8):
        report(lab.layout, f"s_{number:04d}", 1, at(10, float(number)), at(20, float(number)))
        for tuner in tuners:
            tuner.step()
    found = decisions(lab)
    assert len({(number, rung) for number, rung, _, _ in found}) == len(found)
    assert [(number, rung) for number, rung, _, goes_on in found if goes_on] == [(0, 10), (0, 20)]
    # Whoever comes later reads the same files again, and decides nothing again.
    lab.tuner().step()
    assert decisions(lab) == found


def test_a_trial_that_was_not_looked_at_is_judged_at_each_rung(lab: Lab) -> None:
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, at(12, 1.0), at(30, 0.9), at(70, 0.8))
    report(lab.layout, "s_0001", 1, at(10, 2.0), at(20, 0.1), at(40, 0.1))
    tuner.step()
    assert decisions(lab) == [(0, 10, 1.0, True), (1, 10, 2.0, False), (0, 20, 0.9, True), (0, 40, 0.8, True)]
    assert lab.trials()[1].is_stopping


def pruned(lab: Lab, number: int, *, exit_code: int = 143) -> None:
    """What a pod records of an attempt that it has stopped."""
    from dispatcher.outlets.base import Ended
    from dispatcher.pod.outcome import Policy, after

    job = f"s_{number:04d}"
    lab.trials()
    event, change = after(Ended(exit_code), lab.workspace.store.records[job], Policy(), 1e9)
    lab.change(job, event, change)


def test_a_pruned_trial_counts_with_its_last_value_and_is_not_the_best(lab: Lab) -> None:
    tuner = running(lab)
    lab.end("s_0000", {"loss": 5.0}, attempt=1)
    report(lab.layout, "s_0001", 1, at(10, 0.2))
    tuner.step()
    report(lab.layout, "s_0002", 1, at(10, 0.3))
    step = tuner.step()
    pruned(lab, 2)
    step = tuner.step()
    one = step.trials[2]
    assert (one.status, one.value, one.why) == (Status.PRUNED, 0.3, "at step 10")
    best = best_of(step.trials, "min")
    assert best is not None
    assert best.number == 0
    assert not step.asked, "it counts among the trials"
    record = lab.workspace.store.records["s_0002"]
    assert (record.state, record.reason, record.desired) == ("done", "pruned", None)


def test_a_trial_with_nan_at_a_rung_is_stopped_and_has_failed(lab: Lab) -> None:
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, at(10, "NaN"))
    tuner.step()
    assert desired(lab)[0] == "done"
    pruned(lab, 0)
    one = lab.trials()[0]
    assert (one.status, one.value, one.why) == (Status.FAILED, None, "NaN at step 10")


def test_what_really_happened_is_recorded(lab: Lab) -> None:
    """Trials that were to end, and ended in other ways first."""
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, at(10, 0.1))
    tuner.step()
    for number in range(1, 5):
        report(lab.layout, f"s_{number:04d}", 1, at(10, float(number)))
    tuner.step()
    assert [desired(lab)[number] for number in range(5)] == [None, "done", "done", "done", "done"]
    # One is complete before the signal reaches it, another obeys it with exit status 0 and no result.
    lab.layout.attempt("s_0001", 1).result.write_text(json.dumps({"loss": 0.01}))
    pruned(lab, 1, exit_code=0)
    pruned(lab, 2, exit_code=0)
    # Another one is preempted, and a person has queued the last one meanwhile.
    pruned(lab, 3, exit_code=75)
    lab.workspace.requeue("s_0004")
    pruned(lab, 4)
    trials = tuner.step().trials
    assert [(one.status, one.value) for one in trials[1:5]] == [
        (Status.DONE, 0.01), (Status.PRUNED, 2.0), (Status.PRUNED, 3.0), (Status.QUEUED, None),
    ]  # fmt: skip
    best = best_of(trials, "min")
    assert best is not None
    assert best.number == 1


def test_a_requeued_pruned_trial_goes_on_as_the_same_trial(lab: Lab) -> None:
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, at(10, 0.1), at(20, 0.1))
    tuner.step()
    report(lab.layout, "s_0001", 1, at(10, 0.5))
    tuner.step()
    pruned(lab, 1)
    lab.workspace.requeue("s_0001")
    assert lab.start("s_0001") == 2
    # It resumes its checkpoint: the lines before it come again.
    report(lab.layout, "s_0001", 2, at(10, 0.5), at(15, 0.4))
    tuner.step()
    assert desired(lab)[1] is None, "what was decided at step 10 is not decided again"
    report(lab.layout, "s_0001", 2, at(20, 0.05))
    tuner.step()
    assert decisions(lab)[-1] == (1, 20, 0.05, True)
    lab.end("s_0001", {"loss": 0.02}, attempt=2)
    one = tuner.step().trials[1]
    assert (one.status, one.value, one.attempt) == (Status.DONE, 0.02, 2)


def test_a_preempted_trial_is_judged_when_it_runs_again(lab: Lab) -> None:
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, at(10, 0.1))
    tuner.step()
    report(lab.layout, "s_0001", 1, at(10, 0.5))
    lab.requeue("s_0001", "preempted")
    tuner.step()
    assert [number for number, *_ in decisions(lab)] == [0]
    lab.start("s_0001")
    report(lab.layout, "s_0001", 2, at(12, 0.4))
    tuner.step()
    # The second attempt goes on behind step 10.
    assert decisions(lab)[-1] == (1, 10, 0.5, False)
    assert desired(lab)[1] == "done"


def test_a_trial_that_is_done_counts_at_its_rungs(lab: Lab) -> None:
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, at(10, 0.1), at(20, 0.1), at(40, 0.1))
    lab.end("s_0000", {"loss": 0.1}, attempt=1)
    report(lab.layout, "s_0001", 1, at(10, 0.5))
    tuner.step()
    assert decisions(lab) == [(0, 10, 0.1, True), (1, 10, 0.5, False), (0, 20, 0.1, True), (0, 40, 0.1, True)]


def test_a_person_who_cancels_a_trial_is_obeyed(lab: Lab) -> None:
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, at(10, 0.1))
    tuner.step()
    lab.workspace.cancel("s_0001")
    report(lab.layout, "s_0001", 1, at(10, 0.5))
    tuner.step()
    assert desired(lab)[1] == "abandoned"
    pruned(lab, 1)
    assert lab.workspace.store.records["s_0001"].state == "abandoned"
    assert lab.trials()[1].status == Status.FAILED


def test_decisions_survive_a_new_generation_of_the_journal(lab: Lab) -> None:
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, at(10, 0.1))
    report(lab.layout, "s_0001", 1, at(10, "NaN"))
    tuner.step()
    before = lab.trials()
    lab.workspace.store.save()
    assert Lab(lab.root, HALVED).trials() == before
    assert lab.workspace.store.rotate()
    assert Lab(lab.root, HALVED).trials() == before
    assert before[1].rungs == {10: None}
    assert before[1].is_stopping
    report(lab.layout, "s_0002", 1, at(10, 0.5))
    lab.tuner().step()
    assert desired(lab)[2] == "done", "the values from before count"


def test_a_transaction_that_fails_decides_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = running(lab)
    report(lab.layout, "s_0000", 1, at(10, 0.1))
    from dispatcher.run_state.locked_journal import LockedJournal

    def fail(*_: object) -> None:
        raise OSError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(LockedJournal, "append", fail)
        with pytest.raises(OSError, match="on purpose"):
            tuner.step()
    assert decisions(lab) == []
    assert tuner._study().rungs == {}
    tuner.step()
    assert decisions(lab) == [(0, 10, 0.1, True)]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("{metric: val_loss, min_step: 10, max_step: 10}", "no rung is below it"),
        ("{metric: step, min_step: 10, max_step: 100}", 'halving.metric = "step"'),
        ("{metric: val_loss, min_step: 0, max_step: 100, reduction: 1}", "halving.reduction = 1: expected a whole"),
        ("{metric: val_loss, min_steps: 10, max_step: 100}", "did you mean 'min_step'?"),
        ("{}", "halving.min_step: is missing"),
    ],
)
def test_faults_of_halving(lab: Lab, given: str, fault: str) -> None:
    from dispatcher.errors import ManifestError

    with pytest.raises(ManifestError) as caught:
        lab.tuner(f"{FILE}halving: {given}\n")
    assert fault in str(caught.value)


def test_halving_cannot_change_within_a_study(lab: Lab) -> None:
    lab.tuner().step()
    with pytest.raises(StateError, match="choose another name for this study"):
        lab.tuner(HALVED.replace("reduction: 2", "reduction: 4"))
    with pytest.raises(StateError, match="choose another name for this study"):
        lab.tuner(FILE)


def test_a_held_trial_is_left_alone(lab: Lab) -> None:
    tuner = running(lab, 1)
    report(lab.layout, "s_0000", 1, at(10, 0.1))
    lab.change("s_0000", Event.STOPPED, Change(state=State.HELD))
    tuner.step()
    assert decisions(lab) == []
