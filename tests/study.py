"""A study in a workspace whose jobs a test ends by itself, without pods."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dispatcher.api import Workspace
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.studies import TrialAsked
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.requests import FRESH_START
from dispatcher.run_state.states import State
from dispatcher.tuning.sampling import Sampling
from dispatcher.tuning.settings import read_settings
from dispatcher.tuning.trials import TrialState, comparable, trial_states
from dispatcher.tuning.tuner import Tuner
from dispatcher.workspace import Layout

FILE = """
name: s
defaults: {command: "true {lr} {layers}", gpus: 0}
space: {lr: {log_uniform: [1e-5, 1e-2]}, layers: {integer: [2, 12]}}
objective: {value: loss, goal: min}
sampler: {tpe: {startup: 3}}
trials: 8
parallel: 3
"""


class Lab:
    """A workspace at `root` with `tune.yaml`."""

    def __init__(self, root: Path, text: str = FILE) -> None:
        root.mkdir(exist_ok=True)
        (root / "dispatcher.yaml").touch()
        self.root = root
        self.layout = Layout(root)
        self.file = root / "tune.yaml"
        self.file.write_text(text)
        self.workspace = Workspace(root)

    def tuner(self, text: str | None = None, *, resume: bool = False) -> Tuner:
        """One that has begun, as in a process of its own."""
        if text is not None:
            self.file.write_text(text)
        tuner = Tuner(Workspace(self.root), read_settings(self.file))
        tuner.begin(tuner.plan(resume=resume))
        return tuner

    def trials(self, name: str = "s") -> list[TrialState]:
        self.workspace.store.refresh(to_the_end=True)
        return trial_states(self.workspace.store.fold.studies[name], self.workspace.store.records)

    def change(self, job: str, event: Event, change: Change) -> None:
        with self.workspace.store.transaction() as tx:
            tx.change(job, event, change)

    def start(self, job: str) -> int:
        """Claim the job as a pod does; the number of the attempt."""
        self.workspace.store.refresh(to_the_end=True)
        attempt = self.workspace.store.records[job].attempt + 1
        with self.workspace.store.transaction() as tx:
            assert tx.make_attempt(job, attempt)
            tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=attempt, pod="p"))
        return attempt

    def end(self, job: str, result: Mapping[str, Any] | str | None = None, *, attempt: int = 0) -> None:
        """The attempt, or a new one, ends with exit status 0 and this result."""
        attempt = attempt or self.start(job)
        if result is not None:
            text = result if isinstance(result, str) else json.dumps(result)
            self.layout.attempt(job, attempt).result.write_text(text)
        self.change(job, Event.DONE, Change(state=State.DONE, exit_code=0))

    def end_all(self) -> None:
        """Every trial that has not ended ends with the value that its parameters have."""
        for one in self.trials():
            if one.status in ("queued", "running"):
                self.end(one.job, {"loss": loss_of(one.params)})

    def requeue(self, job: str, reason: str | None = None) -> None:
        event = Event.AUTO_REQUEUED if reason else Event.REQUEUED
        self.change(job, event, FRESH_START | Change(state=State.QUEUED, reason=reason))


def loss_of(params: Mapping[str, Any]) -> float:
    return float((math.log10(params["lr"]) + 3.5) ** 2 + 0.05 * abs(params["layers"] - 6))


def suggested_again(layout: Layout) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    """Each trial of the journal: its number, its parameters, and those that the lines before it give."""
    lines = list(journal.history(layout))
    for line in lines:
        if line.event is Event.TRIAL:
            asked = line.read(TrialAsked)
            fold = Fold()
            # Of those that were written later, the trials that were asked for together with this one.
            fold.extend(
                one
                for one in lines
                if one.seq <= asked.seen or (one.seq < line.seq and one.event in (Event.QUEUED, Event.TRIAL))
            )
            study = fold.studies[asked.study]
            known = comparable(study, trial_states(study, fold.records))
            yield asked.number, asked.params, Sampling(study.settings, known).suggest(asked.number)
