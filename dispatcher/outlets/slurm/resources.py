"""What a request asks SLURM for: nodes, tasks, GPUs, CPUs and memory, and from which partitions.

The table is that of the HPC launchers; n is the number of GPUs over all nodes, k of nodes, g = n/k:

    slot_type     tres_supported  gres_supported  options
    cuda, rocm    yes             yes             --nodes=k --tasks-per-node=1 --gpus=[TYPE:]n,
                                                  with k > 1 or `slots_per_node` also --gpus-per-task=[TYPE:]g
    cuda, rocm    no              yes             --nodes=k --ntasks=k --gres=gpu[:TYPE]:g
    cuda, rocm    no              no              --nodes=k --ntasks=k
    cpu, or n=0   any             any             --nodes=k --ntasks=k --cpus-per-task=CPUs

k is what the request says, or n / `slots_per_node` where that is more. It is never left to SLURM: a job that runs as
one process cannot use the GPUs of a second node. `tres_supported` without `gres_supported` counts as neither, because
--gpus needs GRES.
"""

from __future__ import annotations

import math

import msgspec

from dispatcher.hosts.types import Hosts, Partition, SlurmHost, SlurmOptions
from dispatcher.outlets.base import Request

Option = tuple[str, str]


class Shape(msgspec.Struct, frozen=True):
    """What a request comes to on a host. `gpus` is over all nodes, `gpus_per_node` of each."""

    gpus: int
    nodes: int

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes


def host_for(host: SlurmHost, request: Request) -> SlurmHost:
    """The host as it is for this request: the partitions where it may run, the preferred first, and what these and its
    options set. What is asked for, and refused, follows from that. No partitions: SLURM's own default.
    """
    chosen = _partitions(host, request)
    seen = [_in_partition(host, partition, request) for partition in chosen or [Partition("")]]
    shapes = [_shape_in(one, partition, request) for one, partition in zip(seen, chosen, strict=False)]
    # A job has one shape, so partitions where it would have another one cannot be in its list.
    alike = tuple(partition for partition, shape in zip(chosen, shapes, strict=True) if shape == shapes[0])
    return msgspec.structs.replace(seen[0], partitions=alike, cpu_partitions=())


def _in_partition(host: SlurmHost, partition: Partition, request: Request) -> SlurmHost:
    options = request.slurm or SlurmOptions()
    return msgspec.structs.replace(
        host,
        mem=partition.mem or host.mem,
        slot_type=partition.slot_type or host.slot_type,
        tres_supported=host.tres_supported if partition.tres_supported is None else partition.tres_supported,
        gres_supported=host.gres_supported if partition.gres_supported is None else partition.gres_supported,
        gpu_type=options.gpu_type or partition.gpu_type or host.gpu_type,
        slots_per_node=options.slots_per_node or partition.slots_per_node or host.slots_per_node,
        sbatch_args=(*host.sbatch_args, *partition.sbatch_args, *options.sbatch_args),
    )


def refusal(host: SlurmHost, request: Request) -> str:
    """Why the host can never run such a request; empty when it may."""
    shape = shape_of(host, request)
    if shape.gpus and host.slot_type == "cpu":
        first = host.partitions[0] if host.partitions else Partition("")
        where = f"partition {first.name} of {host.name}" if first.slot_type == "cpu" else host.name
        return f"{where} has slot_type cpu, and {shape.gpus} GPUs are asked for"
    if shape.gpus and request.chip and host.chips and request.chip not in host.chips:
        return f"{host.name} has no {request.chip}, but {', '.join(sorted(host.chips))}"
    most = _most_gpus(host, request.chip)
    if most is not None and shape.gpus > most:
        return f"{shape.gpus} GPUs are asked for, and {host.name} may use {most} of {request.chip or 'one kind'}"
    if shape.gpus % shape.nodes:
        return f"{shape.gpus} GPUs cannot be spread evenly over {shape.nodes} nodes"
    return ""


def shape_of(host: SlurmHost, request: Request) -> Shape:
    """The GPUs and nodes of a request; one that leaves GPUs open (None) gets one where slots are GPUs."""
    gpus = int(host.slot_type != "cpu") if request.gpus is None else request.gpus
    nodes = max(1, request.nodes)
    if gpus and host.slots_per_node:
        nodes = max(nodes, math.ceil(gpus / host.slots_per_node))
    return Shape(gpus, nodes)


def resource_options(host: SlurmHost, hosts: Hosts, request: Request) -> list[Option]:
    """The options of the table above, and those for CPUs and memory of each node."""
    shape = shape_of(host, request)
    options = [("nodes", str(shape.nodes))]
    if not shape.gpus:
        options.append(("ntasks", str(shape.nodes)))
    elif host.tres_supported and host.gres_supported:
        options += _tres(host, gpu_type(host, hosts, request), shape)
    else:
        options.append(("ntasks", str(shape.nodes)))
        if host.gres_supported:
            options.append(("gres", _joined("gpu", gpu_type(host, hosts, request), shape.gpus_per_node)))
    cpus = request.cpus or (None if shape.gpus else host.slots_per_node)
    if cpus:
        options.append(("cpus-per-task", str(cpus)))
    memory = f"{request.memory_mib}M" if request.memory_mib else host.mem
    if memory:
        options.append(("mem", memory))
    return options


def partition_options(host: SlurmHost) -> list[Option]:
    """Where the job may run; SLURM takes the partition of a list that can start it first."""
    if not host.partitions:
        return []
    constraint = host.partitions[0].constraint
    options = [("partition", ",".join(partition.name for partition in host.partitions))]
    return [*options, ("constraint", constraint)] if constraint else options


def _shape_in(host: SlurmHost, partition: Partition, request: Request) -> object:
    kind = host.slot_type if shape_of(host, request).gpus else ""
    return partition.constraint, kind, host.sbatch_args, resource_options(host, Hosts(), request)


def _partitions(host: SlurmHost, request: Request) -> list[Partition]:
    known = {partition.name: partition for partition in host.partitions}
    if request.slurm is not None and request.slurm.partition:
        name = request.slurm.partition
        return [known.get(name, Partition(name))]
    with_gpus = [partition for partition in host.partitions if (partition.slot_type or host.slot_type) != "cpu"]
    if request.gpus is None:
        # The default partition says what a job is that does not.
        asked = [partition for partition in host.partitions if partition.default] or host.partitions
        kinds = [partition.slot_type or host.slot_type for partition in asked] or [host.slot_type]
        gpus = any(kind != "cpu" for kind in kinds)
    else:
        gpus = request.gpus > 0
    if not gpus and host.cpu_partitions:
        named = [known.get(name, Partition(name)) for name in host.cpu_partitions]
        return [msgspec.structs.replace(partition, slot_type="cpu") for partition in named]
    usable = with_gpus if gpus and with_gpus else host.partitions
    default_first = sorted(usable, key=lambda partition: not partition.default)
    if default_first and default_first[0].default and not request.chip:
        return default_first[:1]
    # Which of them has the chip, SLURM knows by the GRES type.
    return default_first


def _tres(host: SlurmHost, gpu_type: str, shape: Shape) -> list[Option]:
    options = [("tasks-per-node", "1"), ("gpus", _joined(gpu_type, shape.gpus))]
    if shape.nodes > 1 or host.slots_per_node:
        # Else SLURM might take three from one node and one from the other.
        options.append(("gpus-per-task", _joined(gpu_type, shape.gpus_per_node)))
    return options


def gpu_type(host: SlurmHost, hosts: Hosts, request: Request) -> str:
    """The GRES type to ask for; empty for any. A request can name one only: the first of `gres_mapping`.

    gres.existing_first puts one there that the site has.
    """
    if not request.chip:
        return host.gpu_type or ""
    return host.gpu_type or hosts.gres_types(request.chip)[0]


def _most_gpus(host: SlurmHost, chip: str) -> int | None:
    if not host.chips:
        return None
    return host.chips.get(chip, 0) if chip else max(host.chips.values())


def _joined(*words: object) -> str:
    return ":".join(str(word) for word in words if word != "")
