"""The GPUs of a pod as they were last read: their health and foreign use, passed on to its capacity."""

from __future__ import annotations

import glob
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dispatcher.base.devices import visible
from dispatcher.base.host import host_name
from dispatcher.outlets.base import Key
from dispatcher.outlets.local import NAME
from dispatcher.outlets.local.budget import NOT_COUNTED, Amounts
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.outlets.local.given import read_given
from dispatcher.outlets.local.gpu_sampler import GpuSampler, Publisher
from dispatcher.outlets.local.gpu_users import foreign_mib, foreign_use, unnamed_share_mib
from dispatcher.outlets.local.gpus import Gpu, GpuReader, GpuReading, Health
from dispatcher.outlets.local.offer import gpu_slot_name
from dispatcher.provenance.record import GpuName, HostFacts
from dispatcher.run_state.liveness import SlotInfo

# A reading costs a few ms; while some GPU cannot be used, they are read again this often.
_READ_AGAIN_S: Final = 1.0
# A call of the sampler takes a few ms; one that hangs is not waited for.
_WAIT_S: Final = 0.1
# What drivers of NVIDIA, of AMD and of WSL make.
GPU_FILES: Final = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")


def _no_attempt(_: int) -> None:
    return None


def _memory_for_jobs(gpu: Gpu) -> int | None:
    """How much of a GPU's memory attempts can have: all but what the driver keeps for itself; None: unknown."""
    if gpu.memory_total_mib is None:
        return None
    reserved_mib = unnamed_share_mib(gpu) if gpu.memory_reserved_mib is None else gpu.memory_reserved_mib
    return gpu.memory_total_mib - reserved_mib


class GpuMonitor:
    """Reads the GPUs of a pod and marks in `capacity` those that cannot be used now."""

    def __init__(
        self,
        gpus: str,
        cpu_slots: int,
        jobs_per_gpu: int,
        log: Callable[[str], None],
        sample_s: float | None = None,
        attempt_of: Callable[[int], Key | None] = _no_attempt,
        publisher: Publisher | None = None,
        of_host: Amounts = NOT_COUNTED,
    ) -> None:
        """`gpus` as typed (`0,1,2`, `0-7`, `all`; empty for none).

        `sample_s`: how often it is looked which attempts leave their GPUs idle, None: never; `attempt_of` tells to
        which attempt a pid belongs; `publisher` keeps the last hour of the GPUs. `of_host`: see LocalCapacity.
        """
        self._reader: GpuReader | None = None
        self._sampler: GpuSampler | None = None
        # Held while the reader is used: the sampler is a thread.
        self._lock = threading.Lock()
        self._reading = GpuReading()
        self._next_s = 0.0
        self._held: dict[int, str] = {}
        indices: tuple[int, ...] = ()
        if gpus:
            self._reader = GpuReader()
            given = read_given(os.environ, self._reader)
            self._reader.parts = given.parts
            indices = given.chosen(gpus, self._reader.existing)
            self._reading = self._reader.read(indices)
            if self._reading.warning:
                log(f"warning: {self._reading.warning}")
            elif sample_s is not None or publisher is not None:
                self._sampler = GpuSampler(self._reader, self._lock, indices, sample_s, attempt_of, publisher)
        elif cpu_slots and any(glob.glob(path) for path in GPU_FILES):
            log("note: jobs on CPU slots see none of this host's GPUs; --gpus all gives jobs GPUs")
        names = {gpu.index: gpu.name for gpu in self._reading.gpus if gpu.name}
        self.capacity = LocalCapacity(indices, cpu_slots, jobs_per_gpu, names, self._memory(), of_host)

    def refresh(self, is_ours: Callable[[int], bool]) -> None:
        """Read the GPUs again, unless that was done a moment ago, or the sampler waits for one that hangs.

        `is_ours`: whether a pid is of the pod's attempts.
        """
        if self._reader is None or self._reading.unavailable is not None or time.monotonic() < self._next_s:
            return
        if not self._lock.acquire(timeout=_WAIT_S):
            return
        try:
            self._reading = self._reader.read(self.capacity.gpus)
        finally:
            self._lock.release()
        self.capacity.mark_foreign(foreign_use(self._reading, is_ours, self.capacity.occupied_gpus))
        memory = self._memory()
        theirs = {gpu.index: foreign_mib(gpu, is_ours) for gpu in self._reading.gpus if gpu.index in memory}
        self.capacity.note_memory(memory, {index: max(0, mib - theirs[index]) for index, mib in memory.items()})
        self._quarantine()
        if self.capacity.unusable:
            self._next_s = time.monotonic() + _READ_AGAIN_S

    def unshared(self) -> dict[int, str]:
        """The GPUs that are not shared by memory, because that cannot be read, and why."""
        if self._reading.unavailable is not None:
            return dict.fromkeys(self.capacity.gpus, self._reading.unavailable)
        known = self.capacity.offer().gpu_memory_mib
        return {
            gpu.index: gpu.why or "the driver does not tell" for gpu in self._reading.gpus if gpu.index not in known
        }

    def hold(self, held: Mapping[int, str]) -> None:
        """Set the GPUs that get no attempts (paused by the circuit breaker, or used by an external one), and why."""
        self._held = dict(held)
        self._quarantine()

    def due_in_s(self) -> float | None:
        """Seconds until unusable GPUs are worth another `refresh`; None when none can change anything."""
        if self._reader is None or self._reading.unavailable is not None or not self.capacity.unusable:
            return None
        return max(0.0, self._next_s - time.monotonic())

    def slot_infos(self, jobs: Mapping[int | None, Iterable[str]]) -> list[SlotInfo]:
        """The slots as `dispatcher pods` shows them; `jobs` by GPU index, None for the CPU slots."""
        gpus = {gpu.index: gpu for gpu in self._reading.gpus}
        sampler, unusable = self._sampler, self.capacity.unusable
        infos = []
        for index in self.capacity.gpus:
            gpu = gpus.get(index, Gpu(index=index))
            # The loop reads GPUs only when it could give them to a job.
            latest = (sampler.state(index) if sampler is not None else None) or gpu
            infos.append(
                SlotInfo(
                    name=gpu_slot_name(index),
                    outlet=NAME,
                    jobs=list(jobs.get(index, ())),
                    note=unusable.get(index, ""),
                    gpu_name=gpu.name or "",
                    gpu_uuid=gpu.uuid or "",
                    memory_used_mib=latest.memory_used_mib,
                    memory_total_mib=gpu.memory_total_mib,
                    busy_percent=None if sampler is None else sampler.busy_percent(index),
                )
            )
        on_cpu = list(jobs.get(None, ()))
        for number in range(max(self.capacity.cpu_slots, len(on_cpu))):
            infos.append(SlotInfo(name=f"cpu{number}", outlet=NAME, jobs=on_cpu[number : number + 1]))
        return infos

    @property
    def samples(self) -> bool:
        """Whether `watch` has any effect."""
        return self._sampler is not None

    def watch(self, attempts: Mapping[Key, tuple[int, ...]]) -> None:
        """The attempts that run, and their GPUs: it is looked whether they use them."""
        if self._sampler is not None:
            self._sampler.watch(attempts)

    def idle_s(self, key: Key) -> float | None:
        """For how long all GPUs of an attempt have been at 0 %; 0 when they are in use, None when it is unknown."""
        return None if self._sampler is None else self._sampler.idle_s(key)

    def facts(self, indices: Sequence[int]) -> HostFacts:
        """This host and these GPUs, as they were last read."""
        gpus = {gpu.index: gpu for gpu in self._reading.gpus}
        read = [gpus.get(index, Gpu(index=index)) for index in indices]
        return HostFacts(
            host=host_name(),
            driver=self._reader.driver if self._reader is not None and indices else None,
            gpus=tuple(GpuName(index=gpu.index, name=gpu.name, uuid=gpu.uuid) for gpu in read),
        )

    def visible(self, indices: Sequence[int]) -> Mapping[str, str | None]:
        """The environment that shows an attempt these GPUs and no others."""
        parts = {} if self._reader is None else self._reader.parts
        return visible([parts.get(index, str(index)) for index in sorted(indices)])

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
        # The process behind a call that hangs ends with this one.
        if self._reader is not None and self._lock.acquire(timeout=_WAIT_S):
            try:
                self._reader.close()
            finally:
                self._lock.release()

    def _memory(self) -> dict[int, int]:
        """What attempts can have of the memory of GPUs, where that could be read."""
        return {gpu.index: mib for gpu in self._reading.gpus if (mib := _memory_for_jobs(gpu)) is not None}

    def _quarantine(self) -> None:
        ill = {gpu.index: gpu.why for gpu in self._reading.gpus if gpu.health is not Health.OK}
        for index in self.capacity.gpus:
            why = ill.get(index) or self._held.get(index)
            if why:
                self.capacity.quarantine(index, why)
            else:
                self.capacity.restore(index)
