"""What requests come to, row by row of the table, and the partitions that they go to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatcher.hosts.types import Hosts, Partition, SlurmHost, SlurmOptions
from dispatcher.outlets.base import Request
from dispatcher.outlets.slurm.resources import host_for, partition_options, refusal, resource_options
from dispatcher.outlets.slurm.scheduler import SlurmScheduler
from dispatcher.workspace import Layout

MAPPING = {"h100": ("nvidia_h100_80gb", "h100")}


def host(**keys: Any) -> SlurmHost:
    return SlurmHost(name="hpc", cluster="hpc", **keys)


def options(request: Request, **keys: Any) -> str:
    return " ".join(
        f"--{name}={value}" for name, value in resource_options(host(**keys), Hosts(gres_mapping=MAPPING), request)
    )


@pytest.mark.parametrize("slot_type", ["cuda", "rocm"])
@pytest.mark.parametrize(
    ("keys", "request_", "expected"),
    [
        ({}, Request(gpus=2), "--nodes=1 --tasks-per-node=1 --gpus=2"),
        ({}, Request(gpus=None), "--nodes=1 --tasks-per-node=1 --gpus=1"),
        ({}, Request(gpus=2, chip="h100"), "--nodes=1 --tasks-per-node=1 --gpus=nvidia_h100_80gb:2"),
        ({}, Request(gpus=2, chip="a100"), "--nodes=1 --tasks-per-node=1 --gpus=a100:2"),
        ({"gpu_type": "tesla"}, Request(gpus=2, chip="a100"), "--nodes=1 --tasks-per-node=1 --gpus=tesla:2"),
        ({"gpu_type": "tesla"}, Request(gpus=2), "--nodes=1 --tasks-per-node=1 --gpus=tesla:2"),
        ({}, Request(gpus=8, nodes=2), "--nodes=2 --tasks-per-node=1 --gpus=8 --gpus-per-task=4"),
        ({"slots_per_node": 4}, Request(gpus=2), "--nodes=1 --tasks-per-node=1 --gpus=2 --gpus-per-task=2"),
        (
            {"slots_per_node": 4, "gpu_type": "tesla"},
            Request(gpus=8),
            "--nodes=2 --tasks-per-node=1 --gpus=tesla:8 --gpus-per-task=tesla:4",
        ),
        ({"tres_supported": False}, Request(gpus=2), "--nodes=1 --ntasks=1 --gres=gpu:2"),
        (
            {"tres_supported": False, "slots_per_node": 4},
            Request(gpus=8, chip="a100"),
            "--nodes=2 --ntasks=2 --gres=gpu:a100:4",
        ),
        ({"tres_supported": False, "gres_supported": False}, Request(gpus=8, nodes=2), "--nodes=2 --ntasks=2"),
        ({"gres_supported": False, "slots_per_node": 4}, Request(gpus=8), "--nodes=2 --ntasks=2"),
        ({}, Request(gpus=0), "--nodes=1 --ntasks=1"),
        ({}, Request(gpus=0, cpus=8, nodes=2), "--nodes=2 --ntasks=2 --cpus-per-task=8"),
    ],
)
def test_gpus(slot_type: str, keys: dict[str, Any], request_: Request, expected: str) -> None:
    assert options(request_, slot_type=slot_type, **keys) == expected


@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize(
    ("keys", "request_", "expected"),
    [
        ({}, Request(gpus=None), "--nodes=1 --ntasks=1"),
        ({}, Request(gpus=0, cpus=4), "--nodes=1 --ntasks=1 --cpus-per-task=4"),
        ({"slots_per_node": 16}, Request(gpus=0, nodes=2), "--nodes=2 --ntasks=2 --cpus-per-task=16"),
        ({"slots_per_node": 16}, Request(gpus=0, cpus=4), "--nodes=1 --ntasks=1 --cpus-per-task=4"),
    ],
)
def test_cpus(supported: bool, keys: dict[str, Any], request_: Request, expected: str) -> None:
    ways = {"tres_supported": supported, "gres_supported": supported}
    assert options(request_, slot_type="cpu", **ways, **keys) == expected


@pytest.mark.parametrize(
    ("keys", "memory_mib", "expected"),
    [({}, None, None), ({"mem": "64G"}, None, "64G"), ({"mem": "64G"}, 1500, "1500M"), ({}, 1500, "1500M")],
)
def test_memory(keys: dict[str, Any], memory_mib: int | None, expected: str | None) -> None:
    request = Request(gpus=1, cpus=3, memory_mib=memory_mib)
    found = dict(resource_options(host(**keys), Hosts(), request))
    assert (found.get("mem"), found["cpus-per-task"]) == (expected, "3")


@pytest.mark.parametrize(
    ("keys", "request_", "why"),
    [
        ({"slot_type": "cpu"}, Request(gpus=1), "hpc has slot_type cpu, and 1 GPUs are asked for"),
        ({"slot_type": "cpu"}, Request(gpus=None), ""),
        ({"chips": {"a100": 8}}, Request(gpus=1, chip="h100"), "hpc has no h100, but a100"),
        ({"chips": {"a100": 8}}, Request(gpus=9, chip="a100"), "9 GPUs are asked for, and hpc may use 8 of a100"),
        ({"chips": {"a100": 8, "h100": 4}}, Request(gpus=8), ""),
        ({"chips": {"a100": 8, "h100": 4}}, Request(gpus=9), "9 GPUs are asked for, and hpc may use 8 of one kind"),
        ({"chips": {"a100": 8}}, Request(gpus=0, chip="h100"), ""),
        ({}, Request(gpus=64, chip="h100"), ""),
        ({}, Request(gpus=3, nodes=2), "3 GPUs cannot be spread evenly over 2 nodes"),
        ({"slots_per_node": 4}, Request(gpus=5), "5 GPUs cannot be spread evenly over 2 nodes"),
    ],
)
def test_what_a_host_can_never_run(keys: dict[str, Any], request_: Request, why: str) -> None:
    assert refusal(host(**keys), request_) == why


MANY = {
    "partitions": (Partition("small"), Partition("main", default=True), Partition("big")),
    "cpu_partitions": ("cpu", "small"),
}


@pytest.mark.parametrize(
    ("keys", "request_", "expected"),
    [
        ({}, Request(gpus=1), {}),
        ({}, Request(gpus=0), {}),
        (MANY, Request(gpus=1), {"partition": "main"}),
        # Which of them has the chip, SLURM knows.
        (MANY, Request(gpus=1, chip="h100"), {"partition": "main,small,big"}),
        (MANY, Request(gpus=0), {"partition": "cpu,small"}),
        ({"partitions": MANY["partitions"]}, Request(gpus=0), {"partition": "main"}),
        ({"partitions": (Partition("a"), Partition("b"))}, Request(gpus=1), {"partition": "a,b"}),
        ({"partitions": (Partition("a", constraint="ib"),)}, Request(gpus=1), {"partition": "a", "constraint": "ib"}),
        (
            {"partitions": (Partition("a", constraint="ib"), Partition("b"), Partition("c", constraint="ib"))},
            Request(gpus=1),
            {"partition": "a,c", "constraint": "ib"},
        ),
    ],
)
def test_partitions(keys: dict[str, Any], request_: Request, expected: dict[str, str]) -> None:
    assert dict(partition_options(host_for(host(**keys), request_))) == expected


SHAPES = {
    "slots_per_node": 8,
    "sbatch_args": ("--nice=1",),
    "partitions": (
        Partition("main", default=True),
        Partition("cpu", slot_type="cpu", mem="8192M"),
        Partition("old", gpu_type="k80", slots_per_node=2, tres_supported=False, sbatch_args=("--exclusive",)),
        Partition("older", gpu_type="k80", slots_per_node=2, tres_supported=False, sbatch_args=("--exclusive",)),
    ),
}


def asked(request: Request, **keys: Any) -> str:
    """All that is asked for on a host with partitions."""
    seen = host_for(host(**keys), request)
    found = [*partition_options(seen), *resource_options(seen, Hosts(), request)]
    return " ".join([*(f"--{name}={value}" for name, value in found), *seen.sbatch_args])


@pytest.mark.parametrize(
    ("keys", "request_", "expected"),
    [
        (SHAPES, Request(8), "--partition=main --nodes=1 --tasks-per-node=1 --gpus=8 --gpus-per-task=8 --nice=1"),
        (
            SHAPES,
            Request(4, slurm=SlurmOptions(partition="old")),
            "--partition=old --nodes=2 --ntasks=2 --gres=gpu:k80:2 --nice=1 --exclusive",
        ),
        (
            SHAPES,
            Request(4, slurm=SlurmOptions(partition="old", slots_per_node=4, gpu_type="a", sbatch_args=("--x",))),
            "--partition=old --nodes=1 --ntasks=1 --gres=gpu:a:4 --nice=1 --exclusive --x",
        ),
        (
            {**SHAPES, "cpu_partitions": ("cpu",)},
            Request(0),
            "--partition=cpu --nodes=1 --ntasks=1 --cpus-per-task=8 --mem=8192M --nice=1",
        ),
        ({}, Request(1, slurm=SlurmOptions(partition="new")), "--partition=new --nodes=1 --tasks-per-node=1 --gpus=1"),
        # Those that would give the job another shape are not in its list, and those without GPUs take none with them.
        (
            {"partitions": SHAPES["partitions"][1:]},
            Request(2),
            "--partition=old,older --nodes=1 --ntasks=1 --gres=gpu:k80:2 --exclusive",
        ),
    ],
)
def test_settings_of_partitions_and_of_jobs(keys: dict[str, Any], request_: Request, expected: str) -> None:
    assert asked(request_, **keys) == expected


def test_a_job_with_gpus_in_a_partition_without() -> None:
    request = Request(2, slurm=SlurmOptions(partition="cpu"))
    why = "partition cpu of hpc has slot_type cpu, and 2 GPUs are asked for"
    assert refusal(host_for(host(**SHAPES), request), request) == why


GPU, CPU, DEFAULT_CPU = Partition("g"), Partition("c", slot_type="cpu"), Partition("c", slot_type="cpu", default=True)
ON_CPU_PARTITION = SlurmOptions(partition="c")


@pytest.mark.parametrize(
    ("keys", "slurm", "partition", "gpus", "kind"),
    [
        ({}, None, "", 1, "cuda"),
        ({"slot_type": "cpu"}, None, "", 0, "cpu"),
        ({"partitions": (CPU, GPU)}, None, "g", 1, "cuda"),
        ({"partitions": (CPU, GPU)}, ON_CPU_PARTITION, "c", 0, "cpu"),
        ({"partitions": (GPU, DEFAULT_CPU)}, None, "c", 0, "cpu"),
        ({"partitions": (CPU,)}, None, "c", 0, "cpu"),
        ({"partitions": (CPU,), "cpu_partitions": ("other",)}, None, "other", 0, "cpu"),
        ({"partitions": (GPU, DEFAULT_CPU), "cpu_partitions": ("other",)}, None, "other", 0, "cpu"),
        ({"partitions": (GPU,), "cpu_partitions": ("other",)}, None, "g", 1, "cuda"),
        ({"slot_type": "cpu", "partitions": (CPU, Partition("amd", slot_type="rocm"))}, None, "amd", 1, "rocm"),
    ],
)
def test_gpus_that_are_left_open_follow_the_partition(
    keys: dict[str, Any], slurm: SlurmOptions | None, partition: str, gpus: int, kind: str
) -> None:
    request = Request(slurm=slurm)
    made = SlurmScheduler(host(**keys), Hosts(), Layout(Path("/w")), 1.0)
    assert (made.default_gpus(request), made.gpu_kind(request)) == (gpus, kind)
    assert dict(partition_options(host_for(host(**keys), request))) == ({"partition": partition} if partition else {})


def test_partitions_with_other_gpus_share_no_job() -> None:
    """A container is given the devices of one kind of GPU."""
    partitions = (Partition("a"), Partition("amd", slot_type="rocm"), Partition("b"))
    found = [host_for(host(partitions=partitions), Request(gpus)).partitions for gpus in (1, 0)]
    assert [",".join(partition.name for partition in each) for each in found] == ["a,b", "a,amd,b"]
