"""Decides at each rung which trials go on, and asks for the end of the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import IN_FLIGHT, State
from dispatcher.run_state.studies import RungReached
from dispatcher.tuning.halving import Halving
from dispatcher.tuning.metric_files import MetricFiles, Reached
from dispatcher.tuning.trials import Status, TrialState, was_stopped
from dispatcher.tuning.writing import Writer

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.run_state.store import Transaction


class Rungs:
    """The rungs of the study `name`, whose values are the better the lower (goal `min`) or the higher they are."""

    def __init__(self, workspace: Workspace, writer: Writer, name: str, halving: Halving, goal: str) -> None:
        self._store = workspace.store
        self._writer = writer
        self._name = name
        self._halving = halving
        self._goal = goal
        self._files = MetricFiles(workspace.layout, halving.metric, halving.rungs())

    def decide(self, trials: Iterable[TrialState]) -> None:
        """Record the rungs that these trials have reached since the last time, and stop those that do not go on.

        In one transaction, in which each decision counts for the next: of several tuners one decides.
        """
        watched = [one for one in trials if one.status in (Status.RUNNING, Status.UNREAD)]
        self._files.forget_others([one.job for one in watched])
        news = [
            (reached, one)
            for one in watched
            for reached in self._files.reached(one.job, one.attempt)
            if reached.rung not in one.rungs and not one.is_stopping
        ]
        if not news:
            return
        # Lower rungs first: a trial that was not looked at for long is judged at each of them.
        news.sort(key=lambda pair: (pair[0].rung, pair[1].number))
        with self._writer.transaction() as tx:
            for reached, one in news:
                self._decide(tx, reached, one)

    def _decide(self, tx: Transaction, reached: Reached, one: TrialState) -> None:
        study = self._store.fold.studies[self._name]
        record, known = tx.record(one.job), study.rungs.get(one.number, {})
        if record is None or record.attempt != one.attempt or reached.rung in known:
            return
        if record.state not in (*IN_FLIGHT, State.DONE) or was_stopped(known.values(), one.attempt):
            # Queued again meanwhile: it is judged when it runs. Or it is being stopped, and has gone on a little.
            return
        others = [rungs[reached.rung].value for rungs in study.rungs.values() if reached.rung in rungs]
        # One that is done counts for others, and nothing is decided.
        is_done = record.state is State.DONE
        goes_on = is_done or self._halving.goes_on(reached.value, others, self._goal)
        rung = RungReached(
            study=self._name, number=one.number, attempt=one.attempt, rung=reached.rung, step=reached.step,
            value=reached.value, goes_on=goes_on,
        )  # fmt: skip
        tx.note(rung, job=one.job)
        if not goes_on and record.desired is None:
            tx.change(one.job, Event.REQUESTED, Change(desired=State.DONE))
