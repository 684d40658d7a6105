"""The Kubernetes bed does what tests of the outlet take for granted."""

from __future__ import annotations

import json
import subprocess

from .k8s import K8sBed


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
