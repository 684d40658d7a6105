"""What has become of the trials of a study: its lines in the journal and the records of its jobs. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dispatcher.run_state.facets.studies import RungReached, Study, Trial, TrialMeasured
from dispatcher.run_state.states import BY_HAND, ENDED, IN_FLIGHT, PRUNED, Record, State
from dispatcher.tuning.settings import accepts


class Status(enum.StrEnum):
    """What a trial is. `UNREAD`: its job is done, and no tuner has read its value yet."""

    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    UNREAD = "unread"
    DONE = "done"
    PRUNED = "pruned"
    FAILED = "failed"
    DELETED = "deleted"


NOT_FINITE: Final = "is NaN or infinite"
_NAN_AT: Final = "NaN at step"
# Why jobs fail by themselves.
_OWN_ENDS: Final = ("exit", "signal", "out of memory", "time limit")
# These are waited for, and these make use of `parallel`.
OPEN: Final = frozenset({Status.QUEUED, Status.HELD, Status.RUNNING, Status.UNREAD})
OCCUPYING: Final = frozenset({Status.QUEUED, Status.RUNNING})


class TrialState(msgspec.Struct, frozen=True):
    """One trial now. `attempt` is the last one of its job; `why` says why a trial has no value.

    `value` is the objective of a trial that is done, and the last value at a rung of one that was pruned. `rungs` has
    the values at all rungs that it has reached. `is_stopping`: its last attempt was asked to end at one.
    `is_bad`: it has probably failed by its parameters, so that the sampler counts it as the worst.
    """

    number: int
    trial: Trial
    status: Status
    attempt: int = 0
    value: float | None = None
    why: str = ""
    rungs: Mapping[int, float | None] = {}
    is_stopping: bool = False
    is_bad: bool = False

    @property
    def job(self) -> str:
        return self.trial.job

    @property
    def was_tried(self) -> bool:
        """Whether its parameters need not be tried again: not of one that was deleted, cancelled, lost and the like."""
        return self.is_bad or self.status not in (Status.FAILED, Status.DELETED)

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
    rungs = study.rungs.get(number, {})
    status, value, why = _outcome(record, study.measured.get(number), rungs)
    reached = {rung: one.value for rung, one in sorted(rungs.items())}
    is_stopping = was_stopped(rungs.values(), record.attempt)
    is_bad = status is Status.FAILED and _is_bad(record, why)
    return TrialState(number, trial, status, record.attempt, value, why, reached, is_stopping, is_bad)


def _is_bad(record: Record, why: str) -> bool:
    """Not a trial that was cancelled or lost, could not be set up, or reports nothing under the objective's name."""
    if record.state is State.DONE:
        return record.reason != BY_HAND and (why.endswith(NOT_FINITE) or why.startswith(_NAN_AT))
    return record.state is State.FAILED and (record.reason or "").startswith(_OWN_ENDS)


def _outcome(
    record: Record, measured: TrialMeasured | None, rungs: Mapping[int, RungReached]
) -> tuple[Status, float | None, str]:  # fmt: skip
    """What a trial is, its value, and why it has none."""
    if record.state not in ENDED:
        waits = Status.QUEUED if record.state is State.QUEUED else Status.HELD
        return Status.RUNNING if record.state in IN_FLIGHT else waits, None, ""
    if record.state is not State.DONE or record.reason == BY_HAND:
        return Status.FAILED, None, record.reason or str(record.state)
    is_current = measured is not None and measured.attempt == record.attempt
    if measured is not None and is_current and measured.value is not None:
        return Status.DONE, measured.value, ""
    # One that was asked to end may have done so with exit status 0.
    if record.reason == PRUNED or (is_current and was_stopped(rungs.values(), record.attempt)):
        last = max(rungs, default=0)
        value = rungs[last].value if rungs else None
        if value is None:
            return Status.FAILED, None, f"{_NAN_AT} {last}"
        return Status.PRUNED, value, f"at step {last}"
    return (Status.FAILED, None, measured.why) if measured is not None and is_current else (Status.UNREAD, None, "")


def was_stopped(rungs: Iterable[RungReached], attempt: int) -> bool:
    """Whether this attempt was asked to end at one of the rungs."""
    return any(not one.goes_on and one.attempt == attempt for one in rungs)


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
