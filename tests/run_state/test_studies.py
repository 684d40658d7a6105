"""Studies in the journal: a new generation repeats them, a failed transaction leaves them, a saved fold has them."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.studies import StudySet, StudyStopped, TrialAsked, TrialMeasured
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def settings(trials: int) -> dict[str, Any]:
    return {"space": {"lr": {"uniform": [0.5, 1]}}, "constants": {"method": "m"}, "trials": trials}


def busy(layout: Layout) -> Store:
    """Two studies: one of two versions with four trials, of which two have values, and one that was stopped."""
    store = Store(layout, by="ada@ws1")
    with store.transaction() as tx:
        tx.note(StudySet(study="s", version=1, settings=settings(4)))
        tx.note(StudySet(study="other", version=1, settings=settings(9)))
    for number in range(4):
        with store.transaction() as tx:
            if number == 2:
                tx.note(StudySet(study="s", version=2, settings=settings(5)))
            tx.change(f"s_{number}", Event.QUEUED, Change(state=State.QUEUED))
            params = {"lr": 0.5 + number / 10}
            asked = TrialAsked(study="s", version=1 + number // 2, number=number, params=params, seen=3)
            tx.note(asked, job=f"s_{number}")
    with store.transaction() as tx:
        tx.note(TrialMeasured(study="s", number=0, attempt=1, value=0.25), job="s_0")
        tx.note(TrialMeasured(study="s", number=1, attempt=2, why="no result.json"), job="s_1")
        tx.note(StudyStopped(study="other"))
    return store


def read(layout: Layout) -> Store:
    store = Store(layout, by="reader")
    store.refresh(to_the_end=True)
    return store


def test_the_journal_says_what_a_study_is(layout: Layout) -> None:
    study = read(busy(layout).layout).fold.studies["s"]
    assert (study.version, study.settings, study.next_number) == (2, settings(5), 4)
    assert study.versions == {1: settings(4), 2: settings(5)}
    assert [(one.job, one.version, one.params["lr"]) for one in study.trials.values()] == [
        ("s_0", 1, 0.5), ("s_1", 1, 0.6), ("s_2", 2, 0.7), ("s_3", 2, 0.8),
    ]  # fmt: skip
    assert [(one.attempt, one.value, one.why) for one in study.measured.values()] == [
        (1, 0.25, ""), (2, None, "no result.json"),
    ]  # fmt: skip
    assert not study.stopped_by


def test_a_new_generation_repeats_studies(layout: Layout) -> None:
    store = busy(layout)
    before = {name: study.copy() for name, study in store.fold.studies.items()}
    assert before["other"].stopped_by == "ada@ws1"
    assert store.rotate()
    assert read(layout).fold.studies == before
    # What was folded in the same process goes on.
    assert store.fold.studies == before
    with store.transaction() as tx:
        tx.note(StudySet(study="other", version=1, settings=settings(9)))
    assert not read(layout).fold.studies["other"].stopped_by, "it was resumed"


def test_a_saved_fold_has_studies(layout: Layout) -> None:
    store = busy(layout)
    store.save()
    with store.transaction() as tx:
        tx.note(TrialMeasured(study="s", number=2, attempt=1, value=1.5), job="s_2")
    for for_display in (True, False):
        later = Store(layout, by="reader")
        later.refresh(to_the_end=True, for_display=for_display)
        assert later.fold.studies == store.fold.studies
        assert later.fold.studies["s"].measured[2].value == 1.5


def test_a_transaction_that_fails_leaves_studies_as_they_were(layout: Layout) -> None:
    store = busy(layout)
    before = {name: study.copy() for name, study in store.fold.studies.items()}
    with pytest.raises(RuntimeError), store.transaction() as tx:
        tx.note(StudySet(study="s", version=3, settings=settings(7)))
        tx.note(TrialAsked(study="s", version=3, number=4, params={"lr": 0.9}, seen=9), job="s_4")
        tx.note(TrialMeasured(study="s", number=2, attempt=1, value=1.5), job="s_2")
        tx.note(StudyStopped(study="s"))
        tx.note(StudySet(study="new", version=1, settings=settings(7)))
        raise RuntimeError("on purpose")
    assert store.fold.studies == before
    assert read(layout).fold.studies == before


def test_a_dispatcher_that_does_not_know_studies_keeps_the_records_of_trials(layout: Layout) -> None:
    """The lines about a study change no record."""
    store = busy(layout)
    lines = [line for line in journal.history(layout) if line.event in ("study", "trial", "measured", "study_stopped")]
    assert len(lines) == 10
    assert not any(line.set for line in lines)
    assert [record.state for record in store.records.values()] == [State.QUEUED] * 4
