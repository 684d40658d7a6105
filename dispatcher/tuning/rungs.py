"""Decides at each rung which trials go on, and asks for the end of the others.

What an attempt has at a rung is the metric's value at the first step at or after it, among the values that count then
(query/metrics.py). Where there is no file of metrics (the job writes none, or its host does not see the workspace),
what `report_progress` has written last counts as a line.
"""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.base.values import number_of
from dispatcher.query.attempts import parse_object, read_small
from dispatcher.query.metric_lines import is_step
from dispatcher.query.metrics import JobMetrics, Series, empty_series
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.studies import RungReached
from dispatcher.run_state.states import IN_FLIGHT, State
from dispatcher.tuning.halving import Halving
from dispatcher.tuning.trials import Status, TrialState, was_stopped
from dispatcher.tuning.writing import Writer
from dispatcher.workspace import AttemptPaths, Layout

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.run_state.store import Transaction


class Reached(msgspec.Struct, frozen=True):
    """What an attempt had at a rung; `value` is None for one that is not finite."""

    rung: int
    step: float
    value: float | None


class RungValues:
    """The values of `metric` at the `rungs` of attempts."""

    def __init__(self, layout: Layout, metric: str, rungs: Sequence[int]) -> None:
        self._layout = layout
        self._metric = metric
        self._rungs = rungs
        self._read: dict[str, JobMetrics] = {}
        self._reported: dict[str, Series] = {}

    def reached(self, job: str, attempt: int) -> list[Reached]:
        """The rungs that this attempt has reached so far, lowest first. Reads what was appended since the last time."""
        read = self._read.get(job)
        if read is None:
            read = self._read[job] = JobMetrics(self._layout.job_dir(job), wants=self._metric.__eq__)
        paths = self._layout.attempt(job, attempt)
        if mount_of(self._layout.jobs_dir).is_network:
            # It is there as soon as the job has written its first line.
            with contextlib.suppress(OSError):
                files.refresh_names(paths.directory)
        read.read(attempt)
        series = read.series.get(self._metric)
        if series is None and not any(part.is_there for part in read.parts):
            series = self._reported.setdefault(job, empty_series(job, self._metric))
            _add_progress(series, paths, attempt)
        return [] if series is None else self._at_rungs(series)

    def _at_rungs(self, series: Series) -> list[Reached]:
        places = [(rung, bisect.bisect_left(series.steps, rung)) for rung in self._rungs]
        return [
            Reached(rung, float(series.steps[place]), value if math.isfinite(value := series.values[place]) else None)
            for rung, place in places
            if place < len(series)
        ]

    def forget_others(self, jobs: Collection[str]) -> None:
        """Keep nothing of any other job."""
        for job in self._read.keys() - set(jobs):
            del self._read[job]
            self._reported.pop(job, None)


def _add_progress(series: Series, paths: AttemptPaths, attempt: int) -> None:
    """Append the step and the value of a progress.json, unless it has none."""
    progress = parse_object(read_small(paths.progress)) or {}
    step, metrics = progress.get("step"), progress.get("metrics")
    # The journal cannot hold a step that is infinite.
    if step is None or not is_step(step) or not isinstance(metrics, dict) or series.metric not in metrics:
        return
    value = number_of(metrics[series.metric])
    if value is not None:
        series.add(step, math.nan, value, attempt)


class Rungs:
    """The rungs of the study `name`, whose values are the better the lower (goal `min`) or the higher they are."""

    def __init__(self, workspace: Workspace, writer: Writer, name: str, halving: Halving, goal: str) -> None:
        self._store = workspace.store
        self._writer = writer
        self._name = name
        self._halving = halving
        self._goal = goal
        self._values = RungValues(workspace.layout, halving.metric, halving.rungs())

    def decide(self, trials: Iterable[TrialState]) -> None:
        """Record the rungs that these trials have reached since the last time, and stop those that do not go on.

        In one transaction, in which each decision counts for the next: of several tuners one decides.
        """
        watched = [one for one in trials if one.status in (Status.RUNNING, Status.UNREAD)]
        self._values.forget_others([one.job for one in watched])
        news = [
            (reached, one)
            for one in watched
            for reached in self._values.reached(one.job, one.attempt)
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
