"""The Volcano Job of an attempt, as data: nothing of it is ever text that is put together. Pure.

A Job has one task, whose Kubernetes pods all run `volcano_pod.sh`; the first of them runs the attempt's wrapper. The
names that Kubernetes makes of a Job's name (of pods, services, host names) have at most 63 characters.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Final

from dispatcher.base.devices import OF_CONTAINERS
from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.base import Bundle
from dispatcher.outlets.batch.scheduler import Submission
from dispatcher.outlets.volcano.resources import pod_resources, shape_of, uses_rdma
from dispatcher.provenance.host_report import NODE

KIND: Final = "jobs.batch.volcano.sh"
TASK: Final = "worker"
CONTAINER: Final = "attempt"
# Labels of Jobs and of their pods; Volcano copies those of a Job to its PodGroup.
WORKSPACE: Final = "dispatcher/workspace"
SUBMISSION: Final = "dispatcher/submission"
INDEX: Final = "dispatcher/index"
# Annotations: job ids may be longer than labels.
JOB_ID: Final = "dispatcher/job-id"
ATTEMPT: Final = "dispatcher/attempt"

# Kubernetes' own limits are only for what the wrapper cannot end: images may have to be pulled before it begins.
_DEADLINE_MARGIN_S: Final = 3600
# Between the end of the grace period and KILL: for the wrapper to write the exit status.
_GRACE_MARGIN_S: Final = 15
# For so long a Job that has ended can be asked why.
_KEPT_S: Final = 3600
_POLICIES: Final = [{"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"}]


def job_name(submission: str, index: int) -> str:
    """The name of the Job of one attempt of a submission."""
    return f"{submission}-{index}"


def job_of(host: VolcanoHost, submission: Submission, index: int, grace_s: float) -> dict[str, Any]:
    """The Job of the attempt with this index; `grace_s` is what an attempt has from TERM to KILL."""
    bundle = submission.bundles[index]
    labels = {**host.labels, **_marks(submission.name, index)}
    nodes = shape_of(host, submission.request).nodes
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {
            "name": job_name(submission.name, index),
            "namespace": host.namespace,
            "labels": labels,
            "annotations": identity(bundle),
        },
        "spec": {
            "schedulerName": "volcano",
            "queue": host.queue,
            "minAvailable": nodes,
            # Whether an attempt is made again is decided by dispatchers: a pod that fails or is evicted ends all of it.
            "maxRetry": 1,
            "policies": _POLICIES,
            "plugins": {"env": [], "ssh": [], "svc": []},
            "ttlSecondsAfterFinished": _KEPT_S,
            **_given(priorityClassName=host.priority_class),
            "tasks": [
                {
                    "name": TASK,
                    "replicas": nodes,
                    "template": {
                        "metadata": {"labels": labels, "annotations": identity(bundle)},
                        "spec": _pod(host, submission, bundle, grace_s),
                    },
                }
            ],
        },
    }


def identity(bundle: Bundle) -> dict[str, str]:
    """The annotations by which a Job is known as that of an attempt, besides its name."""
    return {JOB_ID: bundle.key.job_id, ATTEMPT: str(bundle.key.number)}


def toleration(configured: Mapping[str, str]) -> dict[str, Any]:
    """A toleration as Kubernetes takes it: with its seconds as a number."""
    return {key: int(text) if key == "tolerationSeconds" else text for key, text in configured.items()}


def _marks(submission: str, index: int) -> dict[str, str]:
    # Names of submissions are d-<workspace>-<attempts>.
    return {WORKSPACE: submission.split("-")[1], SUBMISSION: submission, INDEX: str(index)}


# A Kubernetes pod has a host name of its own, which says nothing of where it runs.
_NODE: Final = {"name": NODE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}


def _pod(host: VolcanoHost, submission: Submission, bundle: Bundle, grace_s: float) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "dispatcher", "persistentVolumeClaim": {"claimName": host.pvc_name}},
    ]
    mounts = [{"name": "dispatcher", "mountPath": host.pvc_mount_path}]
    if host.shm_size is not None:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": host.shm_size}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    each = pod_resources(host, submission.request)
    container = {
        "name": CONTAINER,
        "image": host.image,
        "command": [
            _literal(word) for word in ("bash", os.fspath(submission.layout.submission_script(submission.name)))
        ],
        "env": [*(_variable(name, value) for name, value in _environment(host, submission, bundle)), _NODE],
        "resources": {"requests": each, "limits": dict(each)} if each else {},
        "volumeMounts": mounts,
        # Memory that is registered with an RDMA device cannot be moved.
        **({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}} if uses_rdma(host, submission.request) else {}),
    }
    limit_s = submission.time_limit_s
    grace = math.ceil(grace_s)
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace + _GRACE_MARGIN_S,
        **({"activeDeadlineSeconds": math.ceil(limit_s) + grace + _DEADLINE_MARGIN_S} if limit_s else {}),
        **_given(
            # Volcano passes the Job's class to its PodGroup only.
            priorityClassName=host.priority_class,
            serviceAccountName=host.service_account,
            nodeSelector=dict(host.node_selector),
            tolerations=[toleration(one) for one in host.tolerations],
        ),
        "containers": [container],
        "volumes": volumes,
    }


def _environment(host: VolcanoHost, submission: Submission, bundle: Bundle) -> list[tuple[str, str]]:
    script = submission.layout.submission_script(submission.name)
    own = {"DISPATCHER_VOLCANO_MODE": "1", "DISPATCHER_SUBMISSION_DIR": os.fspath(script.parent)}
    # Where NVIDIA's runtime is the default of a node, images that ask for all GPUs get them without asking Kubernetes.
    hidden = {} if shape_of(host, submission.request).gpus_per_node else {OF_CONTAINERS: "void"}
    given = {**hidden, **host.env, **own, **bundle.environment}
    return [(name, value) for name, value in given.items() if value is not None]


def _variable(name: str, value: str) -> dict[str, str]:
    # Empty is what one without a value is; API servers of 1.20 take an empty text here for null, and refuse it.
    return {"name": name, "value": _literal(value)} if value else {"name": name}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _literal(text: str) -> str:
    """Kubernetes replaces `$(NAME)` in commands and values, and `$$` by `$`."""
    return text.replace("$", "$$")
