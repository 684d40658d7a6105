"""The pods and the PodGroup of a Job, as data."""

from __future__ import annotations

import copy
import os

from api import Object
from dialects import Dialect
from objects import (
    GROUP_NAME,
    JOB_NAME,
    JOB_NAMESPACE,
    JOB_VERSION,
    POD_TEMPLATE,
    PODGROUP_API,
    PREEMPTABLE,
    QUEUE_NAME,
    TASK_SPEC,
    owner,
    tasks,
)
from quantities import Amounts, amounts, total, written


def pod_name(job: Object, task: Object, index: int) -> str:
    return f"{job['metadata']['name']}-{task['name']}-{index}"


def podgroup_name(job: Object, dialect: Dialect) -> str:
    meta = job["metadata"]
    return f"{meta['name']}-{meta['uid']}" if dialect.is_podgroup_named_by_uid else str(meta["name"])


def new_pod(job: Object, task: Object, index: int, dialect: Dialect) -> Object:
    """A pod of a task, before the plugins."""
    template = copy.deepcopy(task["template"])
    meta, spec = template.get("metadata") or {}, template["spec"]
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    spec.setdefault("schedulerName", job["spec"]["schedulerName"])
    for volume in job["spec"].get("volumes") or []:
        _mount_claim(spec, f"{name}-{os.urandom(6).hex()}", volume)
    labels = {JOB_NAME: name, JOB_NAMESPACE: namespace, TASK_SPEC: task["name"], QUEUE_NAME: job["spec"]["queue"]}
    annotations = {
        TASK_SPEC: task["name"],
        GROUP_NAME: podgroup_name(job, dialect),
        JOB_NAME: name,
        QUEUE_NAME: job["spec"]["queue"],
        JOB_VERSION: str(job["status"].get("version", 0)),
        POD_TEMPLATE: f"{name}-{task['name']}",
    }
    for kind, marks in (("labels", labels), ("annotations", annotations)):
        if PREEMPTABLE in job["metadata"].get(kind, {}):
            marks[PREEMPTABLE] = job["metadata"][kind][PREEMPTABLE]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job, task, index),
            "namespace": namespace,
            "ownerReferences": owner(job),
            "labels": {**(meta.get("labels") or {}), **labels},
            "annotations": {**(meta.get("annotations") or {}), **annotations},
        },
        "spec": spec,
    }


def _mount_claim(spec: Object, name: str, volume: Object) -> None:
    claim = {"name": name, "persistentVolumeClaim": {"claimName": volume["volumeClaimName"]}}
    spec.setdefault("volumes", []).append(claim)
    for container in spec["containers"]:
        container.setdefault("volumeMounts", []).append({"name": name, "mountPath": volume["mountPath"]})


def new_podgroup(job: Object, priorities: dict[str, int], dialect: Dialect) -> Object:
    meta, spec = job["metadata"], job["spec"]
    members = {task["name"]: task.get("minAvailable", task.get("replicas", 0)) for task in tasks(job)}
    copied = {name: meta[name] for name in ("labels", "annotations") if name in meta}
    wanted = {
        "minMember": spec["minAvailable"],
        "minTaskMember": members,
        "queue": spec["queue"],
        "minResources": written(min_resources(job, priorities, dialect)),
    }
    if "priorityClassName" in spec:
        wanted["priorityClassName"] = spec["priorityClassName"]
    return {
        "apiVersion": PODGROUP_API,
        "kind": "PodGroup",
        "metadata": {
            **copied,
            "name": podgroup_name(job, dialect),
            "namespace": meta["namespace"],
            "ownerReferences": owner(job),
        },
        "spec": wanted,
        "status": {},
    }


def min_resources(job: Object, priorities: dict[str, int], dialect: Dialect) -> Amounts:
    """What the first `minAvailable` pods ask for, those of the most important tasks first."""
    ordered = sorted(tasks(job), key=lambda task: -priorities.get(task["template"]["spec"].get("priorityClassName"), 0))
    pods = [task["template"]["spec"] for task in ordered for _ in range(task.get("replicas", 0))]
    return total(_of_pod(spec, dialect) for spec in pods[: job["spec"]["minAvailable"]])


def _of_pod(spec: Object, dialect: Dialect) -> Amounts:
    parts = []
    for container in spec["containers"]:
        resources = container.get("resources", {})
        limits = amounts(resources.get("limits"))
        requested = amounts(resources.get("requests")) or limits
        parts.append(requested)
        if dialect.names_resources:
            # Names as in a ResourceQuota, besides.
            parts.append({f"requests.{name}": amount for name, amount in requested.items()})
            parts.append({f"limits.{name}": amount for name, amount in limits.items() if name in ("cpu", "memory")})
    if dialect.names_resources:
        parts.append(amounts({"pods": 1, "count/pods": 1}))
    return total(parts)
