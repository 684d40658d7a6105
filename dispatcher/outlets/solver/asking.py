"""What an outlet would ask a scheduler for, and where, as the `resources` modules of slurm/ and pbs/ say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from dispatcher.hosts.types import Hosts, PbsHost, SlurmHost
from dispatcher.outlets.pbs import resources as pbs_resources
from dispatcher.outlets.slurm import gres
from dispatcher.outlets.slurm import resources as slurm_resources
from dispatcher.outlets.solver import slurm
from dispatcher.outlets.solver.reports import BatchReport, Gpus, Node, Queue
from dispatcher.outlets.solver.request import HardwareRequest


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What the outlet asks the scheduler for: the GPUs and the CPUs of each node, and memory of every node.

    `gpu_type` is the type that is asked for, empty for any; `chip` is what people call it.
    """

    gpus: tuple[int, ...]
    cpus: tuple[int, ...]
    gpu_type: str
    chip: str
    memory_mib: int

    @property
    def total(self) -> int:
        return sum(self.gpus)

    def has(self, node: Node) -> int:
        """The GPUs of this type in a node."""
        return sum(gpus.total for kind, gpus in node.gpus.items() if self.suits(kind))

    def free(self, node: Node) -> int:
        """Those that are not in use."""
        if node.is_taken:
            return 0
        return sum(gpus.total - gpus.used for kind, gpus in node.gpus.items() if self.suits(kind))

    def suits(self, kind: str) -> bool:
        """Whether GPUs of this type are what is asked for."""
        return not self.gpu_type or kind.lower() == self.gpu_type.lower()


class QueueRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a scheduler is used: what its queues are called, in which ones the job may run, and which nodes it may use.

    `names` are the queues in order of preference; none: the scheduler's own default. `is_reported`: the scheduler is
    asked about them. `cure` says what to do about GPUs of another type than is asked for.
    """

    word: str
    program: str
    names: tuple[str, ...]
    usable: Callable[[Queue], list[Node]]
    cure: str
    is_reported: bool = True


def asked_for(
    host: SlurmHost | PbsHost, request: HardwareRequest, hosts: Hosts, found: BatchReport | None
) -> tuple[Need, QueueRules] | str:
    """What its outlet asks the scheduler for; or why it never can."""
    if isinstance(host, SlurmHost):
        return _asked_of_slurm(host, request, hosts, found)
    return _asked_of_pbs(host, request, found)


def _asked_of_slurm(
    host: SlurmHost, request: HardwareRequest, hosts: Hosts, found: BatchReport | None
) -> tuple[Need, QueueRules] | str:
    asked = request.for_outlet()
    configured = gres.configured_partitions(host)
    host = slurm_resources.host_for(host, asked)
    why = slurm_resources.refusal(host, asked)
    if why:
        return why
    if found is not None:
        nodes = (node for queue in found.queues.values() for node in queue.nodes)
        hosts = gres.existing_first(hosts, {kind.lower() for node in nodes for kind in node.gpus})
    shape = slurm_resources.shape_of(host, asked)
    constraint = host.partitions[0].constraint if host.partitions else None
    excluded = slurm.expand_nodes(host.exclude)

    def usable(queue: Queue) -> list[Node]:
        return [
            _seen(node, host.gres_supported, host.slots_per_node)
            for node in queue.nodes
            if node.name not in excluded and slurm.has_features(constraint, node.features)
        ]

    need = Need(
        gpus=(shape.gpus_per_node,) * shape.nodes,
        gpu_type=slurm_resources.gpu_type(host, hosts, asked) if host.gres_supported else "",
        chip=request.chip,
        cpus=(request.cpus or 1,) * shape.nodes,
        # A job that does not ask for memory gets what the host says.
        memory_mib=request.memory_mib or int((host.mem or "1").removesuffix("M")) or 1,
    )
    names = tuple(partition.name for partition in host.partitions)
    site = QueueRules(
        word="partition",
        program="SLURM",
        names=names,
        is_reported=not configured or set(names) <= set(configured),
        usable=usable,
        cure=(
            f"gres_mapping, or gpu_type of the host, must say what {request.chip} is called there"
            if request.chip
            else "gpu_type of the host asks for it"
        ),
    )
    return need, site


def _asked_of_pbs(host: PbsHost, request: HardwareRequest, found: BatchReport | None) -> tuple[Need, QueueRules] | str:
    asked = request.for_outlet()
    host = pbs_resources.host_for(host, asked)
    why = pbs_resources.refuses(host, asked)
    if why:
        return why
    chunks = pbs_resources.chunks(host, asked)
    gpus = tuple(chunk.gpus for chunk in chunks for _ in range(chunk.nodes))
    need = Need(
        gpus=gpus,
        gpu_type=request.chip if len(host.chips) > 1 else "",
        chip=request.chip,
        cpus=tuple(request.cpus or max(1, number) for number in gpus),
        memory_mib=request.memory_mib or 1,
    )
    site = QueueRules(
        word="queue",
        program="PBS",
        names=_submitted_to([queue.name for queue in host.queues], found),
        usable=lambda queue: [_seen(node, host.gres_supported, host.slots_per_node) for node in queue.nodes],
        cure=f"jobs ask for {pbs_resources.CHIP_RESOURCE}={request.chip}",
    )
    return need, site


def _submitted_to(names: Sequence[str], found: BatchReport | None) -> tuple[str, ...]:
    """Of queues of PBS the one that takes a job: the first that is open, else the first."""
    queues = {} if found is None else found.queues
    is_open = [name for name in names if name in queues and not queues[name].closed]
    return tuple([*is_open, *names][:1])


def _seen(node: Node, gres_supported: bool, slots_per_node: int | None) -> Node:
    """The node with its GPUs where the scheduler does not know of them: an idle node has all its slots free."""
    if gres_supported:
        return node
    slots = slots_per_node or 1
    return msgspec.structs.replace(node, gpus={"": Gpus(slots, 0 if node.free_cpus == node.cpus else slots)})
