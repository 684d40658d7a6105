"""Adaptive sweeps in the journal: studies, their trials, and what the trials have reached. Pure.

A trial is a job; its record alone says what becomes of it. The journal has besides: the settings of the study, the
parameters that were suggested for each trial, and the value of each attempt that has succeeded. So the study can be
built again, the same on every host, from the journal alone. A new generation of the journal repeats all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from dispatcher.run_state.events import Event, Note
from dispatcher.run_state.facets.facet import ByName, Repeated
from dispatcher.run_state.journal import Line
from dispatcher.run_state.records import Records


class StudySet(Note, frozen=True, kw_only=True, omit_defaults=True):
    """A study begins, or goes on with these settings: see tuning.settings. Ends a stop.

    `version` rises by one with every change of what trials mean: the space, and what all of them have in common.
    """

    event = Event.STUDY
    study: str
    version: int
    settings: Mapping[str, Any]


class StudyStopped(Note, frozen=True, kw_only=True, omit_defaults=True):
    """No further trials until the study is resumed."""

    event = Event.STUDY_STOPPED
    study: str


class TrialAsked(Note, frozen=True, kw_only=True, omit_defaults=True):
    """Beside the job of the line: a trial, and the parameters that were suggested for it.

    `seen` is the `seq` of the last line that was known when they were.
    """

    event = Event.TRIAL
    study: str
    version: int
    number: int
    params: Mapping[str, Any]
    seen: int


class TrialMeasured(Note, frozen=True, kw_only=True, omit_defaults=True):
    """The objective of an attempt that has succeeded; None, and why, where it has no finite value."""

    event = Event.MEASURED
    study: str
    number: int
    attempt: int
    value: float | None = None
    why: str = ""


class RungReached(Note, frozen=True, kw_only=True, omit_defaults=True):
    """The value of a trial at a rung, None for NaN, as the attempt reported it at `step`, and whether it goes on.

    Written once for each trial and rung, whatever attempts follow.
    """

    event = Event.RUNG
    study: str
    number: int
    attempt: int
    rung: int
    step: float
    value: float | None = None
    goes_on: bool = True


class Trial(msgspec.Struct, frozen=True):
    job: str
    version: int
    params: Mapping[str, Any]
    seen: int


class Study(msgspec.Struct):
    """What the journal says of one study. `versions` has the last settings of each version.

    `rungs` has those that each trial has reached, by their steps.

    `stopped_by` is who has stopped it, and `stopped_at` when, a journal time; empty while it goes on.
    """

    version: int
    settings: Mapping[str, Any]
    versions: dict[int, Mapping[str, Any]]
    trials: dict[int, Trial] = {}
    measured: dict[int, TrialMeasured] = {}
    rungs: dict[int, dict[int, RungReached]] = {}
    stopped_by: str = ""
    stopped_at: str = ""

    @property
    def next_number(self) -> int:
        return max(self.trials, default=-1) + 1

    def copy(self) -> Study:
        rungs = {number: dict(of_trial) for number, of_trial in self.rungs.items()}
        return msgspec.structs.replace(
            self, versions=dict(self.versions), trials=dict(self.trials), measured=dict(self.measured), rungs=rungs
        )


class Studies(ByName[Study]):
    """By name. A study that a copy has as well is copied before it changes."""

    events: ClassVar = frozenset({Event.STUDY, Event.STUDY_STOPPED, Event.TRIAL, Event.MEASURED, Event.RUNG})
    form: ClassVar = dict[str, Study]

    def __init__(self, studies: Mapping[str, Study] = {}) -> None:
        super().__init__(studies)
        self._shared = set(studies)

    def apply(self, line: Line) -> Studies:
        name = str((line.data or {}).get("study"))
        if name in self._shared:
            self._shared.remove(name)
            self[name] = self[name].copy()
        _FOLDS[line.event](self, line)
        return self

    def copy(self) -> Studies:
        self._shared.update(self)
        return Studies(self)

    def lines(self, records: Records) -> Iterator[Repeated]:
        for name, study in self.items():
            yield from _lines(name, study)


def _set(studies: Studies, line: Line) -> None:
    new = line.read(StudySet)
    study = studies.get(new.study)
    if study is None:
        study = studies[new.study] = Study(new.version, new.settings, {})
    study.version, study.settings = new.version, new.settings
    study.versions[new.version] = new.settings
    study.stopped_by = study.stopped_at = ""


def _stop(studies: Studies, line: Line) -> None:
    study = studies.get(line.read(StudyStopped).study)
    if study is not None:
        study.stopped_by, study.stopped_at = line.by, line.at


def _ask(studies: Studies, line: Line) -> None:
    asked = line.read(TrialAsked)
    study = studies.get(asked.study)
    if study is not None and line.job is not None:
        study.trials[asked.number] = Trial(line.job, asked.version, asked.params, asked.seen)


def _measure(studies: Studies, line: Line) -> None:
    found = line.read(TrialMeasured)
    study = studies.get(found.study)
    if study is not None:
        study.measured[found.number] = found


def _reach(studies: Studies, line: Line) -> None:
    found = line.read(RungReached)
    study = studies.get(found.study)
    if study is not None:
        study.rungs.setdefault(found.number, {})[found.rung] = found


_FOLDS: Final[Mapping[Event, Callable[[Studies, Line], None]]] = {
    Event.STUDY: _set,
    Event.STUDY_STOPPED: _stop,
    Event.TRIAL: _ask,
    Event.MEASURED: _measure,
    Event.RUNG: _reach,
}


def _lines(name: str, study: Study) -> Iterator[Repeated]:
    for version, settings in study.versions.items():
        yield Repeated(StudySet(study=name, version=version, settings=settings))
    for number, trial in study.trials.items():
        asked = TrialAsked(study=name, version=trial.version, number=number, params=trial.params, seen=trial.seen)
        yield Repeated(asked, trial.job)
    for measured in study.measured.values():
        yield Repeated(measured, _job_of(study, measured.number))
    for rungs in study.rungs.values():
        for reached in rungs.values():
            yield Repeated(reached, _job_of(study, reached.number))
    if study.stopped_by:
        yield Repeated(StudyStopped(study=name), at=study.stopped_at, by=study.stopped_by)


def _job_of(study: Study, number: int) -> str | None:
    return study.trials[number].job if number in study.trials else None
