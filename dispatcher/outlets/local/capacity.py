"""The capacity of a host: which of a pod's GPUs and CPU slots are free, and which of them an attempt gets. Pure.

gpu_shares.py knows who has what of which GPU, budget.py the CPUs and the memory of the host that attempts ask for. An
attempt gets all that it asks for, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from dispatcher.base.values import memory_text
from dispatcher.errors import PodError
from dispatcher.outlets.base import WORKSPACE, Request, Slot
from dispatcher.outlets.local.budget import NOT_COUNTED, Amounts, Budget, lacking
from dispatcher.outlets.local.gpu_shares import GpuShares
from dispatcher.outlets.local.offer import Free, LocalOffer, gpus_of


class _Kept:
    """What the requests `by` keep, which come first and did not fit: of GPUs, of CPUs and memory, and of CPU slots."""

    def __init__(self) -> None:
        self.by: list[Request] = []
        self.gpus: frozenset[int] = frozenset()
        self.kinds: set[str] = set()
        self.cpu_slots = 0


class LocalCapacity:
    """The GPUs and CPU slots of one pod. A GPU that becomes unusable keeps its attempts and gets no new ones."""

    def __init__(
        self,
        gpus: Sequence[int],
        cpu_slots: int,
        jobs_per_gpu: int = 1,
        names: Mapping[int, str] = MappingProxyType({}),
        gpu_memory_mib: Mapping[int, int] = MappingProxyType({}),
        of_host: Amounts = NOT_COUNTED,
    ) -> None:
        """`names` are the driver's names of GPUs, and `gpu_memory_mib` what attempts can have of their memory, as far
        as it tells them. `of_host` is what attempts that ask for it can have of the host."""
        if len(set(gpus)) != len(gpus):
            raise PodError(f"GPU indices {list(gpus)} name one twice; for several jobs on a GPU use --jobs-per-gpu")
        if cpu_slots < 0:
            raise PodError(f"--slots {cpu_slots} is not a number of CPU slots; use 0 or more")
        if jobs_per_gpu < 1:
            raise PodError(f"--jobs-per-gpu {jobs_per_gpu} is not a number of jobs; use 1 or more")
        self.cpu_slots = cpu_slots
        self._gpus = GpuShares(gpus, jobs_per_gpu, names, gpu_memory_mib)
        self._budget = Budget(of_host)
        self._on_cpu = 0
        self._taken: Counter[Slot] = Counter()
        self._quarantined: dict[int, str] = {}
        self._foreign: dict[int, str] = {}
        # Until something changes.
        self._kept = _Kept()

    # An attempt here costs no submission.
    packs = False

    def gpus_of(self, request: Request) -> int:
        return request.gpus or 0

    @property
    def place(self) -> str:
        return WORKSPACE

    @property
    def gpus(self) -> tuple[int, ...]:
        """All GPUs of the pod, ascending."""
        return self._gpus.gpus

    @property
    def free_cpu(self) -> int:
        """CPU slots that an attempt can have now."""
        return max(0, self.cpu_slots - self._on_cpu)

    @property
    def free_gpus(self) -> tuple[int, ...]:
        """Usable GPUs with room for one more single-GPU attempt, of one kind or the other."""
        return self._gpus.free

    @property
    def is_full(self) -> bool:
        """Whether `take` would refuse every request now."""
        return not self.free_cpu and not self.free_gpus

    @property
    def taken(self) -> tuple[Slot, ...]:
        """The slots in use, one item per attempt."""
        return tuple(self._taken.elements())

    @property
    def occupied_gpus(self) -> frozenset[int]:
        """GPUs on which an attempt of this pod runs."""
        return self._gpus.occupied

    @property
    def unusable(self) -> dict[int, str]:
        """GPUs that get no new attempts, and why; a quarantine explains more than foreign use."""
        return self._foreign | self._quarantined

    def offer(self) -> LocalOffer:
        """What this capacity offers at the moment, as data that a pod publishes."""
        gpus, host = self._gpus, self._budget.offered
        unusable = {index: why for index, why in sorted(self.unusable.items()) if index in gpus.gpus}
        return LocalOffer(
            gpus.gpus,
            self.cpu_slots,
            unusable,
            gpus.jobs_per_gpu,
            gpus.names,
            gpu_memory_mib=gpus.memory_mib,
            cpus=host.cpus,
            memory_mib=host.memory_mib,
            free=Free(
                cpus=self._budget.free.cpus,
                memory_mib=self._budget.free.memory_mib,
                gpu_memory_mib={index: gpus.free_mib(index) for index in gpus.memory_mib if index in gpus.usable},
            ),
        )

    def refuses(self, request: Request) -> str:
        """Why such an attempt can never run here; empty when it can, once there is room."""
        return self.offer().refuses(request)

    def refuses_now(self, request: Request) -> str:
        """Why there is no room whatever ends: GPUs that cannot be used; empty when waiting helps."""
        return self.offer().refuses_now(request)

    def lacks(self, request: Request) -> str:
        """What there is too little of at the moment, besides slots."""
        return self.offer().lacks(request)

    def take(self, request: Request, ahead: Sequence[Request] = ()) -> Slot | None:
        """A slot, from now on in use; None when there is no room now.

        What a request of `ahead` waits for is kept for it, unless that are GPUs that cannot be used: later ones would
        otherwise take it bit by bit, and it would wait for ever. CPUs and memory are kept for one that has its slot.
        """
        if request.gpus is not None and request.gpus < 0:
            raise ValueError(f"an attempt cannot have {request.gpus} GPUs")
        # Asked first: what does not fit costs no look at those ahead.
        if self._choose(request) is None:
            return None
        kept = self._kept_for(ahead)
        if not self._budget.has_room(request, kept.kinds):
            return None
        chosen = self._choose(request, kept.gpus, kept.cpu_slots)
        if chosen is None:
            return None
        slot = msgspec.structs.replace(chosen, cpus=request.cpus or 0, memory_mib=request.memory_mib or 0)
        self.adopt(slot)
        return slot

    def adopt(self, slot: Slot) -> None:
        """Count an attempt that already runs in this slot (a restarted pod finds its jobs again).

        The slot need not be one that `take` would give: the GPU may no longer belong to this pod, or hold more
        attempts than it now may.
        """
        self._taken[slot] += 1
        self._kept = _Kept()
        self._on_cpu += not slot.gpus
        self._gpus.adopt(slot)
        self._budget.take(slot)

    def release(self, slot: Slot) -> None:
        """Give back what `take` gave or `adopt` counted; ValueError for a slot that is not in use."""
        if not self._taken[slot]:
            raise ValueError(f"{slot} is not in use, so it cannot be released")
        self._taken[slot] -= 1
        self._kept = _Kept()
        self._on_cpu -= not slot.gpus
        self._gpus.release(slot)
        self._budget.give_back(slot)

    def outlook(self, request: Request) -> float | None:
        """What it gives starts at once."""
        return 0.0

    def slot_text(self, slot: Slot) -> str:
        """The slot as messages name it: `gpu 0,1`, `gpu 0 (20G)` for a part of one, `cpu`."""
        if not slot.gpus:
            return "cpu"
        part = f" ({memory_text(slot.gpu_memory_mib)})" if slot.gpu_memory_mib else ""
        return "gpu " + ",".join(map(str, slot.gpus)) + part

    def note_memory(self, there_mib: Mapping[int, int], room_mib: Mapping[int, int]) -> None:
        """Set how much of the memory of GPUs attempts can have, and how much of that other processes leave now."""
        self._gpus.memory_mib.update(there_mib)
        self._gpus.room_mib = dict(room_mib)
        self._kept = _Kept()

    def quarantine(self, index: int, why: str) -> None:
        """Start nothing on this GPU until `restore`; a later reason replaces an earlier one."""
        self._quarantined[index] = why
        self._find_usable()

    def restore(self, index: int) -> None:
        """End a quarantine; a GPU that is not in one stays as it is."""
        self._quarantined.pop(index, None)
        self._find_usable()

    def mark_foreign(self, users: Mapping[int, str]) -> None:
        """Set which GPUs other users' processes occupy, and whose these are; all other GPUs are free of such use."""
        self._foreign = dict(users)
        self._find_usable()

    def _kept_for(self, ahead: Sequence[Request]) -> _Kept:
        """What is kept for those ahead. Found once for each: a round asks again and again with some more of them."""
        if self._kept.by != list(ahead[: len(self._kept.by)]):
            self._kept = _Kept()
        for one in ahead[len(self._kept.by) :]:
            self._keep(one)
        return self._kept

    def _keep(self, one: Request) -> None:
        kept, slot = self._kept, self._choose(one)
        kept.by.append(one)
        if slot is not None:
            lack = lacking(one, self._budget.free)
            kept.kinds.update(lack)
            kept.cpu_slots += slot == Slot() and bool(lack)
        kept.gpus = kept.gpus.union(self._gpus.kept_for(one, kept.gpus))

    def _find_usable(self) -> None:
        self._kept = _Kept()
        unusable = self.unusable
        self._gpus.usable = frozenset(index for index in self.gpus if index not in unusable)

    def _choose(
        self, request: Request, kept_gpus: frozenset[int] = frozenset(), kept_cpu_slots: int = 0
    ) -> Slot | None:
        """The slot that such an attempt would get, as far as GPUs and CPU slots go; None when there is no room."""
        gpus = gpus_of(request)
        if not gpus and self.free_cpu > kept_cpu_slots:
            return Slot()
        return None if gpus == 0 else self._gpus.pick(request, kept_gpus)
