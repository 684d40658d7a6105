"""The Kubernetes bed does what tests of the outlet take for granted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .bed import wait_for
from .fixtures import skip_without
from .k8s import K8sBed
from .volcano_jobs import SOON_EVICTED

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Prints where its bed is, then waits to be killed.
HOLD = """
import signal
from beds.k8s import K8sBed, K8sSettings
k8s = K8sBed(K8sSettings(nodes=1))
k8s.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [
    {"name": "main", "image": "busybox", "command": ["sleep", "300"]}]}})
k8s.wait_for_phase("a", "Running")
print(k8s.directory, k8s.keeper_pid, flush=True)
signal.pause()
"""


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


def test_pods_of_a_headless_service_find_each_other_by_name(k8s: K8sBed) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "team"},
        "spec": {"clusterIP": "None", "selector": {"team": "yes"}, "publishNotReadyAddresses": True},
    }
    ask = 'until getent hosts "$0"; do sleep 0.1; done; hostname; hostname -f'
    pods = [
        pod(f"team-{mine}", "sh", "-c", ask, f"team-{other}.team", hostname=f"team-{mine}", subdomain="team")
        for mine, other in ((0, 1), (1, 0))
    ]
    for each in pods:
        each["metadata"]["labels"] = {"team": "yes"}
    k8s.create(service, *pods)
    done = [k8s.wait_for_phase(f"team-{index}", "Succeeded") for index in (0, 1)]
    for mine, other in ((0, 1), (1, 0)):
        full = f"team-{{}}.team.{k8s.namespace}.svc.cluster.local"
        found, short, long = k8s.kubectl("logs", f"team-{mine}").stdout.splitlines()
        assert found.split() == [done[other]["status"]["podIP"], full.format(other)]
        assert (short, long) == (f"team-{mine}", full.format(mine))


def terminated(found: dict[str, Any]) -> dict[str, Any]:
    """How the container of a pod ended."""
    return found["status"]["containerStatuses"][0]["state"]["terminated"]


def test_the_exit_code_of_a_command_is_that_of_its_container(k8s: K8sBed) -> None:
    k8s.create(pod("three", "sh", "-c", "exit 3"))
    assert terminated(k8s.wait_for_phase("three", "Failed"))["exitCode"] == 3


def test_a_container_that_is_killed_for_its_memory(k8s: K8sBed) -> None:
    k8s.create(pod("big", "sleep", "300"))
    k8s.wait_for_phase("big", "Running")
    k8s.oom_kill("big")
    ended = terminated(k8s.wait_for_phase("big", "Failed"))
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_a_pod_that_its_node_evicts(k8s: K8sBed) -> None:
    k8s.create(pod("greedy", "sleep", "300"), pod("modest", "sleep", "300"))
    for name in ("greedy", "modest"):
        k8s.wait_for_phase(name, "Running")
    status = k8s.evict("greedy")["status"]
    assert status["reason"] == "Evicted"
    assert status["message"].startswith("The node was low on resource: memory.")
    assert k8s.pod("modest")["status"]["phase"] == "Running"


def test_pods_on_a_node_that_is_not_ready_go_on(k8s: K8sBed) -> None:
    files = Path(k8s.make_volume("data"))
    count = "i=0; while :; do i=$((i+1)); echo $i > /data/count; sleep 0.1; done"
    k8s.create(pod("counter", "sh", "-c", count, mounts={"mountPath": "/data"}, tolerations=SOON_EVICTED))
    k8s.wait_for_phase("counter", "Running")
    node = k8s.pod("counter")["spec"]["nodeName"]
    k8s.node_away(node)
    # The control plane wants it gone, and nobody is there to end it.
    wait_for(lambda: "deletionTimestamp" in k8s.pod("counter")["metadata"], "the pod is to be deleted")
    assert k8s.pod("counter")["status"]["phase"] == "Running"
    before = (files / "count").read_text()
    wait_for(lambda: (files / "count").read_text() not in ("", before), "the pod counts on")
    k8s.node_back(node)
    pods = f"/api/v1/namespaces/{k8s.namespace}/pods"
    wait_for(
        lambda: not k8s.api.get(pods)["items"],
        lambda: f"no pods: {k8s.api.get(pods)['items']}",
        limit_s=90,
        every_s=0.2,
    )


def test_nothing_that_ran_on_a_node_survives_its_power_cut(k8s: K8sBed) -> None:
    files = Path(k8s.make_volume("data"))
    script = "date +%s%N > /data/start; sleep 300"
    k8s.create(pod("victim", "sh", "-c", script, mounts={"mountPath": "/data"}, nodeName="n1"))
    k8s.wait_for_phase("victim", "Running")
    wait_for(lambda: (files / "start").exists() and (files / "start").read_text(), "the pod has started")
    started = (files / "start").read_text()
    k8s.node_kill("n1")
    k8s.node_start("n1")
    assert terminated(k8s.wait_for_phase("victim", "Failed"))["exitCode"] == 255
    assert (files / "start").read_text() == started


def test_the_api_server_answers_with_an_error(k8s: K8sBed) -> None:
    some = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "some"}})
    said = {403: "(Forbidden)", 409: "(Conflict)", 500: "(InternalError)", 503: "(ServiceUnavailable)"}
    for status, words in said.items():
        with k8s.answering(status, 'exceeded: "quota"', method="POST", path="/configmaps"):
            refused = k8s.kubectl("create", "-f", "-", input=some, check=False)
            assert k8s.kubectl("get", "configmaps").returncode == 0
        assert refused.returncode == 1
        assert words in refused.stderr
        assert 'exceeded: "quota"' in refused.stderr
    assert k8s.kubectl("create", "-f", "-", input=some).returncode == 0


def test_kubectl_waits_when_there_are_too_many_requests(k8s: K8sBed) -> None:
    with k8s.answering(429, headers={"Retry-After": "1"}, path="/configmaps", times=1) as fault:
        assert k8s.kubectl("get", "configmaps").returncode == 0
    assert fault.happened == 1


def test_an_answer_is_lost_after_the_request_has_worked(k8s: K8sBed) -> None:
    with k8s.losing_answers(method="POST", path="/configmaps"):
        lost = k8s.kubectl("create", "configmap", "some", check=False)
    assert lost.returncode == 1
    assert k8s.kubectl("get", "configmap", "some").returncode == 0


def test_commands_run_in_a_pod_through_the_proxy_too(k8s: K8sBed) -> None:
    k8s.create(pod("host", "sleep", "300"))
    k8s.wait_for_phase("host", "Running")
    with k8s.answering(500, path="/none-of-these"):
        done = k8s.kubectl("exec", "-i", "host", "--", "sh", "-c", "cat; exit 4", input="echo", check=False)
    assert (done.returncode, done.stdout) == (4, "echo")


def test_two_beds_are_up_at_once_and_leave_nothing(k8s: K8sBed, start_k8s: Callable[..., K8sBed]) -> None:
    other = start_k8s(nodes=1)
    beds = [k8s, other]
    for index, bed in enumerate(beds):
        bed.create(pod(f"of-{index}", "sleep", "300"))
        bed.wait_for_phase(f"of-{index}", "Running")
    assert [bed.kubectl("get", "pods", "-o", "name").stdout.split() for bed in beds] == [["pod/of-0"], ["pod/of-1"]]
    other.close()
    assert not Path(f"/proc/{other.keeper_pid}").exists()
    assert not Path(other.directory).exists()
    assert k8s.pod("of-0")["status"]["phase"] == "Running"


def test_nothing_is_left_of_a_killed_test_run() -> None:
    skip_without("k8s")
    run = subprocess.Popen(
        [sys.executable, "-c", HOLD], env={**os.environ, "PYTHONPATH": TESTS}, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    directory, keeper = run.stdout.readline().split()
    run.kill()
    run.wait()
    run.stdout.close()
    wait_for(lambda: not Path(f"/proc/{keeper}").exists() and not Path(directory).exists(), "all is gone")
