"""What has become of the trials of a study: its lines in the journal and the records of its jobs. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, Record, State
from dispatcher.run_state.studies import Study, Trial
from dispatcher.tuning.settings import accepts


class Status(enum.StrEnum):
    """What a trial is. `UNREAD`: its job is done, and no tuner has read its value yet."""

    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    UNREAD = "unread"
    DONE = "done"
    FAILED = "failed"
    DELETED = "deleted"


# These are waited for, and these make use of `parallel`.
OPEN: Final = frozenset({Status.QUEUED, Status.HELD, Status.RUNNING, Status.UNREAD})
OCCUPYING: Final = frozenset({Status.QUEUED, Status.RUNNING})


class TrialState(msgspec.Struct, frozen=True):
    """One trial now. `attempt` is the last one of its job; `why` says why a trial has no value."""

    number: int
    trial: Trial
    status: Status
    attempt: int = 0
    value: float | None = None
    why: str = ""

    @property
    def job(self) -> str:
        return self.trial.job

    @property
    def params(self) -> Mapping[str, Any]:
        return self.trial.params


def trial_states(study: Study, records: Mapping[str, Record]) -> list[TrialState]:
    """All trials in the order of their numbers."""
    return [_state(study, number, records.get(study.trials[number].job)) for number in sorted(study.trials)]


def _state(study: Study, number: int, record: Record | None) -> TrialState:
    trial = study.trials[number]
    if record is None:
        return TrialState(number, trial, Status.DELETED)

    def state(status: Status, value: float | None = None, why: str = "") -> TrialState:
        return TrialState(number, trial, status, record.attempt, value, why)

    if record.state in IN_FLIGHT:
        return state(Status.RUNNING)
    if record.state in (State.QUEUED, State.HELD):
        return state(Status(record.state.value))
    if record.state is not State.DONE or record.reason == BY_HAND:
        return state(Status.FAILED, why=record.reason or str(record.state))
    found = study.measured.get(number)
    if found is None or found.attempt != record.attempt:
        return state(Status.UNREAD)
    return state(Status.FAILED if found.value is None else Status.DONE, found.value, found.why)


def best_of(trials: Iterable[TrialState], goal: str) -> TrialState | None:
    """The done trial with the best value, the earliest of equal ones."""
    done = [(one.value, one) for one in trials if one.status is Status.DONE and one.value is not None]
    if not done:
        return None
    sign = 1 if goal == "min" else -1
    return min(done, key=lambda pair: (sign * pair[0], pair[1].number))[1]


def counted_trials(trials: Iterable[TrialState]) -> int:
    """How many of the total there are: deleted ones are replaced."""
    return sum(1 for one in trials if one.status is not Status.DELETED)


def comparable(study: Study, trials: Iterable[TrialState]) -> list[TrialState]:
    """Those that count for the present version of the study."""
    return [
        one
        for one in trials
        if one.trial.version == study.version
        or accepts(study.settings, study.versions[one.trial.version], one.params)
    ]  # fmt: skip
