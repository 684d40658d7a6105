"""Partitions of SLURM and queues of PBS: whether a request fits into one of them, now or once other jobs have ended.

What a job asks the scheduler for is decided by the outlets (outlets/slurm/resources.py, outlets/pbs/resources.py), and
is taken from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from dispatcher.base.messages import counted
from dispatcher.errors import nearest
from dispatcher.hosts.types import Hosts, PbsHost, SlurmHost
from dispatcher.outlets.pbs import resources as pbs_resources
from dispatcher.outlets.slurm import gres
from dispatcher.outlets.slurm import resources as slurm_resources
from dispatcher.outlets.solver import slurm
from dispatcher.outlets.solver.reports import BatchReport, Gpus, Node, Queue
from dispatcher.outlets.solver.request import Choice, HardwareRequest, Refusal, chips_text


class _Need(msgspec.Struct, frozen=True, kw_only=True):
    """What the outlet asks the scheduler for: the GPUs of each node, CPUs and memory of every node.

    `gpu_type` is the type that is asked for, empty for any; `chip` is what people call it.
    """

    gpus: tuple[int, ...]
    gpu_type: str
    chip: str
    cpus: int
    memory_mib: int

    @property
    def total(self) -> int:
        return sum(self.gpus)

    def has(self, node: Node) -> int:
        """The GPUs of this type in a node."""
        return sum(gpus.total for kind, gpus in node.gpus.items() if self._suits(kind))

    def free(self, node: Node) -> int:
        """Those that are not in use."""
        if node.is_taken:
            return 0
        return sum(gpus.total - gpus.used for kind, gpus in node.gpus.items() if self._suits(kind))

    def _suits(self, kind: str) -> bool:
        return not self.gpu_type or kind.lower() == self.gpu_type.lower()


class _Site(msgspec.Struct, frozen=True, kw_only=True):
    """How a scheduler is used: what its queues are called, in which ones the job may run, and which nodes it may use.

    `names` are the queues in order of preference; none: the scheduler's own default. `cure` says what to do about GPUs
    of another type than is asked for.
    """

    word: str
    program: str
    names: tuple[str, ...]
    usable: Callable[[Queue], list[Node]]
    cure: str


class _Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request fits into one queue. `free` GPUs of the right type are not in use."""

    queue: str
    can_start: bool = False
    can_wait: bool = False
    free: int = 0
    why: str


def judge_slurm(host: SlurmHost, request: HardwareRequest, hosts: Hosts, found: BatchReport | None) -> Choice | Refusal:
    """Whether SLURM can run the request, and in which partition."""
    asked = request.for_outlet()
    why = slurm_resources.refusal(host, asked)
    if why:
        return Refusal(host=host.name, why=why)
    if found is not None:
        nodes = (node for queue in found.queues.values() for node in queue.nodes)
        hosts = gres.existing_first(hosts, {kind.lower() for node in nodes for kind in node.gpus})
    shape = slurm_resources.shape_of(host, asked)
    partitions = slurm_resources.partitions_for(host, asked)
    constraint = partitions[0].constraint if partitions else None
    excluded = slurm.expand_nodes(host.exclude)

    def usable(queue: Queue) -> list[Node]:
        return [
            _seen(node, host.gres_supported, host.slots_per_node)
            for node in queue.nodes
            if node.name not in excluded and slurm.has_features(constraint, node.features)
        ]

    need = _Need(
        gpus=(shape.gpus_per_node,) * shape.nodes,
        gpu_type=slurm_resources.gpu_type(host, hosts, asked) if host.gres_supported else "",
        chip=request.chip,
        cpus=request.cpus or 1,
        # A job that does not ask for memory gets what the host says.
        memory_mib=request.memory_mib or int((host.mem or "1").removesuffix("M")) or 1,
    )
    site = _Site(
        word="partition",
        program="SLURM",
        names=tuple(partition.name for partition in partitions),
        usable=usable,
        cure=(
            f"gres_mapping, or gpu_type of the host, must say what {request.chip} is called there"
            if request.chip
            else "gpu_type of the host asks for it"
        ),
    )
    return _judge(host.name, need, site, found)


def judge_pbs(host: PbsHost, request: HardwareRequest, hosts: Hosts, found: BatchReport | None) -> Choice | Refusal:
    """Whether PBS can run the request, and in which queue."""
    del hosts
    asked = request.for_outlet()
    why = pbs_resources.refuses(host, asked)
    if not why and request.min_chips and request.chip and not host.chips:
        why = f"it is not known whether it has {request.chip}: say in `chips` which GPUs the host has"
    if why:
        return Refusal(host=host.name, why=why)
    chunks = pbs_resources.chunks(host, asked)
    gpus = tuple(chunk.gpus for chunk in chunks for _ in range(chunk.nodes))
    need = _Need(
        gpus=gpus,
        gpu_type=request.chip if len(host.chips) > 1 else "",
        chip=request.chip,
        cpus=request.cpus or max(1, *gpus),
        memory_mib=request.memory_mib or 1,
    )
    site = _Site(
        word="queue",
        program="PBS",
        # The one that jobs are submitted to.
        names=host.queues[:1],
        usable=lambda queue: [_seen(node, host.gres_supported, host.slots_per_node) for node in queue.nodes],
        cure=f"jobs ask for {pbs_resources.CHIP_RESOURCE}={request.chip}",
    )
    return _judge(host.name, need, site, found)


def _seen(node: Node, gres_supported: bool, slots_per_node: int | None) -> Node:
    """The node with its GPUs where the scheduler does not know of them: an idle node has all its slots free."""
    if gres_supported:
        return node
    slots = slots_per_node or 1
    return msgspec.structs.replace(node, gpus={"": Gpus(slots, 0 if node.free_cpus == node.cpus else slots)})


def _judge(host: str, need: _Need, site: _Site, found: BatchReport | None) -> Choice | Refusal:
    if found is None:
        queue = site.names[0] if site.names else ""
        return Choice(host=host, queue=queue, is_queued=True, why="as configured, not asked")
    names = site.names or tuple(name for name, queue in found.queues.items() if queue.is_default)
    if not names:
        return Refusal(host=host, why=f"{site.program} has no default {site.word}: name one in `{site.word}s`")
    verdicts = [_in_queue(name, need, site, found) for name in names]
    best = min(verdicts, key=_rank)
    if not best.can_wait:
        return Refusal(host=host, why="; ".join(verdict.why for verdict in verdicts))
    return Choice(
        host=host,
        queue=best.queue if site.names else "",
        is_queued=not best.can_start,
        free_chips=best.free,
        why=best.why,
    )


def _rank(verdict: _Verdict) -> tuple[bool, bool, int]:
    """Of queues that can start it the first one is best, of those where it waits the one with the most free GPUs."""
    return not verdict.can_start, not verdict.can_wait, 0 if verdict.can_start else -verdict.free


def _in_queue(name: str, need: _Need, site: _Site, found: BatchReport) -> _Verdict:
    """Whether the request fits into this queue."""
    place = f"{site.word} {name}"
    queue = found.queues.get(name)
    if queue is None:
        why = f"{site.program} shows none of this name{nearest(name, found.queues)}"
        return _Verdict(queue=name, why=f"{place}: {why}")
    nodes = site.usable(queue)
    working = [node for node in nodes if not node.unusable]
    why = queue.closed or _no_node(nodes, working) or _never_fits(need, working, site)
    if why:
        return _Verdict(queue=name, why=f"{place}: {why}")
    free = sum(need.free(node) for node in working)
    share = _share(need, working, free)
    ready = [node for node in working if _has_room(node, need)]
    if _covers([need.free(node) for node in ready], need):
        return _Verdict(queue=name, can_start=True, can_wait=True, free=free, why=f"{place}: {share}")
    waiting = f", {counted(queue.pending, 'job')} waiting" if queue.pending else ""
    return _Verdict(queue=name, can_wait=True, free=free, why=f"{place}: no room now ({share}{waiting})")


def _has_room(node: Node, need: _Need) -> bool:
    return not node.is_taken and node.free_cpus >= need.cpus and node.free_mib >= need.memory_mib


def _covers(gpus: Sequence[int], need: _Need) -> bool:
    """Whether nodes with so many GPUs are enough, each for one part of the job."""
    largest = sorted(gpus, reverse=True)
    parts = sorted(need.gpus, reverse=True)
    return len(largest) >= len(parts) and all(has >= part for has, part in zip(largest, parts, strict=False))


def _share(need: _Need, nodes: Sequence[Node], free: int) -> str:
    if need.total:
        return f"{free} of {chips_text(sum(need.has(node) for node in nodes), need.chip)} free"
    free_cpus = sum(node.free_cpus for node in nodes if not node.is_taken)
    return f"{free_cpus} of {sum(node.cpus for node in nodes)} CPUs free"


def _no_node(nodes: Sequence[Node], working: Sequence[Node]) -> str:
    if working:
        return ""
    states = Counter(node.unusable for node in nodes)
    return (
        f"no node can be used ({', '.join(f'{number} {state}' for state, number in states.items()) or 'it has none'})"
    )


def _never_fits(need: _Need, nodes: Sequence[Node], site: _Site) -> str:
    """Why the nodes could not run it even if they were empty."""
    if need.total and not any(need.has(node) for node in nodes):
        return _no_such_gpu(need, nodes, site)
    most = max(need.has(node) for node in nodes)
    if most < max(need.gpus):
        return f"too few chips: a node has {chips_text(most, need.chip)}, {_spread(need, most)}"
    large = [node for node in nodes if need.has(node) >= min(need.gpus)]
    roomy = [node for node in large if node.cpus >= need.cpus]
    if not roomy:
        return f"too few CPUs: a node has {max(node.cpus for node in large)}, {need.cpus} needed"
    fitting = [node for node in roomy if node.memory_mib >= need.memory_mib]
    if not fitting:
        memory_mib = max(node.memory_mib for node in roomy)
        return f"too little memory: a node has {memory_mib} MiB, {need.memory_mib} MiB needed"
    if not _covers([need.has(node) for node in fitting], need):
        return f"too few nodes: {len(fitting)} can run it, {len(need.gpus)} needed"
    return ""


def _spread(need: _Need, most: int) -> str:
    nodes = -(-need.total // most)
    where = f" on each of {len(need.gpus)}" if len(need.gpus) > 1 else ""
    return f"{max(need.gpus)} needed{where}; over {nodes} nodes (--nodes {nodes}) they would fit"


def _no_such_gpu(need: _Need, nodes: Sequence[Node], site: _Site) -> str:
    kinds = sorted({kind for node in nodes for kind in node.gpus})
    if not kinds:
        return "its nodes have no GPUs"
    named = ", ".join(kind or "GPUs without a type" for kind in kinds)
    return f"no {need.gpu_type}, it has {named}; {site.cure}"
