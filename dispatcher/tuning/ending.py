"""Ends a study: no new trials by any tuner, and its jobs cancelled if that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.run_state.facets.studies import StudyStopped
from dispatcher.run_state.requests import decide_state
from dispatcher.run_state.states import State
from dispatcher.tuning.trials import OPEN, Status, trial_states

if TYPE_CHECKING:
    from dispatcher.api import Workspace


def end_study(workspace: Workspace, name: str, *, is_cancelled: bool) -> list[str]:
    """Stop the study, which there is; the jobs of its trials that had not ended."""
    store = workspace.store
    with workspace.transaction() as tx:
        study = store.fold.studies[name]
        if not study.stopped_by:
            tx.note(StudyStopped(study=name))
        trials = trial_states(study, store.records)
        left = [one.job for one in trials if one.status in OPEN and one.status is not Status.UNREAD]
        for job in left if is_cancelled else ():
            record = tx.record(job)
            decision = decide_state(State.ABANDONED, record, record) if record is not None else None
            if decision is not None and decision.event is not None:
                tx.change(job, decision.event, decision.change)
    return left
