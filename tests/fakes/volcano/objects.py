"""Names that Volcano gives things, and what objects of Kubernetes have in common."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from api import Object
from quantities import Amounts, amounts, total

SCHEDULER = "volcano"
CONTROLLER = "vc-controller-manager"
JOB_API = "batch.volcano.sh/v1alpha1"
PODGROUP_API = "scheduling.volcano.sh/v1beta1"

JOB_NAME = "volcano.sh/job-name"
JOB_NAMESPACE = "volcano.sh/job-namespace"
JOB_VERSION = "volcano.sh/job-version"
TASK_SPEC = "volcano.sh/task-spec"
QUEUE_NAME = "volcano.sh/queue-name"
POD_TEMPLATE = "volcano.sh/template-uid"
PREEMPTABLE = "volcano.sh/preemptable"
GROUP_NAME = "scheduling.k8s.io/group-name"

Key = tuple[str, str]


def key(item: Object) -> Key:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(time: str) -> float:
    then = datetime.datetime.fromisoformat(time)
    return (datetime.datetime.now(datetime.UTC) - then).total_seconds()


def revision(item: Object) -> int:
    # Meant to be opaque, but it is etcd's counter.
    return int(item["metadata"]["resourceVersion"])


def is_terminating(item: Object) -> bool:
    return "deletionTimestamp" in item["metadata"]


def owner(job: Object) -> list[Object]:
    """What makes the cluster's garbage collector remove a thing with its Job."""
    meta = job["metadata"]
    reference = {"apiVersion": JOB_API, "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    return [{**reference, "controller": True, "blockOwnerDeletion": True}]


def owner_uid(item: Object) -> str:
    """The uid of the Volcano Job that something belongs to; empty when it belongs to none."""
    for reference in item["metadata"].get("ownerReferences", []):
        if reference["kind"] == "Job" and reference["apiVersion"] == JOB_API:
            return str(reference["uid"])
    return ""


def annotation(item: Object, name: str) -> str:
    return str(item["metadata"].get("annotations", {}).get(name, ""))


def phase(item: Object) -> str:
    return str(item.get("status", {}).get("phase", ""))


def job_phase(job: Object) -> str:
    return str(job.get("status", {}).get("state", {}).get("phase", ""))


def tasks(job: Object) -> list[Object]:
    return job["spec"].get("tasks") or []


def containers(pod_spec: Object) -> Iterator[Object]:
    yield from pod_spec.get("containers", [])
    yield from pod_spec.get("initContainers", [])


def requests(container: Object) -> Amounts:
    """Limits count where there are no requests at all."""
    resources: dict[str, Any] = container.get("resources", {})
    return amounts(resources.get("requests") or resources.get("limits"))


def pod_request(spec: Object) -> Amounts:
    return total(requests(container) for container in spec.get("containers", []))
