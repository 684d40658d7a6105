"""What real kubectl and gcloud tell of a Queue and of a TPU VM, read by the solver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from beds.bed import wait_for
from beds.k8s import K8sBed
from beds.tpu import TpuBed
from beds.volcano import VolcanoBed
from volcano_jobs import VolcanoJobs

from dispatcher.hosts.types import AnyHost, Hosts, TpuHost, VolcanoHost
from dispatcher.outlets.base import Request
from dispatcher.outlets.remote.agent import programs
from dispatcher.outlets.remote.operations import Ran, Run
from dispatcher.outlets.solver.query import questions, read_report
from dispatcher.outlets.solver.reports import HostReport
from dispatcher.outlets.solver.request import Choice, HardwareRequest
from dispatcher.outlets.solver.solve import judge
from dispatcher.outlets.volcano.resources import pod_resources

LONG = "sleep 600"


def asked(host: AnyHost) -> HostReport:
    answers = []
    for operation in questions(host, 90, Path("/")):
        assert isinstance(operation, Run)
        words = {"words": list(operation.words), "timeout_s": operation.timeout_s, "environment": {}, "stdin": ""}
        answers.append(Ran(**programs.run({**words, "directory": "/"}, None)))  # type: ignore[arg-type]
    return read_report(host, answers)


def verdict(host: AnyHost, gpus: int, report: HostReport | None = None) -> str:
    request = HardwareRequest(min_chips=gpus)
    found = judge(host, request, Hosts(), report or asked(host))
    how = "" if not isinstance(found, Choice) else "waits: " if found.is_queued else "starts: "
    return f"{how}{found.why}"


def tells(host: AnyHost, gpus: int, expected: str) -> None:
    """The verdict becomes that: what a Queue has allocated is told some time after it was."""
    seen: list[str] = []

    def is_told() -> bool:
        seen.append(verdict(host, gpus))
        return seen[-1] == expected

    wait_for(is_told, lambda: f"{expected!r}: {seen[-1]!r}", every_s=0.2)


def check_queues(bed: VolcanoBed, root: Path) -> None:
    bed.make_queue("limited", capability={"nvidia.com/gpu": "4", "cpu": "8"})
    jobs = VolcanoJobs(bed, root, queue="limited", gpus_per_node=2)
    assert verdict(jobs.host, 4) == "starts: queue limited: 4 of 4 GPUs free"
    assert verdict(jobs.host, 5) == "queue limited: its capability is 4 GPUs, 6 GPUs needed"
    jobs.submit(LONG, request=Request(gpus=3))
    tells(jobs.host, 1, "waits: queue limited: no room now (0 of 4 GPUs free)")
    assert pod_resources(jobs.host, Request(gpus=3)) == {"nvidia.com/gpu": "2"}
    jobs.cancel("j0", force=True)
    tells(jobs.host, 4, "starts: queue limited: 4 of 4 GPUs free")
    bed.command("CloseQueue", "limited", kind="Queue")
    bed.wait_for_queue("limited", "Closed")
    assert verdict(jobs.host, 1) == "queue limited: it is Closed"


def test_a_queue_of_volcano_1_5(volcano: VolcanoBed, tmp_path: Path) -> None:
    check_queues(volcano, tmp_path)


@pytest.mark.slow
def test_a_queue_of_the_newest_volcano(new_volcano: VolcanoBed, tmp_path: Path) -> None:
    check_queues(new_volcano, tmp_path)


def host_of(bed: K8sBed, **keys: str) -> VolcanoHost:
    words = {"image": "i", "pvc_name": "p", "pvc_mount_path": "/p", "kubeconfig": str(bed.kubeconfig)}
    return VolcanoHost(name="k", cluster="k", namespace=bed.namespace, **{**words, **keys})  # type: ignore[arg-type]


def test_queues_that_tell_nothing(volcano: VolcanoBed) -> None:
    unlimited = "waits: queue default: what is free is not known, because its capability does not limit nvidia.com/gpu"
    assert verdict(host_of(volcano), 1) == unlimited
    assert verdict(host_of(volcano, queue="no-such"), 1) == "queue no-such: the cluster has no such Queue"
    denied = verdict(host_of(volcano, context="ordinary"), 1)
    assert denied.startswith("waits: queue default: what is free is not known: Error from server (Forbidden)")
    assert 'cannot get resource "queues"' in denied


def test_a_tpu_vm(tpu: TpuBed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in tpu.env.items():
        monkeypatch.setitem(os.environ, name, value)
    host = TpuHost(name="pod", cluster="pod", zone=tpu.zone, project=tpu.project, accelerator_type="v4-16")
    assert verdict(host, 8) == f"waits: there is no VM pod in {tpu.zone}: it has to be created first"
    tpu.create("pod", "v4-16", spot=True)
    assert verdict(host, 8) == "starts: the VM is READY, with 16 tpu-v4"
    tpu.preempt("pod")
    assert verdict(host, 8) == "the VM is PREEMPTED"
