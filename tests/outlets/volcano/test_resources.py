"""What requests come to as Kubernetes pods, row by row of the table."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.base import Request
from dispatcher.outlets.volcano.resources import Shape, pod_resources, refusal, shape_of

KEY = "nvidia.com/gpu"


def host(**keys: Any) -> VolcanoHost:
    return VolcanoHost(name="k", cluster="k", image="i", pvc_name="p", pvc_mount_path="/p", **keys)


@pytest.mark.parametrize(
    ("keys", "request_", "expected"),
    [
        ({"gpus_per_node": 8}, Request(gpus=1), Shape(1, 1)),
        ({"gpus_per_node": 8}, Request(gpus=8), Shape(1, 8)),
        ({"gpus_per_node": 8}, Request(gpus=16), Shape(2, 8)),
        ({"gpus_per_node": 8}, Request(gpus=9), Shape(2, 5)),
        ({"gpus_per_node": 8}, Request(gpus=4, nodes=2), Shape(2, 2)),
        ({"gpus_per_node": 8}, Request(gpus=17, nodes=2), Shape(3, 6)),
        ({"chips": {"h100": 4}}, Request(gpus=8, chip="h100"), Shape(2, 4)),
        ({"chips": {"h100": 4}, "gpus_per_node": 2}, Request(gpus=8), Shape(4, 2)),
        ({}, Request(gpus=16), Shape(1, 16)),
        ({}, Request(gpus=None), Shape(1, 1)),
        ({"gpus_per_node": 8, "num_nodes": 4}, Request(gpus=None), Shape(4, 1)),
        ({"gpus_per_node": 8, "num_nodes": 4}, Request(gpus=2), Shape(1, 2)),
        ({"gpus_per_node": 0, "num_nodes": 2}, Request(gpus=None), Shape(2, 0)),
        ({"gpus_per_node": 8, "num_nodes": 4}, Request(gpus=0), Shape(1, 0)),
        ({"gpus_per_node": 8}, Request(gpus=0, nodes=3), Shape(3, 0)),
    ],
)
def test_pods(keys: dict[str, Any], request_: Request, expected: Shape) -> None:
    assert shape_of(host(**keys), request_) == expected
    assert refusal(host(**keys), request_) == ""
    assert expected.gpus >= (request_.gpus or 0)


@pytest.mark.parametrize(
    ("keys", "request_", "expected"),
    [
        ({}, Request(gpus=2), {KEY: "2"}),
        ({"gpu_resource_key": "amd.com/gpu"}, Request(gpus=2), {"amd.com/gpu": "2"}),
        ({"cpu": "32", "memory": "256Gi"}, Request(gpus=1), {KEY: "1", "cpu": "32", "memory": "256Gi"}),
        (
            {"cpu": "32", "memory": "256Gi"},
            Request(gpus=1, cpus=8, memory_mib=1024),
            {KEY: "1", "cpu": "8", "memory": "1024Mi"},
        ),
        ({"cpu": "32", "memory": "256Gi"}, Request(gpus=0), {}),
        ({"cpu": "32", "cpu_cpu": "4", "cpu_memory": "8Gi"}, Request(gpus=0), {"cpu": "4", "memory": "8Gi"}),
        ({"cpu_cpu": "4"}, Request(gpus=0, cpus=2), {"cpu": "2"}),
    ],
)
def test_resources_of_each(keys: dict[str, Any], request_: Request, expected: dict[str, str]) -> None:
    assert pod_resources(host(**keys), request_) == expected


@pytest.mark.parametrize(
    ("keys", "request_", "why"),
    [
        ({"gpus_per_node": 0}, Request(gpus=1), "k has no GPUs, and 1 are asked for"),
        ({"chips": {"h100": 8}}, Request(gpus=1, chip="a100"), "k has no a100, but h100"),
        ({"gpus_per_node": 8}, Request(gpus=1, chip="a100"), "it is not known whether k has a100: say in `chips`"),
        ({"chips": {"h100": 8, "l40": 8}}, Request(gpus=1, chip="l40"), "k has h100, l40, and Kubernetes cannot"),
    ],
)
def test_what_can_never_run(keys: dict[str, Any], request_: Request, why: str) -> None:
    assert refusal(host(**keys), request_).startswith(why)


def test_any_of_several_kinds_will_do_where_none_is_named() -> None:
    assert refusal(host(chips={"h100": 8, "l40": 8}), Request(gpus=1)) == ""
