"""Volcano's admission of Jobs: the defaults that it fills in, and what it refuses, in its words."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator

from api import Object
from dialects import Dialect
from objects import SCHEDULER, tasks
from plugins import PLUGINS

DEFAULT_QUEUE = "default"
DEFAULT_RETRIES = 3
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
LONGEST_NAME = 63

# What the API server says about a pod's template: one text for each mistake.
TemplateErrors = Callable[[Object], list[str]]
# A Queue by name, or the words of the API server about one that is not there.
FindQueue = Callable[[str], Object | str]


def defaults(job: Object) -> list[Object]:
    """A JSON patch with what the Job leaves open."""
    spec = job["spec"]
    patch = [
        {"op": "add", "path": f"/spec/{name}", "value": value}
        for name, value in (("queue", DEFAULT_QUEUE), ("schedulerName", SCHEDULER), ("maxRetry", DEFAULT_RETRIES))
        if not spec.get(name)
    ]
    changed = copy.deepcopy(tasks(job))
    for index, task in enumerate(changed):
        task["name"] = task.get("name") or f"default{index}"
        task.setdefault("minAvailable", task.get("replicas", 0))
        task["maxRetry"] = task.get("maxRetry") or DEFAULT_RETRIES
        pod = task.get("template", {}).get("spec", {})
        if pod.get("hostNetwork") and not pod.get("dnsPolicy"):
            pod["dnsPolicy"] = "ClusterFirstWithHostNet"
    if changed != tasks(job):
        patch.append({"op": "replace", "path": "/spec/tasks", "value": changed})
    if not spec.get("minAvailable"):
        least = sum(task["minAvailable"] for task in changed)
        patch.append({"op": "add", "path": "/spec/minAvailable", "value": least})
    return patch


def why_refused(job: Object, dialect: Dialect, find_queue: FindQueue, template_errors: TemplateErrors) -> str:
    """Why a new Job is refused; empty when it is not."""
    spec = job["spec"]
    if spec.get("minAvailable", 0) < 0:
        return "job 'minAvailable' must be >= 0."
    if spec.get("maxRetry", 0) < 0:
        return "'maxRetry' cannot be less than zero."
    if spec.get("ttlSecondsAfterFinished", 0) < 0:
        return "'ttlSecondsAfterFinished' cannot be less than zero."
    if not tasks(job):
        return "No task specified in job spec"
    text = "".join(_task_problems(job, dialect, template_errors))
    name = job["metadata"]["name"]
    if len(name) > LONGEST_NAME:
        text += f"create job with name {name} validate failed [name part must be no more than 63 characters]"
    if sum(task.get("replicas", 0) for task in tasks(job)) < spec.get("minAvailable", 0):
        text += " job 'minAvailable' should not be greater than total replicas in tasks;"
    text += _policy_problem(spec.get("policies"), "spec.policies", dialect)
    text += "".join(f" unable to find job plugin: {plugin};" for plugin in spec.get("plugins", {})
                    if plugin not in PLUGINS)  # fmt: skip
    text += _volume_problem(spec.get("volumes") or [])
    queue = find_queue(spec.get("queue", ""))
    if isinstance(queue, str):
        text += f" unable to find job queue: {queue};"
    elif (state := queue.get("status", {}).get("state", "")) != "Open":
        name = queue["metadata"]["name"]
        text += f" can only submit job to queue with state `Open`, queue `{name}` status is `{state}`;"
    return text.strip()


def _task_problems(job: Object, dialect: Dialect, template_errors: TemplateErrors) -> Iterator[str]:
    job_name, seen = job["metadata"]["name"], set()
    for index, task in enumerate(tasks(job)):
        name, replicas, least = task.get("name", ""), task.get("replicas", 0), task.get("minAvailable", 0)
        where = f"in task: {name}, job: {job_name};"
        if replicas < 0:
            yield f" 'replicas' < 0 {where}"
        if least < 0:
            yield f" 'minAvailable' < 0 {where}"
        elif least > replicas:
            yield f" 'minAvailable' is greater than 'replicas' {where}"
        problems = [LABEL_TEXT] * (not LABEL.fullmatch(name))
        problems += ["must be no more than 63 characters"] * (len(name) > LONGEST_NAME)
        if problems:
            yield f" [{' '.join(problems)}];"
        if name in seen:
            yield f" duplicated task name {name};"
            return
        seen.add(name)
        yield _policy_problem(task.get("policies"), "spec.tasks.policies", dialect)
        pod = f"{job_name}-{name}-{index}"
        if len(pod) > LONGEST_NAME:
            yield f"create pod with name {pod} validate failed [name part must be no more than 63 characters];"
        if errors := template_errors(task.get("template", {})):
            yield f"spec.task[{index}]." + "".join(f"{error}. " for error in errors)


def _policy_problem(policies: list[Object] | None, where: str, dialect: Dialect) -> str:
    problem = next(_policy_problems(policies or [], where, dialect), "")
    if not problem:
        return ""
    valid = f"valid events are [{' '.join(dialect.events)}], valid actions are [{' '.join(dialect.actions)}]"
    return f"1 error occurred:\n\t* {problem}\n\n {valid};"


def _policy_problems(policies: list[Object], where: str, dialect: Dialect) -> Iterator[str]:
    seen: list[str] = []
    codes: list[int] = []
    for policy in policies:
        events = list(dict.fromkeys([*policy.get("events", []), *([policy["event"]] if policy.get("event") else [])]))
        code = policy.get("exitCode")
        if events and code is not None:
            yield "must not specify event and exitCode simultaneously"
        elif not events and code is None:
            yield "either event and exitCode should be specified"
        elif code == 0:
            yield "0 is not a valid error code"
        elif code in codes:
            yield f"duplicate exitCode {code}"
        for event in events:
            if event not in dialect.events:
                yield f'{where}: Invalid value: "{event}": invalid policy event'
            if policy.get("action") not in dialect.actions:
                yield f'{where}: Invalid value: "{policy.get("action", "")}": invalid policy action'
            if event in seen:
                yield f"duplicate event {event}  across different policy"
            seen.append(event)
        if code is not None:
            codes.append(code)
    if "*" in seen and len(seen) > 1:
        yield "if there's * here, no other policy should be here"


def _volume_problem(volumes: list[Object]) -> str:
    paths: set[str] = set()
    for volume in volumes:
        path, name, claim = volume.get("mountPath", ""), volume.get("volumeClaimName", ""), volume.get("volumeClaim")
        if not path:
            return " mountPath is required;"
        if path in paths:
            return f" duplicated mountPath: {path};"
        if claim is None and not name:
            return " either VolumeClaim or VolumeClaimName must be specified;"
        paths.add(path)
    return ""


def why_not_changed(old: Object, new: Object) -> str:
    """Why a change of a Job is refused; empty when it is not."""
    if problem := next(filter(None, map(_why_not_scaled, tasks(new))), ""):
        return problem
    if new["spec"].get("minAvailable", 0) > sum(task.get("replicas", 0) for task in tasks(new)):
        return "job 'minAvailable' must not be greater than total replicas"
    if len(tasks(old)) != len(tasks(new)):
        return "job updates may not add or remove tasks"
    if _without_what_may_change(old) != _without_what_may_change(new):
        return "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec`"
    return ""


def _why_not_scaled(task: Object) -> str:
    replicas, least = task.get("replicas", 0), task.get("minAvailable", 0)
    if replicas < 0:
        return f"'replicas' must be >= 0 in task: {task['name']}"
    if least < 0:
        return f"'minAvailable' must be >= 0 in task: {task['name']}"
    if least > replicas:
        return f"'minAvailable' must be <= 'replicas' in task: {task['name']}"
    return ""


def _without_what_may_change(job: Object) -> Object:
    spec = copy.deepcopy(job["spec"])
    for name in ("minAvailable", "maxRetry", "priorityClassName"):
        spec.pop(name, None)
    for task in spec.get("tasks") or []:
        for name in ("replicas", "minAvailable", "maxRetry"):
            task.pop(name, None)
    return spec
