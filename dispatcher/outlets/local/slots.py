"""The slots of one pod: which GPUs and CPU slots are free, and which of them an attempt gets. Pure.

An attempt on one GPU takes one share of it; a GPU has `jobs_per_gpu` shares. An attempt on several GPUs takes all
shares of each, because its processes would wait for the slowest of them. Single attempts fill partly used GPUs first,
so that whole ones remain for those that need several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dispatcher.errors import PodError
from dispatcher.outlets.base import Slot


class Slots:
    """The pool of one pod. A GPU that becomes unusable keeps what runs on it and gets nothing new."""

    def __init__(self, gpus: Sequence[int], cpu_slots: int, jobs_per_gpu: int = 1) -> None:
        if len(set(gpus)) != len(gpus):
            raise PodError(f"GPU indices {list(gpus)} name one twice; for several jobs on a GPU use --jobs-per-gpu")
        if cpu_slots < 0:
            raise PodError(f"--slots {cpu_slots} is not a number of CPU slots; use 0 or more")
        if jobs_per_gpu < 1:
            raise PodError(f"--jobs-per-gpu {jobs_per_gpu} is not a number of jobs; use 1 or more")
        self.gpus = tuple(sorted(gpus))
        self.cpu_slots = cpu_slots
        self.jobs_per_gpu = jobs_per_gpu
        self._taken: Counter[Slot] = Counter()
        self._shares: Counter[int] = Counter()
        self._quarantined: dict[int, str] = {}
        self._foreign: dict[int, str] = {}

    @property
    def free_cpu(self) -> int:
        """CPU slots that an attempt can have now."""
        return max(0, self.cpu_slots - self._taken[Slot()])

    @property
    def usable_gpus(self) -> tuple[int, ...]:
        """GPUs that attempts can have, now or when others have ended."""
        unusable = self.unusable
        return tuple(index for index in self.gpus if index not in unusable)

    @property
    def free_gpus(self) -> tuple[int, ...]:
        """Usable GPUs with room for one more single-GPU attempt."""
        return tuple(index for index in self.usable_gpus if self._shares[index] < self.jobs_per_gpu)

    @property
    def whole_gpus(self) -> tuple[int, ...]:
        """Usable GPUs on which nothing of ours runs: what an attempt on several GPUs can have."""
        return tuple(index for index in self.usable_gpus if not self._shares[index])

    @property
    def free_gpu_shares(self) -> int:
        """How many single-GPU attempts can be taken now."""
        return sum(self.jobs_per_gpu - self._shares[index] for index in self.free_gpus)

    @property
    def taken(self) -> tuple[Slot, ...]:
        """The slots in use, one item per attempt."""
        return tuple(self._taken.elements())

    @property
    def occupied_gpus(self) -> frozenset[int]:
        """GPUs on which an attempt of ours runs."""
        return frozenset(index for index, shares in self._shares.items() if shares)

    @property
    def unusable(self) -> dict[int, str]:
        """GPUs that get nothing new, and why; a quarantine says more than somebody's use."""
        return self._foreign | self._quarantined

    def fits(self, gpus: int) -> bool:
        """Whether an attempt on `gpus` GPUs (0: a CPU slot) could run on this pod if all of it were free and usable."""
        return gpus <= len(self.gpus) if gpus else self.cpu_slots > 0

    def take(self, gpus: int) -> Slot | None:
        """A slot with that many GPUs (0: a CPU slot), from now on in use; None when there is no room now."""
        if gpus < 0:
            raise ValueError(f"an attempt cannot have {gpus} GPUs")
        chosen = self._choose(gpus)
        return None if chosen is None else self.adopt(chosen)

    def adopt(self, gpus: Sequence[int]) -> Slot:
        """Keep books on an attempt that already runs on these GPUs (a restarted pod finds its jobs again).

        It is taken as a fact, whatever the pool would have chosen: the GPU may no longer belong to this pod, or hold
        more attempts than it now may.
        """
        slot = Slot(tuple(sorted(gpus)))
        self._taken[slot] += 1
        for index in slot.gpus:
            self._shares[index] += self._weight(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """Give back what `take` or `adopt` gave; ValueError for a slot that is not in use."""
        if not self._taken[slot]:
            raise ValueError(f"{slot} is not in use, so it cannot be released")
        self._taken[slot] -= 1
        for index in slot.gpus:
            self._shares[index] -= self._weight(slot)

    def quarantine(self, index: int, why: str) -> None:
        """Give this GPU to nobody until `restore`; the last reason stands."""
        self._quarantined[index] = why

    def restore(self, index: int) -> None:
        """End a quarantine; nothing happens to a GPU that is not in one."""
        self._quarantined.pop(index, None)

    def mark_foreign(self, users: Mapping[int, str]) -> None:
        """The GPUs that somebody else uses now, and who; GPUs that are no longer named are free of it."""
        self._foreign = dict(users)

    def _weight(self, slot: Slot) -> int:
        return 1 if len(slot.gpus) == 1 else self.jobs_per_gpu

    def _choose(self, gpus: int) -> tuple[int, ...] | None:
        if gpus == 0:
            return () if self.free_cpu else None
        if gpus == 1:
            fullest_first = sorted(self.free_gpus, key=lambda index: (-self._shares[index], index))
            return tuple(fullest_first[:1]) or None
        whole = self.whole_gpus
        return whole[:gpus] if len(whole) >= gpus else None
