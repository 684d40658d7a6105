"""The table of resources: slot type, whether PBS knows the GPUs, and how many a node has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatcher.hosts.types import PbsHost, PbsOptions, PbsQueue
from dispatcher.outlets.base import Request
from dispatcher.outlets.pbs.resources import host_for, node_count, refuses, resource_arguments, walltime_text
from dispatcher.outlets.pbs.scheduler import PbsScheduler
from dispatcher.workspace import Layout


def host(**words: Any) -> PbsHost:
    return PbsHost(name="hpc", cluster="hpc", **words)


@pytest.mark.parametrize("slot_type", ["cuda", "rocm"])
@pytest.mark.parametrize(
    ("settings", "request_", "select", "place"),
    [
        ({}, Request(0), "1:ncpus=1", None),
        ({}, Request(0, cpus=16, memory_mib=65536), "1:ncpus=16:mem=65536mb", None),
        ({}, Request(1), "1:ncpus=1:ngpus=1", None),
        ({}, Request(4, cpus=32, memory_mib=1024), "1:ncpus=32:ngpus=4:mem=1024mb", None),
        ({}, Request(8, nodes=2), "2:ncpus=4:ngpus=4", "scatter"),
        ({"slots_per_node": 4}, Request(4), "1:ncpus=4:ngpus=4", None),
        ({"slots_per_node": 4}, Request(8), "2:ncpus=4:ngpus=4", "scatter"),
        ({"slots_per_node": 4}, Request(6), "2:ncpus=3:ngpus=3", "scatter"),
        ({"slots_per_node": 4}, Request(5), "1:ncpus=3:ngpus=3+1:ncpus=2:ngpus=2", "scatter"),
        ({"slots_per_node": 4}, Request(4, nodes=2), "2:ncpus=2:ngpus=2", "scatter"),
        ({"gres_supported": False}, Request(0), "1:ncpus=1", None),
        ({"gres_supported": False}, Request(1), "1:ncpus=1", "pack:excl"),
        ({"gres_supported": False}, Request(2), "2:ncpus=1", "scatter:excl"),
        ({"gres_supported": False, "slots_per_node": 8}, Request(8, cpus=64), "1:ncpus=64", "pack:excl"),
        ({"gres_supported": False, "slots_per_node": 8}, Request(16), "2:ncpus=8", "scatter:excl"),
        ({"chips": {"h100": 8}}, Request(2, chip="h100"), "1:ncpus=2:ngpus=2", None),
        ({"chips": {"h100": 8, "a100": 8}}, Request(2, chip="a100"), "1:ncpus=2:ngpus=2:gpu_type=a100", None),
        ({"chips": {"h100": 8, "a100": 8}}, Request(2), "1:ncpus=2:ngpus=2", None),
    ],
)
def test_gpu_slots(slot_type: str, settings: dict[str, Any], request_: Request, select: str, place: str | None) -> None:
    found = resource_arguments(host(slot_type=slot_type, **settings), request_, None)
    assert found == ["-l", f"select={select}", *(["-l", f"place={place}"] if place else [])]


@pytest.mark.parametrize(
    ("request_", "select"),
    [
        (Request(8), "2:ncpus=16:ngpus=4:mem=20gb:filesystems=home"),
        (Request(8, cpus=8, memory_mib=1024), "2:ncpus=8:ngpus=4:mem=1024mb:filesystems=home"),
        (Request(5), "1:ncpus=16:ngpus=3:mem=20gb:filesystems=home+1:ncpus=16:ngpus=2:mem=20gb:filesystems=home"),
        (Request(0), "1:ncpus=16:mem=20gb:filesystems=home"),
    ],
)
def test_resources_of_chunks_that_the_configuration_adds(request_: Request, select: str) -> None:
    """The chunks and their GPUs are the outlet's; what the request leaves open is as the configuration says."""
    added = {"ngpus": "8", "filesystems": "home", "mem": "20gb", "ncpus": "16"}
    assert resource_arguments(host(slots_per_node=4), request_, None, added)[1] == f"select={select}"


@pytest.mark.parametrize("gres_supported", [True, False])
def test_cpu_slots(gres_supported: bool) -> None:
    settings = host(slot_type="cpu", gres_supported=gres_supported, slots_per_node=4)
    assert resource_arguments(settings, Request(0, cpus=8), None) == ["-l", "select=1:ncpus=8"]
    two = resource_arguments(settings, Request(0, cpus=8, nodes=2), None)
    assert two == ["-l", "select=2:ncpus=8", "-l", "place=scatter"]
    assert "CPU slots only" in refuses(settings, Request(1))


def test_the_walltime() -> None:
    assert resource_arguments(host(), Request(0), 3600.5)[-1] == "walltime=01:00:01"
    assert walltime_text(1) == "00:00:01"
    assert walltime_text(100 * 3600 + 59 * 60) == "100:59:00"


def test_what_can_never_run() -> None:
    chips = host(chips={"h100": 8, "a100": 4})
    assert refuses(chips, Request(0, chip="b200")) == ""
    assert refuses(chips, Request(8)) == ""
    assert refuses(chips, Request(4, chip="a100")) == ""
    assert refuses(chips, Request(1, chip="b200")) == "hpc has no b200, only a100, h100"
    assert refuses(chips, Request(8, chip="a100")) == "hpc has 4 GPUs of a kind, and 8 are asked for"
    assert refuses(host(), Request(1, chip="h100")).startswith("it is not known whether hpc has h100: say in `chips`")
    assert refuses(host(), Request(1000)) == ""


def test_the_number_of_nodes() -> None:
    assert node_count(host(), Request(0)) == 1
    assert node_count(host(slots_per_node=4), Request(9)) == 3


QUEUES = (PbsQueue("gpu"), PbsQueue("more"), PbsQueue("cpu", slot_type="cpu"), PbsQueue("whole", gres_supported=False))


@pytest.mark.parametrize(
    ("settings", "request_", "queues", "select"),
    [
        ({"queues": QUEUES}, Request(2), ["gpu", "more"], "1:ncpus=2:ngpus=2"),
        ({"queues": QUEUES, "cpu_queues": ("cpu", "small")}, Request(0), ["cpu", "small"], "1:ncpus=1"),
        ({"queues": QUEUES, "cpu_queues": ("cpu", "small")}, Request(1), ["gpu", "more"], "1:ncpus=1:ngpus=1"),
        ({"queues": QUEUES}, Request(1, pbs=PbsOptions(queue="whole")), ["whole"], "1:ncpus=1"),
        ({"queues": QUEUES}, Request(4, pbs=PbsOptions(slots_per_node=2)), ["gpu", "more"], "2:ncpus=2:ngpus=2"),
        # With other numbers of slots it would be the same job.
        (
            {"cpu_queues": ("a", "b"), "queues": (PbsQueue("b", slots_per_node=2),)},
            Request(0),
            ["a", "b"],
            "1:ncpus=1",
        ),
        ({}, Request(1, pbs=PbsOptions(queue="new")), ["new"], "1:ncpus=1:ngpus=1"),
        ({"queues": QUEUES[2:]}, Request(1), ["whole"], "1:ncpus=1"),
        ({"cpu_queues": ("a", "b")}, Request(0), ["a", "b"], "1:ncpus=1"),
        ({"cpu_queues": ("a", "b")}, Request(1), [], "1:ncpus=1:ngpus=1"),
    ],
)
def test_queues_and_options_of_a_job(
    settings: dict[str, Any], request_: Request, queues: list[str], select: str
) -> None:
    """Queues that would give the job another shape cannot take it in place of the first one."""
    seen = host_for(host(**settings), request_)
    assert [queue.name for queue in seen.queues] == queues
    assert resource_arguments(seen, request_, None)[1] == f"select={select}"


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Request(1), "cuda"),
        (Request(1, pbs=PbsOptions(queue="amd")), "rocm"),
        (Request(0, pbs=PbsOptions(queue="cpu")), "cpu"),
        (Request(1, pbs=PbsOptions(queue="new")), "cuda"),
    ],
)
def test_the_kind_of_gpus_is_that_of_the_queue(request_: Request, kind: str) -> None:
    queues = (*QUEUES, PbsQueue("amd", slot_type="rocm"))
    assert PbsScheduler(host(queues=queues), Layout(Path("/w"))).gpu_kind(request_) == kind
    names = [queue.name for queue in host_for(host(queues=queues), Request(1)).queues]
    assert names == ["gpu", "more"], "a container is given the devices of one kind"


def test_a_job_with_gpus_in_a_queue_without() -> None:
    request = Request(1, pbs=PbsOptions(queue="cpu"))
    why = refuses(host_for(host(queues=QUEUES), request), request)
    assert why == "queue cpu of hpc has CPU slots only (slot_type: cpu)"


def test_arguments_of_host_queue_and_job() -> None:
    queues = (PbsQueue("gpu", pbsbatch_args=("-m", "n")),)
    request = Request(1, pbs=PbsOptions(pbsbatch_args=("-l", "select=1:fs=home")))
    seen = host_for(host(queues=queues, pbsbatch_args=("-V",)), request)
    assert seen.pbsbatch_args == ("-V", "-m", "n", "-l", "select=1:fs=home")
