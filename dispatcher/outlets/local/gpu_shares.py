"""Which of a pod's GPUs an attempt gets, and what attempts have of them. Pure.

A GPU is shared in one of two ways at a time. By number: an attempt on one GPU takes one of its `jobs_per_gpu` shares.
By memory: attempts that say how much they take of it (`gpu_memory`) share it with one another, as long as their sum
fits. A GPU whose memory is not known is not shared by memory: what asks for some has it as any other attempt does.
An attempt on several GPUs has all of each, because its processes would wait for the slowest of them.

Single attempts fill partly used GPUs first, so that whole ones remain for those that need several; by memory, the one
with the least room that is enough. One that asks for a chip only gets GPUs of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from dispatcher.outlets.base import Request, Slot
from dispatcher.outlets.local.offer import gpu_part, gpus_of, is_chip


class GpuShares:
    """The GPUs of one pod. `usable` are those that get new attempts; the others keep the ones that they have.

    `memory_mib` is what attempts can have of a GPU's memory, and `room_mib` what is left of it by other users.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        jobs_per_gpu: int = 1,
        names: Mapping[int, str] = MappingProxyType({}),
        memory_mib: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.gpus = tuple(sorted(gpus))
        self.jobs_per_gpu = jobs_per_gpu
        self.names = dict(names)
        self.memory_mib = dict(memory_mib)
        self.room_mib = dict(memory_mib)
        self.usable: Collection[int] = self.gpus
        self._shares: Counter[int] = Counter()
        self._asked_mib: Counter[int] = Counter()

    @property
    def occupied(self) -> frozenset[int]:
        """The GPUs on which an attempt runs."""
        return frozenset(index for index in self._shares | self._asked_mib)

    @property
    def free(self) -> tuple[int, ...]:
        """Usable GPUs with room for one more attempt on one GPU, of whatever kind."""
        return tuple(index for index in self._usable() if self._shares_left(index) or self.free_mib(index))

    def _shares_left(self, index: int) -> int:
        """How many more attempts that do not share by memory this GPU can take."""
        return 0 if self._asked_mib[index] else max(0, self.jobs_per_gpu - self._shares[index])

    def free_mib(self, index: int) -> int:
        """How much memory of this GPU an attempt that shares by memory can have."""
        if self._shares[index]:
            return 0
        return max(0, self.room_mib.get(index, 0) - self._asked_mib[index])

    def adopt(self, slot: Slot) -> None:
        """Count an attempt, whether or not there is room."""
        self._count(slot, 1)

    def release(self, slot: Slot) -> None:
        self._count(slot, -1)

    def pick(self, request: Request, kept: Collection[int] = ()) -> Slot | None:
        """The GPUs that such an attempt would get now, none of them of `kept`; None when there is no room."""
        able = [index for index in self._able(request) if index not in kept]
        count = gpus_of(request)
        if count is not None and count > 1:
            whole = [index for index in able if self._is_empty(index)]
            return Slot(tuple(whole[:count])) if len(whole) >= count else None
        asked_mib = request.gpu_memory_mib
        fitting = [index for index in able if asked_mib and self.free_mib(index) >= asked_mib]
        if asked_mib and fitting:
            index = min(fitting, key=lambda one: (self._is_empty(one), self.free_mib(one), one))
            return Slot((index,), asked_mib, gpu_part(asked_mib, self.memory_mib[index]))
        by_number = [index for index in able if self._shares_left(index)]
        if asked_mib:
            by_number = [index for index in by_number if index not in self.memory_mib]
        fullest_first = sorted(by_number, key=lambda one: (-self._shares[one], one))
        return Slot((fullest_first[0],)) if fullest_first else None

    def kept_for(self, request: Request, kept: frozenset[int]) -> Collection[int]:
        """The GPUs that are kept for a request that comes first, did not fit, and can have them. `kept`: for others.

        Later ones would otherwise take what becomes free bit by bit, and the first would wait for ever.
        """
        count = gpus_of(request)
        able = self._able(request)
        if count == 0 or len(able) < (count or 1):
            return ()
        now = self.pick(request, kept)
        if now is not None:
            # It waits for something else, such as CPUs.
            return now.gpus
        if count is not None and count > 1:
            return able
        rest = [index for index in able if index not in kept]
        # The one that most likely is the next to have room. Nothing is added there, so the most room never shrinks.
        return sorted(rest, key=lambda one: (-self.free_mib(one), self._shares[one], one))[:1]

    def _able(self, request: Request) -> list[int]:
        """The usable GPUs that are of the kind and of the size that is asked for, and of those that are named."""
        return [
            index
            for index in self._usable()
            if (not request.only or index in request.only)
            and is_chip(request.chip, self.names.get(index, ""))
            and self._is_large(request, index)
        ]

    def _is_large(self, request: Request, index: int) -> bool:
        return (request.gpu_memory_mib or 0) <= self.memory_mib.get(index, request.gpu_memory_mib or 0)

    def _is_empty(self, index: int) -> bool:
        return not self._shares[index] and not self._asked_mib[index]

    def _usable(self) -> list[int]:
        return [index for index in self.gpus if index in self.usable]

    def _count(self, slot: Slot, sign: int) -> None:
        for index in slot.gpus:
            if slot.gpu_memory_mib:
                self._asked_mib[index] += sign * slot.gpu_memory_mib
            else:
                self._shares[index] += sign * (1 if len(slot.gpus) == 1 else self.jobs_per_gpu)
