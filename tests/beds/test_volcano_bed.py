"""The Volcano bed does what tests of the outlet take for granted."""

from __future__ import annotations

from typing import Any

import pytest

from .volcano import VolcanoBed


def job(name: str, *command: str, replicas: int = 1, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    """A Job of one task, `w`."""
    container: dict[str, Any] = {"name": "main", "image": "busybox", "command": command or ("true",)}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    task = {"name": "w", "replicas": replicas, "template": {"spec": pod}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"tasks": [task], **spec},
    }


def on(event: str, action: str) -> dict[str, str]:
    return {"event": event, "action": action}


def test_a_job_of_two_pods_completes(volcano: VolcanoBed) -> None:
    volcano.create(job("a", replicas=2))
    status = volcano.wait_for_job("a", "Completed")["status"]
    assert (status["succeeded"], status["minAvailable"]) == (2, 2)
    assert set(volcano.pods("a")) == {"a-w-0", "a-w-1"}


@pytest.mark.parametrize(
    ("policies", "phase"), [([], "Failed"), ([on("PodFailed", "AbortJob")], "Aborted")], ids=["none", "abort"]
)
def test_a_pod_that_fails_ends_its_job(volcano: VolcanoBed, policies: list[Any], phase: str) -> None:
    volcano.create(job("a", "sh", "-c", "exit 3", policies=policies))
    assert volcano.wait_for_job("a", "Failed", "Aborted")["status"]["state"]["phase"] == phase
