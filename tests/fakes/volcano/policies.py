"""Which action an event of a Job's pod means, by the policies of its task and of the Job."""

from __future__ import annotations

from dataclasses import dataclass

from api import Object
from objects import Key, tasks

SYNC = "SyncJob"
OUT_OF_SYNC = "OutOfSync"


@dataclass(frozen=True)
class Request:
    """Something happened to a Job: `version` is that of the Job at which the pod was made, `action` a person's wish."""

    job: Key
    event: str = OUT_OF_SYNC
    task: str = ""
    pod: str = ""
    exit_code: int = 0
    version: int = 0
    action: str = ""


def action_for(job: Object, request: Request) -> str:
    if request.action:
        return request.action
    if request.event == OUT_OF_SYNC or request.version < job.get("status", {}).get("version", 0):
        # What happens to the pods of an earlier run of the Job is no news of this one.
        return SYNC
    of_task = [task.get("policies") or [] for task in tasks(job) if task["name"] == request.task]
    for policy in [*(of_task[0] if of_task else []), *(job["spec"].get("policies") or [])]:
        events = {*(policy.get("events") or []), policy.get("event", "")}
        if request.event and events & {request.event, "*"}:
            return str(policy["action"])
        if request.exit_code and policy.get("exitCode") == request.exit_code:
            return str(policy["action"])
    return SYNC
