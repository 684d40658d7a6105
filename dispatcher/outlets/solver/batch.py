"""Partitions of SLURM and queues of PBS: whether a request fits into one of them, now or once other jobs have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from dispatcher.base.messages import counted
from dispatcher.errors import nearest
from dispatcher.hosts.types import Hosts, PbsHost, SlurmHost
from dispatcher.outlets.solver.asking import Need, QueueRules, asked_for
from dispatcher.outlets.solver.reports import BatchReport, Gpus, Node
from dispatcher.outlets.solver.request import Choice, HardwareRequest, UnsuitableHost, chips_text


class _Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request fits into one queue. `free` GPUs of the right type are not in use."""

    queue: str
    can_start: bool = False
    can_wait: bool = False
    free: int = 0
    why: str


def judge(
    host: SlurmHost | PbsHost, request: HardwareRequest, hosts: Hosts, found: BatchReport | None
) -> Choice | UnsuitableHost:
    """Whether the scheduler can run the request, and in which partition or queue."""
    asked = asked_for(host, request, hosts, found)
    return UnsuitableHost(host=host.name, why=asked) if isinstance(asked, str) else _judge(host.name, *asked, found)


def give(host: SlurmHost | PbsHost, request: HardwareRequest, hosts: Hosts, found: BatchReport) -> BatchReport:
    """The report as it will be when an attempt with this request has started, if it can start now."""
    asked = asked_for(host, request, hosts, found)
    if isinstance(asked, str):
        return found
    need, site = asked
    taken: dict[str, int] = {}
    for name in _names(site, found):
        queue = found.queues.get(name)
        taken = {} if queue is None or queue.closed else _placed(need, _working(site.usable(queue)))
        if taken:
            break
    return BatchReport(
        {
            name: msgspec.structs.replace(
                queue,
                nodes=tuple(
                    _less(node, taken[node.name], need) if node.name in taken else node for node in queue.nodes
                ),
            )
            for name, queue in found.queues.items()
        }
    )


def _placed(need: Need, nodes: Sequence[Node], *, if_empty: bool = False) -> dict[str, int]:
    """The part of the job for each node, of the nodes with the fewest GPUs that suffice; none if it must wait.

    `if_empty`: as if no other job ran.
    """
    has = need.has if if_empty else need.free
    placed: dict[str, int] = {}
    for part in sorted(range(len(need.gpus)), key=lambda part: (need.gpus[part], need.cpus[part]), reverse=True):
        fitting = [
            node
            for node in nodes
            if node.name not in placed
            and has(node) >= need.gpus[part]
            and (node.cpus if if_empty else _free_cpus(node)) >= need.cpus[part]
            and (node.memory_mib if if_empty else node.free_mib) >= need.memory_mib
        ]
        if not fitting:
            return {}
        placed[min(fitting, key=has).name] = part
    return placed


def _working(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if not node.unusable]


def _free_cpus(node: Node) -> int:
    return 0 if node.is_taken else node.free_cpus


def _less(node: Node, part: int, need: Need) -> Node:
    """The node without what a part of an attempt takes of it."""
    left = dict(node.gpus)
    gpus = need.gpus[part]
    for kind, there in node.gpus.items():
        number = min(gpus, there.total - there.used) if need.suits(kind) else 0
        left[kind] = Gpus(there.total, there.used + number)
        gpus -= number
    free_mib, free_cpus = node.free_mib - need.memory_mib, node.free_cpus - need.cpus[part]
    return msgspec.structs.replace(node, gpus=left, free_cpus=free_cpus, free_mib=free_mib)


def _judge(host: str, need: Need, site: QueueRules, found: BatchReport | None) -> Choice | UnsuitableHost:
    if found is None or not site.is_reported:
        queue = site.names[0] if site.names else ""
        return Choice(host=host, queue=queue, is_queued=True, why="as configured, not asked")
    names = _names(site, found)
    if not names:
        return UnsuitableHost(host=host, why=f"{site.program} has no default {site.word}: name one in `{site.word}s`")
    verdicts = [_in_queue(name, need, site, found) for name in names]
    best = min(verdicts, key=_rank)
    if not best.can_wait:
        return UnsuitableHost(host=host, why="; ".join(verdict.why for verdict in verdicts))
    return Choice(
        host=host,
        queue=best.queue if site.names else "",
        is_queued=not best.can_start,
        free_chips=best.free,
        why=best.why,
    )


def _names(site: QueueRules, found: BatchReport) -> Sequence[str]:
    return site.names or [name for name, queue in found.queues.items() if queue.is_default]


def _rank(verdict: _Verdict) -> tuple[bool, bool, int]:
    """Of queues that can start it the first one is best, of those where it waits the one with the most free GPUs."""
    return not verdict.can_start, not verdict.can_wait, 0 if verdict.can_start else -verdict.free


def _in_queue(name: str, need: Need, site: QueueRules, found: BatchReport) -> _Verdict:
    """Whether the request fits into this queue."""
    place = f"{site.word} {name}"
    queue = found.queues.get(name)
    if queue is None:
        why = f"{site.program} shows none of this name{nearest(name, found.queues)}"
        return _Verdict(queue=name, why=f"{place}: {why}")
    nodes = site.usable(queue)
    working = _working(nodes)
    why = queue.closed or _no_node(nodes, working) or _never_fits(need, working, site)
    if why:
        return _Verdict(queue=name, why=f"{place}: {why}")
    free = sum(need.free(node) for node in working)
    share = _share(need, working, free)
    if _placed(need, working):
        return _Verdict(queue=name, can_start=True, can_wait=True, free=free, why=f"{place}: {share}")
    waiting = f", {counted(queue.pending, 'job')} waiting" if queue.pending else ""
    return _Verdict(queue=name, can_wait=True, free=free, why=f"{place}: no room now ({share}{waiting})")


def _share(need: Need, nodes: Sequence[Node], free: int) -> str:
    if need.total:
        return f"{free} of {chips_text(sum(need.has(node) for node in nodes), need.chip)} free"
    return f"{sum(map(_free_cpus, nodes))} of {sum(node.cpus for node in nodes)} CPUs free"


def _no_node(nodes: Sequence[Node], working: Sequence[Node]) -> str:
    if working:
        return ""
    states = Counter(node.unusable for node in nodes)
    return (
        f"no node can be used ({', '.join(f'{number} {state}' for state, number in states.items()) or 'it has none'})"
    )


def _never_fits(need: Need, nodes: Sequence[Node], site: QueueRules) -> str:
    """Why the nodes could not run it even if they were empty."""
    if need.total and not any(need.has(node) for node in nodes):
        return _no_such_gpu(need, nodes, site)
    most = max(need.has(node) for node in nodes)
    if most < max(need.gpus):
        return f"too few chips: a node has {chips_text(most, need.chip)}, {_spread(need, most)}"
    large = [node for node in nodes if need.has(node) >= min(need.gpus)]
    cpus = max(node.cpus for node in large)
    if cpus < max(need.cpus):
        return f"too few CPUs: a node has {cpus}, {max(need.cpus)} needed"
    memory_mib = max(node.memory_mib for node in large)
    if memory_mib < need.memory_mib:
        return f"too little memory: a node has {memory_mib} MiB, {need.memory_mib} MiB needed"
    if not _placed(need, nodes, if_empty=True):
        return f"too few nodes: {_number_of_fitting(need, nodes)} can run it, {len(need.gpus)} needed"
    return ""


def _number_of_fitting(need: Need, nodes: Sequence[Node]) -> int:
    """How many nodes could run the smallest part."""
    return sum(
        need.has(node) >= min(need.gpus) and node.cpus >= min(need.cpus) and node.memory_mib >= need.memory_mib
        for node in nodes
    )


def _spread(need: Need, most: int) -> str:
    nodes = -(-need.total // most)
    where = f" on each of {len(need.gpus)}" if len(need.gpus) > 1 else ""
    return f"{max(need.gpus)} needed{where}; over {nodes} nodes (--nodes {nodes}) they would fit"


def _no_such_gpu(need: Need, nodes: Sequence[Node], site: QueueRules) -> str:
    kinds = sorted({kind for node in nodes for kind in node.gpus})
    if not kinds:
        return "its nodes have no GPUs"
    named = ", ".join(kind or "GPUs without a type" for kind in kinds)
    return f"no {need.gpu_type}, it has {named}; {site.cure}"
