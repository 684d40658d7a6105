"""The TPU bed does what tests of the outlet take for granted: nodes, workers, queued resources, and their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from .bed import BedError, wait_for
from .computer import HostSettings, seen_in_tmp
from .fixtures import skip_without
from .slurm import ORDINARY
from .tpu import TOKEN, VERSION, TpuBed
from .tpu_checks import workers_of

POD = ("--accelerator-type=v4-16", f"--version={VERSION}")


def describe(tpu: TpuBed, name: str) -> dict:
    return json.loads(tpu.gcloud("describe", name, "--format=json", check=True).stdout)


def test_gcloud_makes_and_deletes_a_pod_of_two_workers(tpu: TpuBed) -> None:
    flags = ("--spot", "--labels=lab=one", "--metadata=key=a value", "--internal-ips", "--network=net")
    tpu.gcloud("create", "pod", *POD, *flags, check=True)
    node = describe(tpu, "pod")
    assert (node["state"], node["health"], node["labels"]) == ("READY", "HEALTHY", {"lab": "one"})
    assert [end["ipAddress"] for end in node["networkEndpoints"]] == [each.address for each in tpu.workers("pod")]
    assert "accessConfig" not in node["networkEndpoints"][0]
    (request,) = tpu.requests("nodes.create")
    assert (request.name, request.version) == ("pod", "v2")
    assert request.body["schedulingConfig"] == {"preemptible": False, "reserved": False, "spot": True}
    assert request.body["metadata"] == {"key": "a value"}
    assert request.body["networkConfig"] == {"enableExternalIps": False, "network": "net"}
    running = [pid for worker in tpu.workers("pod") for pid in worker.processes()]
    assert running
    tpu.gcloud("delete", "pod", check=True)
    assert tpu.names() == []
    assert not [pid for pid in running if os.path.exists(f"/proc/{pid}")]


def test_workers_are_machines_that_share_nothing(tpu: TpuBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Hidden with /tmp, below which pytest usually has it.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a'; x y"))
    first, second = tpu.create("pod", "v4-16")
    command = "echo $(hostname) >> ~/mine; echo $(hostname) >> /tmp/mine; cat ~/mine /tmp/mine; ls /tmp"
    # `--worker=0` is the default of gcloud.
    done = tpu.gcloud("ssh", "pod", f"--command={command}", check=True)
    assert done.stdout.splitlines() == [first.name, first.name, *sorted({"mine", *seen_in_tmp(tpu.directory)})]
    assert not second.path("mine").exists()
    done = tpu.gcloud("ssh", "pod", "--worker=1", f"--command={command}", check=True)
    assert done.stdout.splitlines()[:2] == [second.name, second.name]
    # They reach each other, as the processes of one training do.
    answer = second.run("python3", "-c", f"import socket; print(socket.create_connection(('{first.address}', 22), 5))")
    assert first.address in answer


def test_what_is_created_again_has_nothing_of_before(tpu: TpuBed) -> None:
    (before,) = tpu.create("vm", spot=True)
    tpu.gcloud("ssh", "vm", "--command=echo kept > ~/file; setsid -f sleep 300 </dev/null >&0 2>&0", check=True)
    running = before.processes()
    tpu.preempt("vm")
    assert not [pid for pid in running if os.path.exists(f"/proc/{pid}")]
    assert describe(tpu, "vm")["state"] == "PREEMPTED"
    tpu.gcloud("delete", "vm", check=True)
    (after,) = tpu.create("vm", spot=True)
    assert tpu.gcloud("ssh", "vm", "--command=ls -A ~", check=True).stdout == ""
    assert after.address != before.address
    assert not before.directory.exists()


def test_a_stopped_node_keeps_its_disk(tpu: TpuBed) -> None:
    tpu.create("vm")
    tpu.gcloud("ssh", "vm", "--command=cat /proc/sys/kernel/random/boot_id > ~/boot", check=True)
    tpu.gcloud("stop", "vm", check=True)
    assert describe(tpu, "vm")["state"] == "STOPPED"
    tpu.gcloud("start", "vm", check=True)
    show = "--command=cat ~/boot /proc/sys/kernel/random/boot_id"
    before, after = tpu.gcloud("ssh", "vm", show, check=True).stdout.split()
    assert before != after
    tpu.create("pod", "v4-16")
    assert "stop is not supported for a node of several workers" in tpu.gcloud("stop", "pod").stderr


def test_an_ordinary_user_logs_in(start_tpu: Callable[..., TpuBed]) -> None:
    tpu = start_tpu(user=ORDINARY)
    tpu.create("vm")
    done = tpu.gcloud("ssh", "vm", "--command=id -un; touch ~/mine && pwd; touch /etc/other || exit 7")
    assert (done.returncode, done.stdout.split()) == (7, [ORDINARY, f"/home/{ORDINARY}"])


def test_what_the_api_refuses(tpu: TpuBed) -> None:
    for words, status, message in (
        (("--accelerator-type=v4-7", f"--version={VERSION}"), "INVALID_ARGUMENT", "the accelerator v4-7 was not found"),
        (("--accelerator-type=v4-8", "--version=old"), "INVALID_ARGUMENT", "the runtime version old was not found"),
        ((*POD, "--zone=mars-central1-a"), "PERMISSION_DENIED", "'locations/mars-central1-a' (or it may not exist)"),
        ((*POD, "--project=other"), "PERMISSION_DENIED", "project other"),
        ((*POD, "--spot", "--preemptible"), "INVALID_ARGUMENT", "either spot or preemptible"),
    ):
        done = tpu.gcloud("create", "vm", *words)
        assert done.returncode == 1
        assert f"{status}: " in done.stderr
        assert message in done.stderr
        assert tpu.names() == []


def test_names_are_taken_and_names_are_unknown(tpu: TpuBed) -> None:
    tpu.create("vm")
    taken = tpu.gcloud("create", "vm", *POD)
    assert (taken.returncode, "ALREADY_EXISTS: Resource" in taken.stderr) == (1, True)
    for command in ("describe", "delete"):
        unknown = tpu.gcloud(command, "other")
        assert (unknown.returncode, "NOT_FOUND: Resource" in unknown.stderr) == (1, True)


def test_types_have_their_workers() -> None:
    counts = {"v4-8": 1, "v4-16": 2, "v4-32": 4, "v5litepod-8": 1, "v5litepod-16": 4, "v6e-4": 1, "v2-8": 1, "v3-32": 4}
    assert {kind: workers_of(kind) for kind in counts} == counts
    assert [workers_of(kind) for kind in ("v4-9", "h100-8", "v4", "v4-1")] == [None] * 4


# Queued resources.

QUEUED = ("--accelerator-type=v4-8", f"--runtime-version={VERSION}")


def queued_state(tpu: TpuBed, name: str) -> str:
    return tpu.gcloud("describe", name, "--format=value(state.state)", group="queued-resources").stdout.strip()


def test_a_queued_resource_is_granted_late_and_suspended_when_preempted(tpu: TpuBed) -> None:
    tpu.queue.wait_s = None
    tpu.gcloud("create", "qr", "--node-id=vm", *QUEUED, "--spot", group="queued-resources", check=True)
    assert queued_state(tpu, "qr") == "WAITING_FOR_RESOURCES"
    assert tpu.names() == []
    tpu.grant("qr")
    tpu.wait_for("vm", "READY")
    assert queued_state(tpu, "qr") == "ACTIVE"
    assert describe(tpu, "vm")["queuedResource"].endswith("/queuedResources/qr")
    assert tpu.gcloud("ssh", "vm", "--command=hostname").stdout.split() == [tpu.workers("vm")[0].name]
    refused = tpu.gcloud("delete", "qr", group="queued-resources")
    assert (refused.returncode, "FAILED_PRECONDITION" in refused.stderr) == (1, True)
    tpu.preempt("vm")
    wait_for(lambda: queued_state(tpu, "qr") == "SUSPENDED", "the queued resource is suspended")
    tpu.gcloud("delete", "qr", "--force", group="queued-resources", check=True)
    assert tpu.names() == []
    assert "NOT_FOUND" in tpu.gcloud("describe", "qr", group="queued-resources").stderr


def test_a_queued_resource_fails_without_capacity_or_in_time(tpu: TpuBed) -> None:
    tpu.no_capacity()
    tpu.gcloud("create", "qr", "--node-id=vm", *QUEUED, group="queued-resources", check=True)
    wait_for(lambda: queued_state(tpu, "qr") == "FAILED", "no capacity")
    shown = json.loads(tpu.gcloud("describe", "qr", "--format=json", group="queued-resources").stdout)
    assert shown["state"]["failedData"]["error"]["code"] == 8
    tpu.queue.wait_s = None
    limit = "--valid-until-duration=1s"
    tpu.gcloud("create", "late", "--node-id=vm", *QUEUED, limit, group="queued-resources", check=True)
    wait_for(lambda: queued_state(tpu, "late") == "FAILED", "its time is over")
    for name in ("qr", "late"):
        tpu.gcloud("delete", name, group="queued-resources", check=True)


# Faults.


def test_stock_out_ends_the_operation_and_leaves_no_node(tpu: TpuBed) -> None:
    tpu.no_capacity()
    done = tpu.gcloud("create", "vm", *POD)
    assert done.returncode == 1
    assert '"code": 8' in done.stderr
    assert 'There is no more capacity in the zone \\"us-central2-b\\"' in done.stderr
    assert tpu.names() == []
    tpu.there_is_capacity()
    tpu.gcloud("create", "vm", *POD, check=True)


def test_a_lost_answer_has_been_obeyed(tpu: TpuBed) -> None:
    tpu.lose_answer("nodes.delete", times=10)
    tpu.create("vm")
    tpu.gcloud("delete", "vm")
    tpu.wait_for("vm", None)


def test_what_keeps_a_vm_from_coming_up_is_told_at_once(tmp_path: Path) -> None:
    skip_without("tpu")
    tpu = TpuBed(HostSettings(shared=[tmp_path / "no-such-folder"]))
    try:
        with pytest.raises(BedError, match=r"was due in the cloud failed: no namespace: (.|\n)*no-such-folder"):
            tpu.create("vm")
        told = answer(tpu, "GET", "/nodes/vm")[1]["error"]
        assert told["status"] == "FAILED_PRECONDITION"
        assert "the bed itself has failed: no namespace: " in told["message"]
    finally:
        with pytest.raises(BedError, match="no-such-folder"):
            tpu.close()


def test_a_call_that_is_killed_takes_its_ssh_with_it(tpu: TpuBed) -> None:
    (worker,) = tpu.create("vm")
    words = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "vm", "--command=exec sleep 300"]
    call = subprocess.Popen(words, env={**os.environ, **tpu.env}, stdin=subprocess.DEVNULL, start_new_session=True)
    wait_for(lambda: worker.processes("sleep"), "the command runs")
    assert len(worker.processes("sshd")) > 1
    call.kill()
    assert call.wait(10) == -signal.SIGKILL
    wait_for(lambda: len(worker.processes("sshd")) == 1, "its connection is closed")


def test_states_that_lie(tpu: TpuBed) -> None:
    (worker,) = tpu.create("vm", spot=True)
    tpu.preempt("vm", state="READY")
    assert describe(tpu, "vm")["state"] == "READY"
    assert tpu.workers("vm") == []
    done = tpu.gcloud("ssh", "vm", "--ssh-flag=-oConnectTimeout=1", "--ssh-flag=-oConnectionAttempts=1",
                      "--command=true", "--dry-run")  # fmt: skip
    assert worker.external in done.stdout
    tpu.set("vm", state="DEFROSTING", health="UNHEALTHY_MAINTENANCE")
    assert describe(tpu, "vm")["state"] == "DEFROSTING"
    assert describe(tpu, "vm")["health"] == "UNHEALTHY_MAINTENANCE"
    tpu.create("kept")
    with pytest.raises(BedError, match="neither spot nor preemptible"):
        tpu.preempt("kept")


def test_a_worker_can_be_silent_or_hang_and_comes_back(tpu: TpuBed) -> None:
    first, second = tpu.create("pod", "v4-16")

    def reaches() -> bool:
        script = f"import socket; print(socket.create_connection(('{second.address}', 22), 1).recv(4))"
        return first.run("python3", "-c", script, check=False) == "b'SSH-'\n"

    assert reaches()
    for trouble in (second.silent, second.hanging):
        with trouble():
            assert not reaches()
        wait_for(reaches, "it answers again")
    second.stop_sshd()
    assert not reaches()
    second.start_sshd()
    assert reaches()


def test_creating_takes_as_long_as_it_is_told(tpu: TpuBed) -> None:
    tpu.cloud.create_s = 600
    answer(tpu, "POST", "/nodes?nodeId=vm", NODE)
    node = answer(tpu, "GET", "/nodes/vm")[1]
    assert (node["state"], node["networkEndpoints"], tpu.workers("vm")) == ("CREATING", [], [])
    operation = answer(tpu, "DELETE", "/nodes/vm")[1]["name"]
    tpu.wait_for("vm", None)
    shown = answer(tpu, "GET", "/operations/" + operation.rpartition("/")[2])[1]
    assert shown["done"] is True
    assert shown["response"]["@type"].endswith("Empty")


# What is asked without gcloud.

NODE = {"acceleratorType": "v4-8", "runtimeVersion": VERSION}
PLACE = "projects/lab-project/locations/us-central2-b"
SPEC = {"parent": PLACE, "nodeId": "vm", "node": NODE}


def answer(
    tpu: TpuBed, method: str, path: str, body: object = None, version: str = "v2", token: str = TOKEN
) -> tuple[int, dict]:
    data = json.dumps(body).encode() if body is not None else b""
    status, message = tpu.api.answer(method, f"/{version}/{PLACE}{path}", f"Bearer {token}", data)
    return status, message


def test_bodies_are_checked(tpu: TpuBed) -> None:
    for path, body, message in (
        ("/nodes?nodeId=vm", {"acceleratorType": "v4-8"}, "a runtime version is required"),
        ("/nodes?nodeId=vm", {**NODE, "zone": "x"}, "Unknown name \"zone\" at 'node': Cannot find field."),
        ("/nodes?nodeId=vm", {**NODE, "labels": {"A": "b"}}, "the label A=b is invalid"),
        ("/nodes?nodeId=vm", {**NODE, "autocheckpointEnabled": True}, "Unknown name"),
        ("/nodes?nodeId=vm", {**NODE, "schedulingConfig": {"spot": "yes"}}, "Invalid value at 'node.schedulingConfig"),
        ("/nodes?nodeId=My_VM", NODE, "node_id 'My_VM' must match"),
        ("/queuedResources?queuedResourceId=q", {"tpu": {}}, "has one node spec"),
        ("/queuedResources?queuedResourceId=q", {"tpu": {"nodeSpec": [{**SPEC, "parent": "x"}]}}, "the parent x"),
        (
            "/queuedResources?queuedResourceId=q",
            {"tpu": {"nodeSpec": [SPEC]}, "spot": {}, "guaranteed": {}},
            "either spot or guaranteed",
        ),
    ):
        status, refusal = answer(tpu, "POST", path, body)
        assert (status, refusal["error"]["status"]) == (400, "INVALID_ARGUMENT"), message
        assert message in refusal["error"]["message"]
        assert tpu.names() == []


def test_versions_tokens_and_paths_are_checked(tpu: TpuBed) -> None:
    alpha = {**NODE, "autocheckpointEnabled": True}
    assert answer(tpu, "POST", "/nodes?nodeId=vm", alpha, version="v2alpha1")[0] == 200
    assert answer(tpu, "GET", "/nodes/vm", token="old")[1]["error"]["status"] == "UNAUTHENTICATED"
    assert answer(tpu, "POST", "/nodes?nodeId=vm", NODE)[1]["error"]["status"] == "ALREADY_EXISTS"
    assert answer(tpu, "GET", "/nowhere")[0] == 404
    assert answer(tpu, "POST", "/nodes/vm:simulateMaintenanceEvent", {})[0] == 501
    assert answer(tpu, "GET", "/operations/operation-0")[0] == 404
    assert answer(tpu, "PATCH", "/nodes/vm?updateMask=state", {})[0] == 400


def test_lists(tpu: TpuBed) -> None:
    tpu.create("vm")
    tpu.queue.wait_s = None
    answer(tpu, "POST", "/queuedResources?queuedResourceId=q", {"tpu": {"nodeSpec": [{**SPEC, "nodeId": "other"}]}})
    assert [node["name"] for node in answer(tpu, "GET", "/nodes")[1]["nodes"]] == [f"{PLACE}/nodes/vm"]
    (queued,) = answer(tpu, "GET", "/queuedResources")[1]["queuedResources"]
    assert queued["name"] == f"{PLACE}/queuedResources/q"
    assert "v4-32" in [kind["type"] for kind in answer(tpu, "GET", "/acceleratorTypes")[1]["acceleratorTypes"]]
    assert VERSION in [each["version"] for each in answer(tpu, "GET", "/runtimeVersions")[1]["runtimeVersions"]]


def test_several_nodes_of_one_queued_resource(tpu: TpuBed) -> None:
    several = {"parent": PLACE, "node": NODE, "multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "slice"}}
    answer(tpu, "POST", "/queuedResources?queuedResourceId=q", {"tpu": {"nodeSpec": [several]}, "spot": {}})
    for name in ("slice-0", "slice-1"):
        tpu.wait_for(name, "READY")
    tpu.preempt("slice-1")
    wait_for(lambda: answer(tpu, "GET", "/queuedResources/q")[1]["state"]["state"] == "SUSPENDED", "it is suspended")
    assert answer(tpu, "DELETE", "/queuedResources/q")[1]["error"]["status"] == "FAILED_PRECONDITION"
    assert answer(tpu, "DELETE", "/queuedResources/q?force=true")[0] == 200
    tpu.wait_for("slice-0", None)
    wait_for(lambda: answer(tpu, "GET", "/queuedResources/q")[0] == 404, "it is deleted")


def test_two_beds_at_once_and_nothing_is_left(start_tpu: Callable[..., TpuBed]) -> None:
    other = start_tpu()
    other.create("vm")
    with TpuBed() as tpu:
        (worker,) = tpu.create("vm")
        running = worker.processes()
        assert tpu.gcloud("ssh", "vm", "--command=hostname; echo mine > ~/file", check=True).stdout
        assert other.workers("vm")[0].run("ls", "/root") == ""
    assert not [pid for pid in running if os.path.exists(f"/proc/{pid}")]
    assert not tpu.directory.exists()


def test_nothing_is_left_of_a_bed_whose_test_run_was_killed(tpu: TpuBed) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from beds.tpu import TpuBed\n"
        "tpu = TpuBed()\n"
        "workers = tpu.create('vm', 'v4-16')\n"
        "print(tpu.directory, *[pid for worker in workers for pid in worker.processes()], flush=True)\n"
        "sys.stdin.read()\n"
    )
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    words = [os.path.abspath(sys.executable), "-c", script, here]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        directory, *pids = run.stdout.readline().split()
        assert pids
        run.kill()
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the workers end")
    wait_for(lambda: not os.path.exists(directory), "the bed's directory is removed")
