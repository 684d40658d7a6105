"""Samples of GPUs, gathered by the minute for the last hour. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dispatcher.outlets.local.gpus import Gpu
from dispatcher.outlets.local.offer import gpu_slot_name
from dispatcher.run_state.gpu_hour import MINUTES, GpuHour, GpuUser, PodGpus

# As many users of one GPU are published, those with the most memory.
MOST_USERS: Final = 8


class _Minute:
    """The samples of one GPU in one minute."""

    __slots__ = ("count", "memory_mib", "percent")

    def __init__(self, percent: int | None = None, memory_mib: int | None = None) -> None:
        self.percent: float = percent or 0
        self.count = int(percent is not None)
        self.memory_mib = memory_mib

    @property
    def mean(self) -> int | None:
        return round(self.percent / self.count) if self.count else None


class GpuMinutes:
    """The last hour of some GPUs, by their indices. Minutes are counted from 1970."""

    def __init__(self) -> None:
        self._minutes: dict[int, dict[int, _Minute]] = {}
        self._users: dict[int, tuple[list[GpuUser] | None, int]] = {}

    def resume(self, indices: tuple[int, ...], earlier: PodGpus) -> None:
        """Go on with what an earlier dispatcher of this pod has written."""
        for index in indices:
            gpu = earlier.gpus.get(gpu_slot_name(index))
            values = zip(reversed(gpu.percent), reversed(gpu.memory_mib), strict=False) if gpu else ()
            for before, (percent, memory_mib) in enumerate(values):
                if percent is not None or memory_mib is not None:
                    minutes = self._minutes.setdefault(index, {})
                    minutes.setdefault(earlier.minute - before, _Minute(percent, memory_mib))

    def note_use(self, minute: int, gpu: Gpu) -> None:
        """A sample of how busy a GPU is; one that tells nothing is none."""
        if gpu.mean_percent is not None:
            found = self._minute(gpu.index, minute)
            found.percent += gpu.mean_percent
            found.count += 1

    def note_state(self, minute: int, gpu: Gpu, users: list[GpuUser] | None, unnamed: int) -> None:
        """What is on a GPU."""
        if gpu.memory_used_mib is not None:
            self._minute(gpu.index, minute).memory_mib = gpu.memory_used_mib
        kept = None if users is None else sorted(users, key=lambda user: -(user.used_mib or 0))[:MOST_USERS]
        self._users[gpu.index] = kept, unnamed + len(users or ()) - len(kept or ())

    def latest(self, minute: int, index: int) -> int | None:
        """The utilisation in this minute or the one before."""
        minutes = self._minutes.get(index, {})
        means = (minutes[one].mean for one in (minute, minute - 1) if one in minutes)
        return next((mean for mean in means if mean is not None), None)

    def hour(self, minute: int, indices: tuple[int, ...]) -> PodGpus:
        """The hour that ends with this minute; what is older is forgotten."""
        gpus = {}
        for index in indices:
            known = self._minutes.get(index, {})
            kept = self._minutes[index] = {one: of for one, of in known.items() if minute - MINUTES < one <= minute}
            gpus[gpu_slot_name(index)] = self._hour(minute, index, kept)
        return PodGpus(minute, gpus)

    def _hour(self, minute: int, index: int, known: Mapping[int, _Minute]) -> GpuHour:
        span = [known.get(one) for one in range(minute - MINUTES + 1, minute + 1)]
        users, unnamed = self._users.get(index, (None, 0))
        return GpuHour(
            [one.mean if one else None for one in span],
            [one.memory_mib if one else None for one in span],
            users,
            unnamed,
        )

    def _minute(self, index: int, minute: int) -> _Minute:
        return self._minutes.setdefault(index, {}).setdefault(minute, _Minute())
