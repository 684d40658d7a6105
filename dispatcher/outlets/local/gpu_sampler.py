"""Takes samples of how busy GPUs are, in a thread: a driver's call may take seconds, and the loop waits for none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from dispatcher.errors import PodError
from dispatcher.outlets.base import Key
from dispatcher.outlets.idle_times import IdleTimes
from dispatcher.outlets.local.gpu_use import used
from dispatcher.outlets.local.gpus import GpuReader
from dispatcher.outlets.local.processes import boot_time_s


class GpuSampler:
    """Samples the GPUs on which attempts run. The thread begins with the first attempt."""

    def __init__(
        self, reader: GpuReader, lock: threading.Lock, interval_s: float, attempt_of: Callable[[int], Key | None]
    ) -> None:
        """`lock` is held while `reader` is used; `attempt_of` tells to which attempt a pid belongs."""
        self._reader = reader
        self._lock = lock
        self._interval_s = interval_s
        self._attempt_of = attempt_of
        self._times = IdleTimes(interval_s)
        self._attempts: Mapping[Key, tuple[int, ...]] = {}
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, attempts: Mapping[Key, tuple[int, ...]]) -> None:
        """The attempts that run from now on, and their GPUs."""
        self._attempts = attempts
        if attempts and self._thread is None:
            thread = threading.Thread(target=self._sample_again_and_again, name="sampling GPUs", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # This user may have no more processes: nothing is claimed about the GPUs, and the next pass tries.
                return
            self._thread = thread

    def idle_s(self, key: Key) -> float | None:
        """For how long all GPUs of an attempt have been at 0 %; 0 when they are in use, None when it is unknown."""
        return self._times.idle_s(key, boot_time_s())

    def close(self) -> None:
        """No reading begins after this."""
        self._is_closed.set()

    def _sample_again_and_again(self) -> None:
        while not self._is_closed.wait(self._interval_s):
            self._sample(self._attempts)

    def _sample(self, attempts: Mapping[Key, tuple[int, ...]]) -> None:
        gpus = []
        for index in sorted({index for indices in attempts.values() for index in indices}):
            with self._lock:
                if self._is_closed.is_set():
                    return
                try:
                    gpus.append(self._reader.read_use(index))
                except (PodError, OSError):
                    # No sample: it is unknown.
                    continue
        now_s = boot_time_s()
        self._times.keep(attempts.keys())
        for key, uses in used(attempts, gpus, self._attempt_of).items():
            self._times.note(key, uses, now_s)
