"""The capacity of a host: which of a pod's GPUs and CPU slots are free, and which of them an attempt gets. Pure.

An attempt on one GPU takes one share of it; a GPU has `jobs_per_gpu` shares. An attempt on several GPUs takes all
shares of each, because its processes would wait for the slowest of them. Single attempts fill partly used GPUs first,
so that whole ones remain for those that need several. One that asks for a chip only gets GPUs of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dispatcher.errors import PodError
from dispatcher.outlets.base import WORKSPACE, Request, Slot
from dispatcher.outlets.local.offer import LocalOffer, gpus_of, is_chip


class LocalCapacity:
    """The GPUs and CPU slots of one pod. A GPU that becomes unusable keeps its attempts and gets no new ones."""

    def __init__(
        self,
        gpus: Sequence[int],
        cpu_slots: int,
        jobs_per_gpu: int = 1,
        names: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """`names` are the driver's names of GPUs, as far as it tells them."""
        if len(set(gpus)) != len(gpus):
            raise PodError(f"GPU indices {list(gpus)} name one twice; for several jobs on a GPU use --jobs-per-gpu")
        if cpu_slots < 0:
            raise PodError(f"--slots {cpu_slots} is not a number of CPU slots; use 0 or more")
        if jobs_per_gpu < 1:
            raise PodError(f"--jobs-per-gpu {jobs_per_gpu} is not a number of jobs; use 1 or more")
        self.gpus = tuple(sorted(gpus))
        self.cpu_slots = cpu_slots
        self.jobs_per_gpu = jobs_per_gpu
        self._names = dict(names)
        self._taken: Counter[Slot] = Counter()
        self._shares: Counter[int] = Counter()
        self._quarantined: dict[int, str] = {}
        self._foreign: dict[int, str] = {}

    # An attempt here costs no submission.
    packs = False

    @property
    def place(self) -> str:
        return WORKSPACE

    @property
    def free_cpu(self) -> int:
        """CPU slots that an attempt can have now."""
        return max(0, self.cpu_slots - self._taken[Slot()])

    @property
    def usable_gpus(self) -> tuple[int, ...]:
        """GPUs that attempts can have, now or when others have ended."""
        return tuple(index for index in self.gpus if self._is_usable(index))

    @property
    def free_gpus(self) -> tuple[int, ...]:
        """Usable GPUs with room for one more single-GPU attempt."""
        return tuple(index for index in self.usable_gpus if self._shares[index] < self.jobs_per_gpu)

    @property
    def whole_gpus(self) -> tuple[int, ...]:
        """Usable GPUs without an attempt of this pod: what an attempt on several GPUs can have."""
        return tuple(index for index in self.usable_gpus if not self._shares[index])

    @property
    def free_gpu_shares(self) -> int:
        """How many single-GPU attempts can be taken now."""
        return sum(self.jobs_per_gpu - self._shares[index] for index in self.free_gpus)

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
        return frozenset(index for index, shares in self._shares.items() if shares)

    @property
    def unusable(self) -> dict[int, str]:
        """GPUs that get no new attempts, and why; a quarantine explains more than foreign use."""
        return self._foreign | self._quarantined

    def offer(self) -> LocalOffer:
        """What this capacity offers at the moment, as data that a pod publishes."""
        unusable = {index: why for index, why in sorted(self.unusable.items()) if index in self.gpus}
        return LocalOffer(self.gpus, self.cpu_slots, unusable, self.jobs_per_gpu, self._names)

    def refuses(self, request: Request) -> str:
        """Why such an attempt can never run here; empty when it can, once there is room."""
        return self.offer().refuses(request)

    def refuses_now(self, request: Request) -> str:
        """Why there is no room whatever ends: GPUs that cannot be used; empty when waiting helps."""
        return self.offer().refuses_now(request)

    def take(self, request: Request, ahead: Sequence[Request] = ()) -> Slot | None:
        """A slot, from now on in use; None when there is no room now.

        Free GPUs are kept for a request of `ahead` on several of them, unless it waits for GPUs that cannot be used:
        single attempts would otherwise take them one by one, and it would wait for ever.
        """
        if request.gpus is not None and request.gpus < 0:
            raise ValueError(f"an attempt cannot have {request.gpus} GPUs")
        chosen = self._choose(request, ahead)
        if chosen is None:
            return None
        slot = Slot(chosen)
        self.adopt(slot)
        return slot

    def adopt(self, slot: Slot) -> None:
        """Count an attempt that already runs in this slot (a restarted pod finds its jobs again).

        The slot need not be one that `take` would give: the GPU may no longer belong to this pod, or hold more
        attempts than it now may.
        """
        self._taken[slot] += 1
        for index in slot.gpus:
            self._shares[index] += self._weight(slot)

    def release(self, slot: Slot) -> None:
        """Give back what `take` gave or `adopt` counted; ValueError for a slot that is not in use."""
        if not self._taken[slot]:
            raise ValueError(f"{slot} is not in use, so it cannot be released")
        self._taken[slot] -= 1
        for index in slot.gpus:
            self._shares[index] -= self._weight(slot)

    def outlook(self, request: Request) -> float | None:
        """What it gives starts at once."""
        return 0.0

    def slot_text(self, slot: Slot) -> str:
        """The slot as messages name it: `gpu 0,1`, `cpu`."""
        return "gpu " + ",".join(map(str, slot.gpus)) if slot.gpus else "cpu"

    def quarantine(self, index: int, why: str) -> None:
        """Start nothing on this GPU until `restore`; a later reason replaces an earlier one."""
        self._quarantined[index] = why

    def restore(self, index: int) -> None:
        """End a quarantine; a GPU that is not in one stays as it is."""
        self._quarantined.pop(index, None)

    def mark_foreign(self, users: Mapping[int, str]) -> None:
        """Set which GPUs other users' processes occupy, and whose these are; all other GPUs are free of such use."""
        self._foreign = dict(users)

    def _is_usable(self, index: int) -> bool:
        return index not in self._quarantined and index not in self._foreign

    def _weight(self, slot: Slot) -> int:
        return 1 if len(slot.gpus) == 1 else self.jobs_per_gpu

    def _choose(self, request: Request, ahead: Sequence[Request]) -> tuple[int, ...] | None:
        """The GPUs of a slot (none: a CPU slot); None when there is no room."""
        gpus = gpus_of(request)
        if not gpus and self.free_cpu:
            return ()
        if gpus == 0:
            return None
        kept = self._kept_for(ahead)
        if gpus is None or gpus == 1:
            free = [index for index in self.free_gpus if self._is_chip(request, index) and index not in kept]
            fullest_first = sorted(free, key=lambda index: (-self._shares[index], index))
            return tuple(fullest_first[:1]) or None
        whole = tuple(index for index in self.whole_gpus if self._is_chip(request, index) and index not in kept)
        return whole[:gpus] if len(whole) >= gpus else None

    def _kept_for(self, ahead: Sequence[Request]) -> frozenset[int]:
        """The GPUs for which requests wait that come first and can have them."""
        kept = frozenset[int]()
        usable = self.usable_gpus if ahead else ()
        for request in ahead:
            able = [index for index in usable if self._is_chip(request, index)]
            if 0 < (gpus_of(request) or 0) <= len(able):
                kept = kept.union(able)
        return kept

    def _is_chip(self, request: Request, index: int) -> bool:
        return not request.chip or is_chip(request.chip, self._names.get(index, ""))
