"""What requests come to, row by row of the table, and the partitions that they go to."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.hosts.types import Hosts, Partition, SlurmHost
from dispatcher.outlets.base import Request
from dispatcher.outlets.slurm.resources import partition_options, refusal, resource_options

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
    assert dict(partition_options(host(**keys), request_)) == expected
