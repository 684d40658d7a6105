"""The helper as data, and the program that its container runs."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet import wait_until

from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.volcano.helper_job import helper_job

HOST = VolcanoHost(name="cloud", cluster="cloud", image="train:1", pvc_name="data", pvc_mount_path="/data")
WORKSPACE = "0123456789ab"


def made(owner: str = "pod-a", template: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return helper_job(msgspec.structs.replace(HOST, **changes), WORKSPACE, owner, template or {})


def name(job: dict[str, Any]) -> str:
    return str(job["metadata"]["name"])


def pod(job: dict[str, Any]) -> dict[str, Any]:
    return dict(job["spec"]["template"]["spec"])


def test_its_name_derives_from_the_workspace_the_owner_and_the_configuration() -> None:
    assert name(made()) == name(made())
    others = [
        *(made("pod-b"), made(name="other"), made(image="train:2"), made(helper_resources={"cpu": "2"})),
        helper_job(HOST, "ba9876543210", "pod-a", {}),
    ]
    assert len({name(made()), *map(name, others)}) == 6
    # A pod's name has six characters more, and is also its host name.
    assert len(name(made(owner="o" * 200))) <= 57


def test_it_is_found_by_the_labels_of_the_workspace_and_its_own() -> None:
    job = made(labels={"team": "a", "dispatcher/workspace": "another"})
    expected = {"team": "a", "dispatcher/workspace": WORKSPACE, "dispatcher/helper": name(job)}
    assert job["metadata"]["labels"] == job["spec"]["template"]["metadata"]["labels"] == expected


def test_what_the_host_says_is_in_the_pod() -> None:
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": "300"}
    changed = pod(made(service_account="me", node_selector={"zone": "a"}, tolerations=(toleration,)))
    assert changed["serviceAccountName"] == "me"
    assert changed["nodeSelector"] == {"zone": "a"}
    assert changed["tolerations"] == [{**toleration, "tolerationSeconds": 300}]
    assert not {"serviceAccountName", "nodeSelector", "tolerations"} & set(pod(made()))
    assert pod(made(helper_image="small:1"))["containers"][0]["image"] == "small:1"


def test_who_may_fetch_images_and_write_is_as_in_the_template() -> None:
    secrets, user = [{"name": "registry"}], {"runAsUser": 1000}
    spec = {"imagePullSecrets": secrets, "securityContext": user, "dnsPolicy": "None"}
    template = {"spec": {"tasks": [{"name": "worker", "template": {"spec": spec}}]}}
    changed = pod(made(template=template))
    assert (changed["imagePullSecrets"], changed["securityContext"]) == (secrets, user)
    assert "dnsPolicy" not in changed


@pytest.mark.parametrize(
    "template", [{"spec": None}, {"spec": {"tasks": [{"name": "worker"}]}}, {"spec": {}}, {"spec": {"tasks": {"a": 1}}}]
)
def test_a_template_without_a_pod_changes_nothing(template: dict[str, Any]) -> None:
    assert made(template=template) == made()


@pytest.fixture
def waiting(tmp_path: Path) -> subprocess.Popen[bytes]:
    """The container's program, which ends when its file was not used for one second."""
    _, *options, source, _, _ = pod(made())["containers"][0]["command"]
    return subprocess.Popen([sys.executable, *options, source, os.fspath(tmp_path / "used"), "1"])


def test_it_ends_when_nobody_has_called_for_some_time(waiting: subprocess.Popen[bytes]) -> None:
    assert waiting.wait(timeout=20) == 0


def test_it_goes_on_while_a_call_lasts(waiting: subprocess.Popen[bytes], tmp_path: Path) -> None:
    with open(tmp_path / "used", "a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        began_s = time.monotonic()
        wait_until(lambda: waiting.poll() is not None or time.monotonic() > began_s + 2.5, "more than its time is over")
        assert waiting.poll() is None
    assert waiting.wait(timeout=20) == 0


def test_short_calls_between_two_looks_count(waiting: subprocess.Popen[bytes], tmp_path: Path) -> None:
    def call() -> bool:
        (tmp_path / "used").touch()
        return waiting.poll() is not None or time.monotonic() > began_s + 2.5

    began_s = time.monotonic()
    wait_until(call, "more than its time is over")
    assert waiting.poll() is None
    waiting.terminate()
    assert waiting.wait(timeout=20) == 0
