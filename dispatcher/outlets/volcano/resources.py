"""What a request asks Volcano for: the Kubernetes pods of a Job, and the resources of each of them.

A Kubernetes pod has at most `gpus_per_node` GPUs, without that the number in `chips`, because it runs on one node:

    request             Kubernetes pods                                        GPUs of each
    n GPUs, k nodes     the larger of k and n / GPUs of a node, rounded up      n / pods, rounded up
    GPUs left open      the larger of k and `num_nodes`                        1, or 0 where the host has none
    no GPUs             k                                                      0
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.base import Request

CPU: Final = "cpu"
MEMORY: Final = "memory"


class Shape(msgspec.Struct, frozen=True):
    """What a request comes to on a host: the Kubernetes pods of the Job, and the GPUs of each."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def refusal(host: VolcanoHost, request: Request) -> str:
    """Why the host can never run such a request; empty when it may."""
    gpus = request.gpus or 0
    if gpus and gpus_of_node(host) == 0:
        return f"{host.name} has no GPUs, and {gpus} are asked for"
    if not (gpus and request.chip) or set(host.chips) == {request.chip}:
        return ""
    if not host.chips:
        return f"it is not known whether {host.name} has {request.chip}: say in `chips` which GPUs its nodes have"
    if request.chip not in host.chips:
        return f"{host.name} has no {request.chip}, but {', '.join(sorted(host.chips))}"
    return (
        f"{host.name} has {', '.join(sorted(host.chips))}, and Kubernetes cannot be asked for one of them: configure a "
        "host for each, with the `node_selector` of its nodes"
    )


def shape_of(host: VolcanoHost, request: Request) -> Shape:
    """The Kubernetes pods of the Job for a request, by the table above."""
    most = gpus_of_node(host)
    if request.gpus is None:
        return Shape(max(1, request.nodes, host.num_nodes), 0 if most == 0 else 1)
    nodes = max(1, request.nodes)
    if request.gpus and most:
        nodes = max(nodes, math.ceil(request.gpus / most))
    return Shape(nodes, math.ceil(request.gpus / nodes))


def pod_resources(host: VolcanoHost, request: Request) -> dict[str, str]:
    """What each Kubernetes pod of the Job gets, as Kubernetes writes quantities; nothing of what it does not limit."""
    gpus = shape_of(host, request).gpus_per_node
    cpu, memory = (host.cpu, host.memory) if gpus else (host.cpu_cpu, host.cpu_memory)
    amounts = {
        host.gpu_resource_key: str(gpus) if gpus else None,
        host.rdma_resource_key: str(host.rdma_per_node) if uses_rdma(host, request) else None,
        CPU: str(request.cpus) if request.cpus else cpu,
        MEMORY: f"{request.memory_mib}Mi" if request.memory_mib else memory,
    }
    return {name: amount for name, amount in amounts.items() if amount is not None}


def uses_rdma(host: VolcanoHost, request: Request) -> bool:
    """Whether its Kubernetes pods get RDMA devices: those with GPUs, which are what the devices connect."""
    return host.rdma and shape_of(host, request).gpus_per_node > 0


def gpus_of_node(host: VolcanoHost) -> int | None:
    """The GPUs of a node, the most that a Kubernetes pod can have; None: not configured."""
    if host.gpus_per_node is not None:
        return host.gpus_per_node
    return max(host.chips.values()) if host.chips else None
