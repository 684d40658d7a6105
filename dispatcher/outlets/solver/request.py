"""A request for hardware, and the hosts that can serve it."""

from __future__ import annotations

import msgspec

from dispatcher.hosts.types import PbsOptions, SlurmOptions
from dispatcher.outlets.base import Request


class HardwareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks for. `min_chips` GPUs over all `nodes`, of any kind where `chip` is empty; 0: CPUs only.

    `memory_mib` and `cpus` are for each node; None: whatever there is. Hosts of the preferred clusters come before
    others that are as good; those of excluded ones are not used. `slurm` and `pbs` are what it says for hosts of these
    types.
    """

    chip: str = ""
    min_chips: int = 0
    cpus: int | None = None
    memory_mib: int | None = None
    nodes: int = 1
    preferred_clusters: tuple[str, ...] = ()
    excluded_clusters: tuple[str, ...] = ()
    slurm: SlurmOptions | None = None
    pbs: PbsOptions | None = None

    def for_outlet(self) -> Request:
        """What an attempt would ask its outlet for."""
        return Request(
            gpus=self.min_chips, chip=self.chip, cpus=self.cpus, memory_mib=self.memory_mib, nodes=self.nodes,
            slurm=self.slurm, pbs=self.pbs,
        )  # fmt: skip

    @property
    def chips_text(self) -> str:
        """The GPUs in words: `4 h100`, `1 GPU`."""
        return chips_text(self.min_chips, self.chip)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A host that can run the request.

    `queue` is the partition or the queue to name; empty: the scheduler's own default, or none. `is_queued`: it would
    wait there. `free_chips` is how many suitable GPUs are free, None when the host was not asked or cannot tell.
    `must_be_created`: the machine does not exist yet.
    """

    host: str
    queue: str = ""
    is_queued: bool = False
    free_chips: int | None = None
    must_be_created: bool = False
    why: str = ""


class UnsuitableHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that cannot run the request, and why. `is_unreachable`: it did not answer, so it may be able to."""

    host: str
    why: str
    is_unreachable: bool = False


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """Every configured host once: those that can run the request, the best first, and the others."""

    choices: tuple[Choice, ...] = ()
    refusals: tuple[UnsuitableHost, ...] = ()

    @property
    def chosen(self) -> Choice | None:
        """The best host."""
        return self.choices[0] if self.choices else None


def chips_text(number: int, chip: str) -> str:
    """`4 h100`, `1 GPU`, `2 GPUs`."""
    return f"{number} {chip or ('GPU' if number == 1 else 'GPUs')}"
