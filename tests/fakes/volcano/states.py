"""The phases of a Volcano Job: what each action does in each of them. Data in, data out.

Pending -> Running -> Completed or Failed; RestartJob: Restarting -> Pending, or Failed when the retries are used up;
AbortJob: Aborting -> Aborted, from where ResumeJob restarts; TerminateJob: Terminating -> Terminated; CompleteJob:
Completing -> Completed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from api import Object
from dialects import Dialect
from objects import tasks

NONE: frozenset[str] = frozenset()
ENDED = frozenset({"Succeeded", "Failed"})
FINISHED = frozenset({"Completed", "Failed", "Terminated"})
STOPS = {"AbortJob": "Aborting", "TerminateJob": "Terminating", "CompleteJob": "Completing"}
ENDS = {"Aborting": "Aborted", "Terminating": "Terminated", "Completing": "Completed"}
RESTARTS_A_PART = frozenset({"RestartTask", "RestartPod", "RestartPartition"})

# Changes the status; whether the phase is another one then.
Update = Callable[[Object], bool]


def _same(_status: Object) -> bool:
    return False


@dataclass(frozen=True)
class Sync:
    """Make the pods that should be there."""

    update: Update


@dataclass(frozen=True)
class Kill:
    """Delete the pods in other phases than those of `retain`; with `is_partial` only those of the event's task."""

    retain: frozenset[str]
    update: Update = _same
    is_partial: bool = False


def step(job: Object, phase: str, action: str, dialect: Dialect, has_live_pods: bool = True) -> Sync | Kill:
    """What to do with a Job in a phase; the empty phase is that of a Job that nobody has looked at yet."""
    if phase in ("", "Pending", "Running"):
        return _alive(job, phase, action, dialect)
    if phase == "Restarting":
        return _restarting(job, action, dialect, has_live_pods)
    if action == "ResumeJob" and phase in ("Aborting", "Aborted"):
        return Kill(ENDED, _restart)
    if phase in ENDS:
        return Kill(ENDED, partial(_end, ENDS[phase]))
    return Kill(ENDED)


def _alive(job: Object, phase: str, action: str, dialect: Dialect) -> Sync | Kill:
    if action == "RestartJob":
        return Kill(NONE, _restart)
    if action in STOPS:
        return Kill(ENDED, partial(_become, STOPS[action]))
    if phase == "Running" and dialect.restarts_tasks and action in RESTARTS_A_PART:
        return Kill(NONE, _restart, is_partial=True)
    return Sync(partial(_running if phase == "Running" else _pending, job))


def _restarting(job: Object, action: str, dialect: Dialect, has_live_pods: bool) -> Sync | Kill:
    update = partial(_restarted, job)
    if not dialect.restarts_tasks:
        return Kill(NONE, update)
    if action in RESTARTS_A_PART:
        return Kill(NONE, update, is_partial=True)
    if action == "SyncJob" or not has_live_pods:
        return Sync(update)
    return Kill(NONE, update)


def _become(phase: str, status: Object) -> bool:
    status["state"]["phase"] = phase
    return True


def _restart(status: Object) -> bool:
    status["retryCount"] = status.get("retryCount", 0) + 1
    return _become("Restarting", status)


def _restarted(job: Object, status: Object) -> bool:
    if status.get("retryCount", 0) >= job["spec"].get("maxRetry", 0):
        return _become("Failed", status)
    replicas = sum(task.get("replicas", 0) for task in tasks(job))
    if replicas - status.get("terminating", 0) >= status.get("minAvailable", 0):
        return _become("Pending", status)
    return False


def _end(phase: str, status: Object) -> bool:
    if any(status.get(count) for count in ("terminating", "pending", "running")):
        return False
    return _become(phase, status)


def _pending(job: Object, status: Object) -> bool:
    begun = sum(status.get(count, 0) for count in ("running", "succeeded", "failed"))
    return begun >= job["spec"].get("minAvailable", 0) and _become("Running", status)


def _running(job: Object, status: Object) -> bool:
    spec, succeeded = job["spec"], status.get("succeeded", 0)
    replicas = sum(task.get("replicas", 0) for task in tasks(job))
    enough = spec.get("minSuccess")
    if enough is not None and succeeded >= enough:
        return _become("Completed", status)
    if replicas == 0 or succeeded + status.get("failed", 0) != replicas:
        return False
    if _is_a_task_short(job, status) or succeeded < (spec.get("minAvailable", 0) if enough is None else enough):
        return _become("Failed", status)
    return _become("Completed", status)


def _is_a_task_short(job: Object, status: Object) -> bool:
    """Whether fewer pods of a task have succeeded than it needs; only asked where the job needs that of all tasks."""
    minimums = {task["name"]: task.get("minAvailable") for task in tasks(job)}
    needed = sum(task.get("replicas", 0) if task.get("minAvailable") is None else task["minAvailable"]
                 for task in tasks(job))  # fmt: skip
    if job["spec"].get("minAvailable", 0) < needed:
        return False
    counts = status.get("taskStatusCount") or {}
    return any(
        counts[name]["phase"].get("Succeeded", 0) < minimum
        for name, minimum in minimums.items()
        if minimum is not None and name in counts
    )
