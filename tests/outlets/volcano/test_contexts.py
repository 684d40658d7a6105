"""Another context of kubectl than the one that attempts were submitted with, and another cluster under its name."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from beds.volcano import VolcanoBed
from fleet import Fleet, shell, wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 240.0
GATED = 'echo begun >"$DISPATCHER_ATTEMPT_DIR/begun"; until [ -e "$DISPATCHER_ATTEMPT_DIR/go" ]; do sleep 0.1; done'
UID = "11111111-2222-3333-4444-555555555555"
# What an API server tells of itself that has a namespace kube-system, and nothing else.
ANSWERS: dict[str, Any] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList", "groupVersion": "v1",
        "resources": [{"name": "namespaces", "singularName": "", "namespaced": False, "kind": "Namespace"}],
    },
    "/api/v1/namespaces/kube-system": {
        "kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "kube-system", "uid": UID},
    },
}  # fmt: skip


class Other(http.server.BaseHTTPRequestHandler):
    """Another cluster."""

    def do_GET(self) -> None:
        found = ANSWERS.get(self.path.partition("?")[0])
        content = json.dumps(
            found or {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
        ).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def other() -> Iterator[str]:
    """Its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_attempts_stay_where_they_are_and_another_cluster_says_nothing(
    fleet: Fleet, volcano: VolcanoBed, other: str, tmp_path: Path
) -> None:
    volume = Path(volcano.make_volume("data"))
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_bytes(Path(volcano.kubeconfig).read_bytes())
    fleet.variables = {"KUBECONFIG": str(kubeconfig)}

    def config(*words: str) -> None:
        subprocess.run(["kubectl", f"--kubeconfig={kubeconfig}", "config", *words], check=True, capture_output=True)

    config("use-context", "admin")
    words = f"namespace: {volcano.namespace}, image: jax"
    fleet.write_config(
        "code: none\nlost_after: 10s\nhosts:\n"
        f"  k8s: {{type: volcano, pvc_name: data, pvc_mount_path: /data, {words}}}\n"
    )
    fleet.write_manifest([shell("a", GATED, gpus=0)])
    options = ("--slots", "0", "--outlet", "k8s:1")
    first = fleet.start("pod1", *options, poll="2")
    (begun,) = wait_until(lambda: list(volume.glob("**/begun")), "the attempt has begun", PATIENCE_S)
    fleet.wait_for("a", "running", timeout_s=PATIENCE_S)
    location = json.loads(fleet.attempt("a").submission.read_text())["location"]
    uid = volcano.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}").stdout
    address = volcano.kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}").stdout
    parts = {"namespace": volcano.namespace, "cluster": uid, "address": address}
    assert location == {"parts": parts, "via": {"context": "admin"}}
    first.kill()

    # The context now leads to another cluster.
    kept = kubeconfig.read_bytes()
    config("set-cluster", "other", f"--server={other}")
    config("set-context", "admin", "--cluster=other")
    second = fleet.start("pod2", *options, poll="2")
    submitted = f"namespace {volcano.namespace}, cluster {uid}, address {address} (context admin)"
    why = f"{submitted}, and k8s leads to {submitted.replace(uid, UID).replace(address, other)} now"
    wait_until(lambda: why in fleet.run("pods"), "both clusters are named", PATIENCE_S)
    second.kill()
    kubeconfig.write_bytes(kept)

    # The default is another context; the attempt's own is still known.
    config("set-cluster", "other", f"--server={other}")
    config("set-context", "elsewhere", "--cluster=other", "--user=admin")
    config("use-context", "elsewhere")
    third = fleet.start("pod3", "--until-empty", *options, poll="2")
    begun.with_name("go").touch()
    assert third.end(PATIENCE_S) == 0, third.said
    record = fleet.record("a")
    assert (record.state, record.attempt, record.exit_code) == ("done", 1, 0), third.said


def test_a_user_who_may_not_read_the_name_of_the_cluster_any_more_is_in_the_same_one(
    fleet: Fleet, volcano: VolcanoBed
) -> None:
    volume = Path(volcano.make_volume("data"))
    words = f"kubeconfig: {volcano.kubeconfig}, namespace: {volcano.namespace}, image: jax"
    fleet.write_config(
        "code: none\nlost_after: 10s\nhosts:\n"
        f"  k8s: {{type: volcano, pvc_name: data, pvc_mount_path: /data, {words}}}\n"
    )
    fleet.write_manifest([shell("a", GATED, gpus=0)])
    options = ("--slots", "0", "--outlet", "k8s:1", "--until-empty")
    first = fleet.start("pod1", *options, poll="2")
    (begun,) = wait_until(lambda: list(volume.glob("**/begun")), "the attempt has begun", PATIENCE_S)
    fleet.wait_for("a", "running", timeout_s=PATIENCE_S)
    with volcano.answering(403, "namespaces is forbidden", method="GET", path="/namespaces/kube-system") as fault:
        # One that knows the cluster's own name, and then one that has never known it.
        wait_until(lambda: fault.happened > 4, "it has asked", PATIENCE_S)
        assert "leads to" not in fleet.run("pods")
        first.kill()
        second = fleet.start("pod2", *options, poll="2")
        before = fault.happened
        wait_until(lambda: fault.happened > before + 4, "it has asked, too", PATIENCE_S)
        assert "leads to" not in fleet.run("pods")
        assert fleet.record("a").state == "running"
    # It may read the name again.
    begun.with_name("go").touch()
    assert second.end(PATIENCE_S) == 0, second.said
    record = fleet.record("a")
    assert (record.state, record.attempt, record.exit_code) == ("done", 1, 0), second.said
