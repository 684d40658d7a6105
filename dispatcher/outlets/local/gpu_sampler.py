"""Takes samples of GPUs, in a thread: a driver's call may take seconds, and the loop waits for none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from dispatcher.base.host import boot_time_s
from dispatcher.errors import PodError
from dispatcher.outlets.base import Key
from dispatcher.outlets.idle_times import IdleTimes
from dispatcher.outlets.local.gpu_minutes import GpuMinutes
from dispatcher.outlets.local.gpu_use import used
from dispatcher.outlets.local.gpu_users import others_on
from dispatcher.outlets.local.gpus import Gpu, GpuReader
from dispatcher.run_state.gpu_hour import PodGpus

# Where no method asks for more.
_INTERVAL_S: Final = 15.0


class Publisher(msgspec.Struct, frozen=True):
    """Where the last hour is kept: `load` gives what an earlier dispatcher of this pod has saved."""

    load: Callable[[], PodGpus | None]
    save: Callable[[PodGpus], None]


class GpuSampler:
    """Samples the GPUs of a pod: which attempts leave theirs idle, and, once a minute, the last hour of all."""

    def __init__(
        self,
        reader: GpuReader,
        lock: threading.Lock,
        indices: tuple[int, ...],
        interval_s: float | None,
        attempt_of: Callable[[int], Key | None],
        publisher: Publisher | None = None,
    ) -> None:
        """`lock` is held while `reader` is used; `attempt_of` tells to which attempt a pid belongs.

        `interval_s` None: no method asks which attempts are idle, and nothing is said of that.
        """
        self._reader = reader
        self._lock = lock
        self._indices = indices
        self._attempt_of = attempt_of
        self._publisher = publisher
        self._interval_s = interval_s or _INTERVAL_S
        self._times = None if interval_s is None else IdleTimes(interval_s)
        self._attempts: Mapping[Key, tuple[int, ...]] = {}
        self._minutes = GpuMinutes()
        self._published: int | None = None
        # As the GPUs were then.
        self._latest: Mapping[int, Gpu] = {}
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, attempts: Mapping[Key, tuple[int, ...]]) -> None:
        """The attempts that run from now on, and their GPUs."""
        self._attempts = attempts
        if self._thread is None:
            thread = threading.Thread(target=self._sample_again_and_again, name="sampling GPUs", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # This user may have no more processes: nothing is claimed about the GPUs, and the next pass tries.
                return
            self._thread = thread

    def idle_s(self, key: Key) -> float | None:
        """For how long all GPUs of an attempt have been at 0 %; 0 when they are in use, None when it is unknown."""
        return None if self._times is None else self._times.idle_s(key, boot_time_s())

    def busy_percent(self, index: int) -> int | None:
        """The utilisation of a GPU in the last minute; None when it is unknown."""
        return self._minutes.latest(_minute(), index)

    def state(self, index: int) -> Gpu | None:
        """A GPU as it was read in the last minute; None while none is."""
        is_new = self._published is not None and _minute() - self._published <= 1
        return self._latest.get(index) if is_new else None

    def close(self) -> None:
        """No reading begins after this."""
        self._is_closed.set()

    def _sample_again_and_again(self) -> None:
        earlier = self._publisher.load() if self._publisher is not None else None
        if earlier is not None:
            self._minutes.resume(self._indices, earlier)
        while not self._is_closed.wait(self._interval_s):
            self._sample(self._attempts)
            self._publish()

    def _sample(self, attempts: Mapping[Key, tuple[int, ...]]) -> None:
        gpus = list(self._read(self._reader.read_use))
        if self._is_closed.is_set():
            return
        now_s, minute = boot_time_s(), _minute()
        for gpu in gpus:
            self._minutes.note_use(minute, gpu)
        if self._times is not None:
            self._times.keep(attempts.keys())
            for key, uses in used(attempts, gpus, self._attempt_of).items():
                self._times.note(key, uses, now_s)

    def _publish(self) -> None:
        """What is on the GPUs, and the last hour; once a minute."""
        minute = _minute()
        if self._publisher is None or minute == self._published:
            return
        gpus = {gpu.index: gpu for gpu in self._read(lambda index: self._reader.read((index,)).gpus[0])}
        for gpu in gpus.values():
            self._minutes.note_state(minute, gpu, *others_on(gpu, lambda pid: self._attempt_of(pid) is not None))
        if self._is_closed.is_set():
            return
        self._published, self._latest = minute, gpus
        self._publisher.save(self._minutes.hour(minute, self._indices))

    def _read(self, read: Callable[[int], Gpu]) -> Iterator[Gpu]:
        """The GPUs, one after the other, so that the loop waits for one at most."""
        for index in self._indices:
            with self._lock:
                if self._is_closed.is_set():
                    return
                try:
                    gpu = read(index)
                except (PodError, OSError):
                    # No sample: it is unknown.
                    continue
            yield gpu


def _minute() -> int:
    return int(time.time() // 60)
