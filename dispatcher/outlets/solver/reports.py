"""What one host reports of its hardware. Memory is in MiB."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import msgspec

from dispatcher.outlets.remote.operations import GpuInfo


class Unreachable(msgspec.Struct, frozen=True):
    """The host or its scheduler did not answer; `error` says what happened."""

    error: str


class PlainReport(msgspec.Struct, frozen=True, kw_only=True):
    """A host without a scheduler. `free_mib` is memory that a job can have now.

    `no_gpus` is why its GPUs cannot be listed, such as a driver that does not answer.
    """

    gpus: tuple[GpuInfo, ...] = ()
    no_gpus: str = ""
    cpus: int
    memory_mib: int
    free_mib: int


class Gpus(msgspec.Struct, frozen=True):
    """GPUs of one type in a node: how many there are, and how many are in use."""

    total: int
    used: int = 0


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a cluster. `gpus` are by type, as the scheduler calls it; '' for GPUs without a type.

    `unusable` is the state that keeps new jobs off it for long (`drained`), empty for none; `is_taken`: it takes no
    further job until another one ends.
    """

    name: str
    cpus: int
    free_cpus: int
    memory_mib: int
    free_mib: int
    gpus: Mapping[str, Gpus] = {}
    features: frozenset[str] = frozenset()
    unusable: str = ""
    is_taken: bool = False


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of SLURM or a queue of PBS. `closed` is why it takes no jobs, empty when it does."""

    name: str
    nodes: tuple[Node, ...] = ()
    is_default: bool = False
    closed: str = ""
    pending: int = 0


class BatchReport(msgspec.Struct, frozen=True):
    """A scheduler's partitions or queues, by name."""

    queues: Mapping[str, Queue]


class QueueReport(msgspec.Struct, frozen=True, kw_only=True):
    """A Queue of Volcano. Amounts are by resource: cores, bytes, devices.

    `capability` has what the Queue limits; of the rest it may have any amount. `allocated` is what is in use, or why
    that is not known. `closed` is why it takes no jobs, empty when it does. `pending`: PodGroups that wait. `nodes` is
    what each node has for pods; none where that is not known.
    """

    capability: Mapping[str, Decimal] = {}
    allocated: Mapping[str, Decimal] | str = {}
    closed: str = ""
    pending: int = 0
    nodes: tuple[Mapping[str, Decimal], ...] = ()

    def free(self) -> dict[str, Decimal]:
        """What is not in use of everything that is limited; nothing where that is not known."""
        if isinstance(self.allocated, str):
            return {}
        nothing = Decimal(0)
        return {name: max(nothing, most - self.allocated.get(name, nothing)) for name, most in self.capability.items()}


class VmReport(msgspec.Struct, frozen=True, kw_only=True):
    """A TPU VM: the API's word for its state, empty where there is no VM; `workers` is their number.

    `is_taken`: an attempt was given to it, so it takes no further one now. `workspace`: the id of the one that it was
    created for, if it was by this tool.
    """

    state: str = ""
    accelerator_type: str = ""
    workers: int = 0
    workspace: str = ""
    is_taken: bool = False


HostReport = Unreachable | PlainReport | BatchReport | QueueReport | VmReport
