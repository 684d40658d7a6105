"""How a helper is, from what the API server shows of it (pure)."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.outlets.volcano.helper_job import CONTAINER

_Object = Mapping[str, Any]


class Stage(enum.Enum):
    ABSENT = "absent"
    WAITING = "waiting"
    READY = "ready"
    # Its Job is over, or its node is lost: it has to be deleted before there can be another one.
    ENDED = "ended"
    # It waits for what will not come by itself.
    BROKEN = "broken"


class HelperState(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is the reason of one that is not ready, in the cluster's own words; empty when the objects have none."""

    stage: Stage
    pod: str = ""
    why: str = ""


# Reasons of a waiting container that do not pass by themselves.
_BROKEN: Final = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "RegistryUnavailable"),
)
_NOT_FOUND: Final = "not found"


def judge(name: str, objects: Sequence[_Object]) -> HelperState:
    """The state of the helper `name`, from its Job and the pods with its label."""
    jobs = [one for one in objects if one["kind"] == "Job" and one["metadata"]["name"] == name]
    if not jobs:
        return HelperState(stage=Stage.ABSENT)
    job = jobs[0]
    if "deletionTimestamp" in job["metadata"]:
        return HelperState(stage=Stage.WAITING, why=f"the Job {name} is being deleted")
    pods = [one for one in objects if one["kind"] == "Pod" and _is_live_pod_of(one, job)]
    ready = [pod for pod in pods if _is_ready(pod)]
    if ready:
        return HelperState(stage=Stage.READY, pod=ready[0]["metadata"]["name"])
    lost = [pod for pod in pods if _is_lost(pod)]
    if lost:
        why = f"node {lost[0]['spec'].get('nodeName')} does not answer"
        return HelperState(stage=Stage.ENDED, pod=lost[0]["metadata"]["name"], why=why)
    for word in ("Complete", "Failed"):
        condition = _condition(job, word)
        if condition.get("status") == "True":
            return HelperState(stage=Stage.ENDED, why=_end_of(pods) or _text(condition))
    return _unready(pods[-1]) if pods else HelperState(stage=Stage.WAITING)


def warnings(events: Sequence[_Object], known: str) -> str:
    """What the cluster has complained of, the last of each reason, without what is `known` already."""
    latest: dict[str, _Object] = {event.get("reason", ""): event for event in sorted(events, key=_time)}
    return "; ".join(_text(event) for event in latest.values() if not _message(event) or _message(event) not in known)


def _unready(pod: _Object) -> HelperState:
    name = pod["metadata"]["name"]
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        why = _text(scheduled)
        # A claim or a class that does not exist; a node that is full becomes free.
        stage = Stage.BROKEN if _NOT_FOUND in why else Stage.WAITING
        return HelperState(stage=stage, pod=name, why=why)
    if pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
        return HelperState(stage=Stage.ENDED, pod=name, why=_end_of([pod]))
    for status in _container_statuses(pod):
        waiting = status.get("state", {}).get("waiting")
        if waiting:
            stage = Stage.BROKEN if waiting.get("reason") in _BROKEN else Stage.WAITING
            return HelperState(stage=stage, pod=name, why=_text(waiting))
    return HelperState(stage=Stage.WAITING, pod=name, why=_text(_condition(pod, "Ready")))


def _end_of(pods: Sequence[_Object]) -> str:
    """How the last pod has ended; empty when that is not known."""
    for pod in reversed(pods):
        of_pod = _text(pod.get("status", {}))
        for status in _container_statuses(pod):
            ended = status.get("state", {}).get("terminated")
            if ended and status.get("name") == CONTAINER:
                return "; ".join(part for part in (of_pod, _text(ended), f"status {ended.get('exitCode')}") if part)
        if of_pod:
            return of_pod
    return ""


def _is_live_pod_of(pod: _Object, job: _Object) -> bool:
    owners = [owner.get("uid") for owner in pod["metadata"].get("ownerReferences", [])]
    return "deletionTimestamp" not in pod["metadata"] and job["metadata"]["uid"] in owners


def _is_ready(pod: _Object) -> bool:
    return pod["status"].get("phase") == "Running" and _condition(pod, "Ready").get("status") == "True"


def _is_lost(pod: _Object) -> bool:
    """Whether its node does not answer: then the control plane calls it not ready, and its container is as it was."""
    statuses = list(_container_statuses(pod))
    is_as_before = bool(statuses) and all(status.get("ready") for status in statuses)
    return pod["status"].get("phase") == "Running" and is_as_before and not _is_ready(pod)


def _condition(one: _Object, type_: str) -> _Object:
    conditions = one.get("status", {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == type_), {})


def _container_statuses(pod: _Object) -> Iterator[_Object]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or []
    yield from status.get("containerStatuses") or []


def _text(said: _Object) -> str:
    """`Reason: message`, as far as there are both."""
    return ": ".join(word for word in (said.get("reason"), _message(said)) if word)


def _message(said: _Object) -> str:
    return " ".join((said.get("message") or "").split())


def _time(event: _Object) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
