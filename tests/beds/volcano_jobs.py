"""Jobs of Volcano as data, for tests of the bed."""

from __future__ import annotations

from typing import Any

# Of a pod: it is not kept for five minutes when its node does not answer.
SOON_EVICTED = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    for taint in ("not-ready", "unreachable")
]


def job(name: str, *command: str, replicas: int = 1, gpus: int = 0, grace_s: int = 1, **spec: Any) -> dict[str, Any]:
    """A Job of one task, `w`, whose pods run a command; `spec` is more of the Job's."""
    task = {"name": "w", "replicas": replicas, "template": {"spec": pod_spec(*command, gpus=gpus, grace_s=grace_s)}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"tasks": [task], **spec},
    }


def pod_spec(*command: str, gpus: int = 0, grace_s: int = 1) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "busybox", "command": list(command or ["true"])}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s, "containers": [container]}


def shell(script: str) -> tuple[str, ...]:
    return "sh", "-c", script


def on(event: str, action: str) -> dict[str, str]:
    """A policy."""
    return {"event": event, "action": action}
