"""Partitions of SLURM and queues of PBS: whether a request fits into one of them, now or once other jobs have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dispatcher.base.messages import counted
from dispatcher.errors import nearest
from dispatcher.hosts.types import Hosts, PbsHost, SlurmHost
from dispatcher.outlets.solver import slurm
from dispatcher.outlets.solver.reports import BatchReport, Gpus, Node, Queue
from dispatcher.outlets.solver.request import Choice, HardwareRequest, Refusal, chips_text

_Fits = Callable[[Node], bool]


class _Words(NamedTuple):
    """What a scheduler calls things, for messages."""

    queue: str
    program: str
    key: str


_SLURM = _Words("partition", "SLURM", "partitions")
_PBS = _Words("queue", "PBS", "queues")


class _Verdict(NamedTuple):
    """Whether a request fits into one queue. `free` GPUs of the right type are not in use."""

    queue: str
    can_start: bool
    can_wait: bool
    free: int
    why: str


def judge_slurm(host: SlurmHost, request: HardwareRequest, hosts: Hosts, found: BatchReport | None) -> Choice | Refusal:
    """Whether SLURM can run the request, and in which partition."""
    if host.mem and host.mem != "0" and request.memory_mib is None:
        # A job that does not ask for memory gets this much.
        request = msgspec.structs.replace(request, memory_mib=int(host.mem.removesuffix("M")))
    partitions = sorted(host.partitions, key=lambda partition: not partition.default)
    names = [partition.name for partition in partitions]
    if not request.min_chips and host.cpu_partitions:
        names = list(host.cpu_partitions)
    excluded = slurm.expand_nodes(host.exclude)
    constraints = {partition.name: partition.constraint for partition in partitions}

    def usable(queue: Queue) -> list[Node]:
        constraint = constraints.get(queue.name)
        return [n for n in queue.nodes if n.name not in excluded and slurm.has_features(constraint, n.features)]

    gpu_types = {host.gpu_type} if host.gpu_type else set(hosts.gres_types(request.chip))
    if request.chip and host.gpu_type and not _names_chip(host, request.chip, host.gpu_type, hosts):
        why = f"it asks for GPUs of type {host.gpu_type} (gpu_type), which is not known to be {request.chip}"
        return Refusal(host=host.name, why=why)
    return _judge(host, request, gpu_types, _Site(_SLURM, names, usable), found)


def judge_pbs(host: PbsHost, request: HardwareRequest, hosts: Hosts, found: BatchReport | None) -> Choice | Refusal:
    """Whether PBS can run the request, and in which queue."""
    gpu_types = set(hosts.gres_types(request.chip))
    return _judge(host, request, gpu_types, _Site(_PBS, list(host.queues), lambda queue: list(queue.nodes)), found)


def _names_chip(host: SlurmHost, chip: str, gpu_type: str, hosts: Hosts) -> bool:
    return chip in host.chips or gpu_type.lower() in {name.lower() for name in hosts.gres_types(chip)}


class _Site(NamedTuple):
    """The queues to try, the preferred first (none: the default one), and which nodes of a queue may be used."""

    words: _Words
    names: Sequence[str]
    usable: Callable[[Queue], list[Node]]


def _judge(
    host: SlurmHost | PbsHost, request: HardwareRequest, gpu_types: set[str], site: _Site, found: BatchReport | None
) -> Choice | Refusal:
    why = _never(host, request)
    if why:
        return Refusal(host=host.name, why=why)
    if found is None:
        queue = site.names[0] if site.names else ""
        return Choice(host=host.name, queue=queue, is_queued=True, why="as configured, not asked")
    suits = _suits(host, request, gpu_types)
    verdicts = [_in_queue(name, host, request, suits, site, found) for name in _names(site, found)]
    if not verdicts:
        why = f"{site.words.program} has no default {site.words.queue}: name one in `{site.words.key}`"
        return Refusal(host=host.name, why=why)
    best = min(verdicts, key=_rank)
    if not best.can_wait:
        return Refusal(host=host.name, why="; ".join(verdict.why for verdict in verdicts))
    return Choice(
        host=host.name,
        queue=best.queue if site.names else "",
        is_queued=not best.can_start,
        free_chips=best.free,
        why=best.why,
    )


def _rank(verdict: _Verdict) -> tuple[bool, bool, int]:
    """Of queues that can start it the first one is best, of those where it waits the one with the most free GPUs."""
    return not verdict.can_start, not verdict.can_wait, 0 if verdict.can_start else -verdict.free


def _names(site: _Site, found: BatchReport) -> list[str]:
    return list(site.names) or [name for name, queue in found.queues.items() if queue.is_default]


def _never(host: SlurmHost | PbsHost, request: HardwareRequest) -> str:
    """Why the configured host can never run it."""
    if not request.min_chips:
        return ""
    if host.slot_type == "cpu":
        return "it is configured without GPUs (slot_type: cpu)"
    if host.chips:
        most = host.chips.get(request.chip, 0) if request.chip else sum(host.chips.values())
        if most < request.min_chips:
            limits = ", ".join(chips_text(number, chip) for chip, number in host.chips.items())
            return f"too few chips: jobs may use {limits} there, {request.chips_text} needed"
    return ""


def _suits(host: SlurmHost | PbsHost, request: HardwareRequest, gpu_types: set[str]) -> Callable[[str], bool]:
    """Whether GPUs of a type are of the requested kind. The scheduler may not tell the type: then `chips` does."""
    wanted = {name.lower() for name in gpu_types}
    if not request.chip:
        named = getattr(host, "gpu_type", None)
        return (lambda kind: kind.lower() == named.lower()) if named else (lambda kind: True)
    return lambda kind: kind.lower() in wanted or (not kind and request.chip in host.chips)


def _in_queue(
    name: str,
    host: SlurmHost | PbsHost,
    request: HardwareRequest,
    suits: Callable[[str], bool],
    site: _Site,
    found: BatchReport,
) -> _Verdict:
    """Whether the request fits into this queue."""

    def no(why: str, free: int = 0) -> _Verdict:
        return _Verdict(name, can_start=False, can_wait=False, free=free, why=f"{site.words.queue} {name}: {why}")

    queue = found.queues.get(name)
    if queue is None:
        return no(f"{site.words.program} shows none of this name{nearest(name, found.queues)}")
    if queue.closed:
        return no(queue.closed)
    nodes = site.usable(queue)
    working = [_seen(node, host) for node in nodes if not node.unusable]
    if not working:
        states = Counter(node.unusable for node in nodes)
        why = ", ".join(f"{number} {state}" for state, number in states.items()) or "it has none"
        return no(f"no node can be used ({why})")
    free = sum(_free_gpus(node, suits) for node in working)
    why = _never_fits(request, working, suits)
    if why:
        return no(why, free)
    total = sum(_all_gpus(node, suits) for node in working)
    share = f"{free} of {chips_text(total, request.chip)} free" if request.min_chips else _free_cpus_text(working)
    ready = sum(_fits_now(node, request, suits) for node in working)
    if ready >= request.nodes:
        return _Verdict(name, can_start=True, can_wait=True, free=free, why=f"{site.words.queue} {name}: {share}")
    waiting = f", {counted(queue.pending, 'job')} waiting" if queue.pending else ""
    why = f"{site.words.queue} {name}: no room now ({share}{waiting})"
    return _Verdict(name, can_start=False, can_wait=True, free=free, why=why)


def _seen(node: Node, host: SlurmHost | PbsHost) -> Node:
    """The node with its GPUs where the scheduler does not know of them: an idle node has all its slots free."""
    if host.gres_supported or not host.slots_per_node:
        return node
    used = 0 if node.free_cpus == node.cpus else host.slots_per_node
    return msgspec.structs.replace(node, gpus={"": Gpus(host.slots_per_node, used)})


def _all_gpus(node: Node, suits: Callable[[str], bool]) -> int:
    return sum(gpus.total for kind, gpus in node.gpus.items() if suits(kind))


def _free_gpus(node: Node, suits: Callable[[str], bool]) -> int:
    return 0 if node.is_taken else sum(gpus.total - gpus.used for kind, gpus in node.gpus.items() if suits(kind))


def _free_cpus_text(nodes: Sequence[Node]) -> str:
    free = sum(node.free_cpus for node in nodes if not node.is_taken)
    return f"{free} of {sum(node.cpus for node in nodes)} CPUs free"


def _fits_now(node: Node, request: HardwareRequest, suits: Callable[[str], bool]) -> bool:
    return (
        not node.is_taken
        and _free_gpus(node, suits) >= request.chips_per_node
        and node.free_cpus >= (request.cpus or 1)
        and node.free_mib >= (request.memory_mib or 1)
    )


def _never_fits(request: HardwareRequest, nodes: Sequence[Node], suits: Callable[[str], bool]) -> str:
    """Why the nodes could not run it even if they were empty."""
    with_gpus = nodes
    if request.min_chips:
        with_gpus = [node for node in nodes if _all_gpus(node, suits)]
        if not with_gpus:
            return _no_such_gpu(request, nodes)
        most = max(_all_gpus(node, suits) for node in with_gpus)
        if most < request.chips_per_node:
            return f"too few chips: a node has {chips_text(most, request.chip)}, {_per_node(request, most)}"
    large = [node for node in with_gpus if _all_gpus(node, suits) >= request.chips_per_node]
    roomy = [node for node in large if node.cpus >= (request.cpus or 1)]
    if not roomy:
        return f"too few CPUs: a node has {max(node.cpus for node in large)}, {request.cpus} needed"
    fitting = [node for node in roomy if node.memory_mib >= (request.memory_mib or 0)]
    if not fitting:
        most = max(node.memory_mib for node in roomy)
        return f"too little memory: a node has {most} MiB, {request.memory_mib} MiB needed"
    if len(fitting) < request.nodes:
        return f"too few nodes: {len(fitting)} can run it, {request.nodes} needed"
    return ""


def _per_node(request: HardwareRequest, most: int) -> str:
    nodes = -(-request.min_chips // most)
    where = f" on each of {request.nodes}" if request.nodes > 1 else ""
    return f"{request.chips_per_node} needed{where}; over {nodes} nodes (--nodes {nodes}) they would fit"


def _no_such_gpu(request: HardwareRequest, nodes: Iterable[Node]) -> str:
    kinds: Mapping[str, int] = Counter(kind for node in nodes for kind in node.gpus)
    named = sorted(kind for kind in kinds if kind)
    if not kinds:
        return "its nodes have no GPUs"
    if not named:
        return f"its GPUs have no type: say in `chips` of the host that they are {request.chip or 'of its gpu_type'}"
    if not request.chip:
        return f"its GPUs are {', '.join(named)}, not of the host's gpu_type"
    return f"no {request.chip} (it has {', '.join(named)}; gres_mapping says what {request.chip} is called there)"
