"""What an attempt asks for, in the words of `qsub -l`. Pure.

| slot_type   | gres_supported | select                           | place             | nodes                          |
|-------------|----------------|----------------------------------|-------------------|--------------------------------|
| cuda, rocm  | yes            | N:ncpus=C:ngpus=G[:mem=Mmb]      | scatter for N > 1 | GPUs / slots_per_node          |
| cuda, rocm  | no             | N:ncpus=C[:mem=Mmb]              | excl              | GPUs / (slots_per_node or 1)   |
| cpu         | either         | N:ncpus=C[:mem=Mmb]              | scatter for N > 1 | as the request asks for        |

The number of nodes is rounded up, and never below the one that the request asks for. C is the request's `cpus`, else
one for each GPU of the node. Where PBS has not been told of the GPUs (`gres_supported: false`) a node is taken whole,
because nothing else keeps two jobs from using the same GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from dispatcher.hosts.types import PbsHost, PbsOptions, PbsQueue
from dispatcher.outlets.base import Request

# The custom resource by which sites with several kinds of GPUs tell them apart.
CHIP_RESOURCE: Final = "gpu_type"


class Chunk(msgspec.Struct, frozen=True):
    """Equal nodes of a request: how many, and the GPUs of each."""

    nodes: int
    gpus: int


def host_for(host: PbsHost, request: Request) -> PbsHost:
    """The host as it is for this request: the queues that may take it, and what these and the request's options set."""
    options = request.pbs or PbsOptions()
    queues = _queues(host, request, options) or (PbsQueue(""),)
    seen = [_in_queue(host, queue, options) for queue in queues]
    shapes = [
        (request.gpus and each.slot_type, each.pbsbatch_args, resource_arguments(each, request, None)) for each in seen
    ]
    # A job has one shape, so a queue where it would have another one cannot take it in place of the first.
    alike = tuple(queue for queue, shape in zip(queues, shapes, strict=True) if queue.name and shape == shapes[0])
    return msgspec.structs.replace(seen[0], queues=alike, cpu_queues=())


def _in_queue(host: PbsHost, queue: PbsQueue, options: PbsOptions) -> PbsHost:
    return msgspec.structs.replace(
        host,
        slot_type=queue.slot_type or host.slot_type,
        gres_supported=host.gres_supported if queue.gres_supported is None else queue.gres_supported,
        slots_per_node=options.slots_per_node or queue.slots_per_node or host.slots_per_node,
        pbsbatch_args=(*host.pbsbatch_args, *queue.pbsbatch_args, *options.pbsbatch_args),
    )


def _queues(host: PbsHost, request: Request, options: PbsOptions) -> Sequence[PbsQueue]:
    """Those for such a request, the preferred first."""
    names: Sequence[str] = (options.queue,) if options.queue else () if request.gpus else host.cpu_queues
    if names:
        known = {queue.name: queue for queue in host.queues}
        return [known.get(name, PbsQueue(name)) for name in names]
    with_gpus = [queue for queue in host.queues if (queue.slot_type or host.slot_type) != "cpu"]
    return with_gpus if request.gpus and with_gpus else host.queues


def refuses(host: PbsHost, request: Request) -> str:
    """Why the host can never run it; empty when it may."""
    gpus = request.gpus or 0
    if gpus and host.slot_type == "cpu":
        first = host.queues[0] if host.queues else PbsQueue("")
        where = f"queue {first.name} of {host.name}" if first.slot_type == "cpu" else host.name
        return f"{where} has CPU slots only (slot_type: cpu)"
    if not gpus or not (host.chips or request.chip):
        return ""
    if not host.chips:
        return f"it is not known whether {host.name} has {request.chip}: say in `chips` which GPUs its nodes have"
    if request.chip and request.chip not in host.chips:
        return f"{host.name} has no {request.chip}, only {', '.join(sorted(host.chips))}"
    most = host.chips[request.chip] if request.chip else max(host.chips.values())
    return f"{host.name} has {most} GPUs of a kind, and {gpus} are asked for" if gpus > most else ""


def chunks(host: PbsHost, request: Request) -> list[Chunk]:
    """The nodes of a request, those with more GPUs first: as few as hold them, and as equal as possible."""
    gpus = request.gpus or 0
    nodes = max(1, request.nodes)
    most = host.slots_per_node or (None if host.gres_supported else 1)
    if gpus and most:
        nodes = max(nodes, math.ceil(gpus / most))
    each, more = divmod(gpus, nodes)
    found = [Chunk(more, each + 1), Chunk(nodes - more, each)]
    return [chunk for chunk in found if chunk.nodes]


def node_count(host: PbsHost, request: Request) -> int:
    """On how many nodes it runs."""
    return sum(chunk.nodes for chunk in chunks(host, request))


def resource_arguments(
    host: PbsHost, request: Request, walltime_s: float | None, of_chunks: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """The `-l` arguments of qsub; each chunk also gets the resources `of_chunks` that are not set by the request."""
    select = "+".join(_chunk_text(host, request, chunk, of_chunks) for chunk in chunks(host, request))
    arguments = ["-l", f"select={select}"]
    if place := _place(host, request):
        arguments += ["-l", f"place={place}"]
    if walltime_s is not None:
        arguments += ["-l", f"walltime={walltime_text(walltime_s)}"]
    return arguments


def walltime_text(seconds: float) -> str:
    """Seconds as PBS writes them, HH:MM:SS, rounded up."""
    minutes, seconds_left = divmod(math.ceil(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours:02d}:{minutes_left:02d}:{seconds_left:02d}"


def _chunk_text(host: PbsHost, request: Request, chunk: Chunk, of_chunks: Mapping[str, str]) -> str:
    found = {"ncpus": str(max(1, chunk.gpus)), **of_chunks}
    found.pop("ngpus", None)
    if request.cpus is not None:
        found["ncpus"] = str(request.cpus)
    if chunk.gpus and host.gres_supported:
        found["ngpus"] = str(chunk.gpus)
    if request.memory_mib is not None:
        found["mem"] = f"{request.memory_mib}mb"
    if chunk.gpus and request.chip and len(host.chips) > 1:
        found[CHIP_RESOURCE] = request.chip
    first = [name for name in ("ncpus", "ngpus", "mem", CHIP_RESOURCE) if name in found]
    return ":".join([str(chunk.nodes), *(f"{name}={found[name]}" for name in dict.fromkeys([*first, *found]))])


def _place(host: PbsHost, request: Request) -> str:
    words: Sequence[str] = ["scatter"] if node_count(host, request) > 1 else []
    if request.gpus and not host.gres_supported:
        words = [*(words or ["pack"]), "excl"]
    return ":".join(words)
