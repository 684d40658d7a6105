"""In what the releases of Volcano differ, as far as a user of its API can tell."""

from __future__ import annotations

from dataclasses import dataclass

EVENTS_OF_1_5 = ("*", "PodEvicted", "PodFailed", "TaskCompleted", "TaskFailed", "Unknown")
ACTIONS_OF_1_5 = ("AbortJob", "CompleteJob", "RestartJob", "RestartTask", "ResumeJob", "TerminateJob")


@dataclass(frozen=True)
class Dialect:
    """`events` and `actions` are those that a policy may name."""

    # Whether a PodGroup is called JOB-UID, so that a new Job of the same name has a new one.
    is_podgroup_named_by_uid: bool
    # Whether RestartTask restarts one task; before, it was accepted and did nothing.
    restarts_tasks: bool
    # Whether a Queue's status says how much of it is in use.
    reports_allocated: bool
    # Whether a message names the resource that is short.
    names_resources: bool
    events: tuple[str, ...] = EVENTS_OF_1_5
    actions: tuple[str, ...] = ACTIONS_OF_1_5


DIALECTS = {
    "v1.5.1": Dialect(
        is_podgroup_named_by_uid=False, restarts_tasks=False, reports_allocated=False, names_resources=False
    ),
    "master": Dialect(
        is_podgroup_named_by_uid=True,
        restarts_tasks=True,
        reports_allocated=True,
        names_resources=True,
        events=(*EVENTS_OF_1_5, "JobUpdated", "PodPending", "PodRunning"),
        actions=(*ACTIONS_OF_1_5, "RestartPartition", "RestartPod"),
    ),
}
