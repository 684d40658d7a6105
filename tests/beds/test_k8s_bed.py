"""The Kubernetes bed does what tests of the outlet take for granted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from .k8s import K8sBed


def pod(name: str, *command: str, mounts: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod with one container, which mounts volume `data` where `mounts` says."""
    container = {"name": "main", "image": "busybox", "command": command}
    if mounts:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        container["volumeMounts"] = [{"name": "data", **mounts}]
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_kubectl_runs_outside_with_the_kubeconfig_alone(k8s: K8sBed) -> None:
    words = ["kubectl", "--kubeconfig", k8s.kubeconfig, "get", "serviceaccounts", "-o", "json"]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert [item["metadata"]["namespace"] for item in found["items"]] == [k8s.namespace]


def test_a_user_without_rights_is_refused(k8s: K8sBed) -> None:
    refused = k8s.kubectl("--context=ordinary", "get", "pods", check=False)
    assert refused.returncode == 1
    assert "Error from server (Forbidden)" in refused.stderr


def test_the_api_server_goes_and_comes_back(k8s: K8sBed) -> None:
    k8s.apiserver_down()
    away = k8s.kubectl("get", "pods", check=False)
    k8s.apiserver_up()
    assert away.returncode == 1
    assert "refused" in away.stderr
    assert k8s.kubectl("get", "pods").returncode == 0


def test_two_pods_share_a_volume(k8s: K8sBed) -> None:
    files = Path(k8s.make_volume("data"))
    k8s.create(pod("writer", "sh", "-c", "echo hello > /some/where/said", mounts={"mountPath": "/some/where"}))
    k8s.wait_for_phase("writer", "Succeeded")
    assert (files / "said").read_text() == "hello\n"
    (files / "sub").mkdir()
    (files / "sub" / "answer").write_text("from outside")
    k8s.create(pod("reader", "cat", "/data/answer", mounts={"mountPath": "/data", "subPath": "sub"}))
    k8s.wait_for_phase("reader", "Succeeded")
    assert k8s.kubectl("logs", "reader").stdout == "from outside\n"
    assert not Path("/some").exists()
