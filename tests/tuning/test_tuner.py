"""A tuner asks for as many trials as are due, records their values, and keeps nothing but the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from repositories import Repository
from study import FILE, Lab, suggested_again

from dispatcher.errors import DispatcherError, StateError, UsageError
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.tuning.ending import end_study
from dispatcher.tuning.settings import read_settings
from dispatcher.tuning.trials import Status, best_of
from dispatcher.tuning.tuner import Tuner


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "a'; echo lab")


def finish(lab: Lab) -> None:
    """Step until the study is over, each time in a new process."""
    for _ in range(20):
        if lab.tuner().step().is_over:
            return
        lab.end_all()
    raise AssertionError("the study does not end")


def test_a_study_from_begin_to_end(lab: Lab) -> None:
    finish(lab)
    trials = lab.trials()
    assert [one.number for one in trials] == list(range(8))
    assert {one.status for one in trials} == {Status.DONE}
    best = best_of(trials, "min")
    assert best is not None
    assert best.value == min(one.value for one in trials if one.value is not None)
    entries = [json.loads(line) for line in lab.layout.submitted_manifest.read_text().splitlines()]
    assert [(one["job_id"], one["trial"], one["study"]) for one in entries] == [
        (f"s_{number:04d}", number, "s") for number in range(8)
    ]
    assert [{key: one[key] for key in ("lr", "layers")} for one in entries] == [one.params for one in trials]
    again = lab.tuner().step()
    assert again.is_over
    assert not again.asked


def test_the_same_journal_gives_the_same_suggestions(lab: Lab) -> None:
    finish(lab)
    found = list(suggested_again(lab.layout))
    assert [number for number, _, _ in found] == list(range(8))
    for number, params, again in found:
        assert params == again, f"trial {number}"


def test_no_more_trials_than_parallel_and_trials_allow(lab: Lab) -> None:
    tuner = lab.tuner()
    assert tuner.step().asked == ["s_0000", "s_0001", "s_0002"]
    assert tuner.step().asked == []
    lab.start("s_0000")
    assert tuner.step().asked == []
    lab.end("s_0001", {"loss": 1.0})
    assert tuner.step().asked == ["s_0003"]
    lab.change("s_0002", Event.HELD, Change(state=State.HELD))
    assert tuner.step().asked == ["s_0004"], "a trial that is held leaves its place to another one"
    # A higher total, taken over by a tuner that runs.
    lab.end_all()
    lab.tuner(FILE.replace("trials: 8", "trials: 9").replace("parallel: 3", "parallel: 20"))
    assert tuner.step().asked == ["s_0005", "s_0006", "s_0007", "s_0008"]
    assert tuner.step().total == 9


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (None, "no result.json"),
        ("[1]", "result.json is no JSON object"),
        ({"los": 1.0}, "result.json has no loss"),
        ({"loss": None}, "loss is NaN or infinite"),
        ('{"loss": NaN}', "loss is NaN or infinite"),
        ('{"loss": -Infinity}', "loss is NaN or infinite"),
        ({"loss": "low"}, 'loss is "low"'),
        ({"loss": True}, "loss is true"),
    ],
)
def test_a_trial_without_a_value_has_failed_and_says_why(lab: Lab, result: Any, why: str) -> None:
    tuner = lab.tuner()
    tuner.step()
    lab.end("s_0000", result)
    tuner.step()
    one = lab.trials()[0]
    assert (one.status, one.value, one.why) == (Status.FAILED, None, why)
    assert best_of(lab.trials(), "min") is None


def test_a_failed_and_a_cancelled_trial_count_among_all(lab: Lab) -> None:
    tuner = lab.tuner()
    tuner.step()
    lab.start("s_0000")
    lab.change("s_0000", Event.FAILED, Change(state=State.FAILED, reason="exit 1"))
    lab.change("s_0001", Event.ABANDONED, Change(state=State.ABANDONED))
    tuner.step()
    assert [(one.status, one.why) for one in lab.trials()[:2]] == [
        (Status.FAILED, "exit 1"),
        (Status.FAILED, "abandoned"),
    ]
    finish(lab)
    assert len(lab.trials()) == 8


def test_what_was_done_by_hand_has_no_value(lab: Lab) -> None:
    lab.tuner().step()
    lab.change("s_0000", Event.MARKED, Change(state=State.DONE, reason="set by hand"))
    lab.tuner().step()
    assert (lab.trials()[0].status, lab.trials()[0].why) == (Status.FAILED, "set by hand")


@pytest.mark.parametrize("reason", [None, "preempted", "lost"])
def test_a_job_that_is_queued_again_is_the_same_trial(lab: Lab, reason: str | None) -> None:
    tuner = lab.tuner()
    tuner.step()
    attempt = lab.start("s_0000")
    if reason is None:
        lab.end("s_0000", {"loss": 5.0}, attempt=attempt)
        tuner.step()
        assert lab.trials()[0].value == 5.0
    lab.requeue("s_0000", reason)
    before = len(lab.trials())
    tuner.step()
    assert lab.trials()[0].status == Status.QUEUED
    assert len(lab.trials()) == before, "it is not replaced"
    lab.end("s_0000", {"loss": 2.0})
    tuner.step()
    one = lab.trials()[0]
    assert (one.attempt, one.value) == (2, 2.0), "the value of the last attempt counts"


def test_a_deleted_trial_is_replaced_under_a_new_number(lab: Lab) -> None:
    tuner = lab.tuner()
    tuner.step()
    lab.workspace.delete("s_0001")
    assert tuner.step().asked == ["s_0003"]
    assert lab.trials()[1].status == Status.DELETED
    finish(lab)
    found = [one.number for one in lab.trials() if one.status is Status.DONE]
    assert found == [0, *range(2, 9)]


def test_a_changed_space_is_a_new_version_that_must_be_wanted(lab: Lab) -> None:
    old = lab.tuner()
    old.step()
    lab.end_all()
    old.step()
    lab.file.write_text(FILE.replace("[1e-5, 1e-2]", "[1e-4, 1e-2]"))
    tuner = Tuner(lab.workspace, read_settings(lab.file))
    plan = tuner.plan()
    inside = sum(one.params["lr"] >= 1e-4 for one in lab.trials())
    assert 0 < inside < len(lab.trials()), "the seed gives some of both"
    assert (plan.version, plan.changed, plan.kept, plan.before) == (2, ("space.lr",), inside, len(lab.trials()))
    tuner.begin(plan)
    with pytest.raises(StateError, match=r"goes on with other settings \(version 2\)"):
        old.step()
    lab.end_all()
    finish(lab)
    later = [one for one in lab.trials() if one.trial.version == 2]
    assert later
    assert all(one.params["lr"] >= 1e-4 for one in later)
    assert [number for number, params, again in suggested_again(lab.layout) if params != again] == []


def test_values_of_another_type_are_a_new_version(tmp_path: Path) -> None:
    """Python takes 2 and 2.0 for the same."""
    lab = Lab(tmp_path / "lab", FILE.replace("{integer: [2, 12]}", "{choice: [2, 12]}"))
    lab.tuner().step()
    lab.end_all()
    lab.tuner(FILE.replace("{integer: [2, 12]}", "{choice: [2.0, 12.0]}")).step()
    assert {type(one.params["layers"]) for one in lab.trials() if one.trial.version == 2} == {float}


def test_another_constant_is_a_new_version_and_other_hardware_priorities_are_none(lab: Lab) -> None:
    lab.tuner().step()
    other = FILE.replace("gpus: 0", "gpus: 0, lang: hindi")
    lab.tuner(other)
    lab.trials()
    assert lab.workspace.store.fold.studies["s"].version == 2
    lab.tuner(other.replace("gpus: 0", "gpus: 0, priority: 5, time_limit: 1h"))
    lab.trials()
    assert lab.workspace.store.fold.studies["s"].version == 2


def test_the_best_trial_is_one_of_those_that_can_be_compared(lab: Lab) -> None:
    lab.tuner().step()
    lab.end("s_0000", {"loss": 0.1})
    tuner = lab.tuner(FILE.replace("gpus: 0", "gpus: 0, lang: hindi").replace("parallel: 3", "parallel: 4"))
    step = tuner.step()
    assert step.best is None, "a trial in another language says nothing"
    (job, *_) = step.asked
    lab.end(job, {"loss": 0.5})
    best = tuner.step().best
    assert best is not None and (best.job, best.value) == (job, 0.5)


@pytest.mark.parametrize("new", ["value: other", "value: loss, goal: max"])
def test_another_objective_is_another_study(lab: Lab, new: str) -> None:
    lab.tuner().step()
    text = FILE.replace("value: loss, goal: min", new if "goal" in new else f"{new}, goal: min")
    with pytest.raises(StateError, match="choose another name for this study"):
        lab.tuner(text)


def test_a_stopped_study_gets_no_trials_until_it_is_resumed(lab: Lab) -> None:
    tuner = lab.tuner()
    tuner.step()
    assert end_study(lab.workspace, "s", is_cancelled=False) == ["s_0000", "s_0001", "s_0002"]
    lab.end_all()
    step = tuner.step()
    assert (step.asked, step.is_over) == ([], True)
    assert [one.status for one in step.trials] == [Status.DONE] * 3, "values are read all the same"
    with pytest.raises(StateError, match=r"was stopped by .*--resume goes on"):
        lab.tuner()
    assert len(lab.tuner(resume=True).step().asked) == 3
    assert len(tuner.step().trials) == 6


def test_whoever_begins_a_study_does_not_undo_a_stop_of_the_same_moment(lab: Lab) -> None:
    lab.tuner().step()
    tuner = Tuner(lab.workspace, read_settings(lab.file))
    plan = tuner.plan()
    end_study(Lab(lab.root).workspace, "s", is_cancelled=False)
    with pytest.raises(StateError, match="at the same moment"):
        tuner.begin(plan)
    lab.trials()
    assert lab.workspace.store.fold.studies["s"].stopped_by


def test_the_status_file_follows(lab: Lab) -> None:
    tuner = lab.tuner()
    tuner.step()
    tuner.close()
    assert [line["state"] for line in json.loads(lab.layout.status_file.read_bytes()).values()] == ["queued"] * 3


def test_cancel_ends_what_has_not_ended(lab: Lab) -> None:
    lab.tuner().step()
    lab.start("s_0001")
    end_study(lab.workspace, "s", is_cancelled=True)
    records = lab.workspace.store.records
    assert [records[f"s_000{number}"].state for number in range(3)] == ["abandoned", "running", "abandoned"]
    assert records["s_0001"].desired == "abandoned", "its pod stops it"


def test_tuners_that_take_turns_ask_for_each_trial_once(lab: Lab) -> None:
    tuners = [lab.tuner() for _ in range(3)]
    asked: list[str] = []
    for turn in range(60):
        step = tuners[turn % 3].step()
        asked += step.asked
        if step.is_over:
            break
        open_ = [one.job for one in lab.trials() if one.status is Status.QUEUED]
        if open_:
            lab.end(open_[0], {"loss": 1.0})
    assert asked == [f"s_{number:04d}" for number in range(8)]
    assert [number for number, params, again in suggested_again(lab.layout) if params != again] == []


def test_a_tuner_that_was_overtaken_asks_for_what_is_left(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tuner is first between the suggestion and the lock, and another one after that."""
    slow, quick = lab.tuner(FILE.replace("parallel: 3", "parallel: 2")), lab.tuner()
    original = type(slow)._suggest
    overtaken = []

    def suggest(self: Any, study: Any, numbers: range) -> Any:
        found = original(self, study, numbers)
        if self is slow and len(overtaken) < 2:
            overtaken.append(numbers)
            quick.step()
            lab.end_all()
        return found

    monkeypatch.setattr(type(slow), "_suggest", suggest)
    slow.step()
    assert len(overtaken) == 2
    finish(lab)
    trials = lab.trials()
    assert [one.number for one in trials] == list(range(8))
    lines = lab.layout.submitted_manifest.read_text().splitlines()
    assert len(lines) == 8, "what was suggested in vain has left nothing"
    assert [number for number, params, again in suggested_again(lab.layout) if params != again] == []


def test_a_new_generation_of_the_journal_changes_nothing(lab: Lab) -> None:
    tuner = lab.tuner()
    tuner.step()
    lab.end_all()
    tuner.step()
    before = lab.trials()
    assert lab.workspace.store.rotate()
    assert lab.trials() == before
    assert Lab(lab.root).trials() == before
    assert tuner.step().asked == []
    finish(lab)
    assert [one.number for one in lab.trials()] == list(range(8))


def test_faults_of_the_entries_are_said_before_anything_is_written(lab: Lab) -> None:
    with pytest.raises(UsageError, match="needs nobody: there is no such job"):
        lab.tuner(FILE.replace("gpus: 0", "gpus: 0, needs: [nobody]"))
    with pytest.raises(UsageError, match="gpus"):
        lab.tuner(FILE.replace("gpus: 0", "gpus: many"))
    with pytest.raises(DispatcherError, match="lrate"):
        lab.tuner(FILE.replace("{lr}", "{lrate}"))
    assert not lab.layout.submitted_manifest.exists()
    assert not lab.layout.journal_dir.exists()


def test_trials_run_a_copy_of_the_code_where_that_is_wanted(lab: Lab) -> None:
    repository = Repository(lab.root)
    repository.write(".gitignore", "run_state/\nmatrix/\n")
    repository.commit()
    tuner = lab.tuner(FILE.replace("gpus: 0", "gpus: 0, snapshot: true"))
    tuner.step()
    repository.write("code.py", "x = 1\n")
    commit = repository.commit()
    lab.end_all()
    tuner.step()
    lab.trials()
    copies = [record.snapshot or "" for record in lab.workspace.store.records.values()]
    assert len(set(copies[:3])) == 1
    assert copies[3].startswith(commit[:7])
    assert copies[0] != copies[3], "each trial runs the code as it was when it was asked for"


def test_a_job_of_the_same_name_is_no_trial(lab: Lab) -> None:
    lab.workspace.submit("true", name="s_0001")
    tuner = lab.tuner()
    with pytest.raises(StateError, match="there is a job s_0001 already"):
        tuner.step()
    assert lab.trials() == []


def test_a_small_space_is_tried_once_and_then_the_study_is_over(tmp_path: Path) -> None:
    """A trial that diverged was tried; one that was cancelled may come again."""
    space = "lr: {log_uniform: [1e-5, 1e-2]}, layers: {integer: [2, 12]}"
    text = FILE.replace(space, "lr: {choice: [1, 2, 3]}, layers: {choice: [1]}")
    lab = Lab(tmp_path / "lab", text)
    tuner = lab.tuner()
    tuner.step()
    assert sorted(one.params["lr"] for one in lab.trials()) == [1, 2, 3]
    lab.start("s_0000")
    lab.start("s_0001")
    lab.end("s_0000", {"loss": None}, attempt=1)
    lab.end("s_0001", {"loss": 2.0}, attempt=1)
    lab.workspace.cancel("s_0002")
    step = tuner.step()
    first, _, third, fourth = step.trials
    assert (first.is_bad, third.is_bad) == (True, False)
    assert fourth.params == third.params and not step.is_over
    lab.start("s_0003")
    lab.end("s_0003", {"loss": 1.0}, attempt=1)
    step = tuner.step()
    assert step.is_over and step.is_exhausted and step.best is not None and step.best.job == "s_0003"
    assert not step.asked and len(step.trials) == 4
