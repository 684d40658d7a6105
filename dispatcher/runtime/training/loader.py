"""Batches of a training, read ahead by threads and put onto the devices."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, NamedTuple

from jax.sharding import Mesh

from dispatcher.runtime.training.data import Read, Reader

# A reader that hangs must not hide the error that ends a training, nor keep its process from exiting.
_CLOSE_TIMEOUT_S: Final = 5.0
_TELL_EVERY_S: Final = 60.0

_log = logging.getLogger(__name__)


class LoadedBatch(NamedTuple):
    """A batch on the devices, the position after it, and how long it had to be waited for, in seconds."""

    batch: Any
    position: Any
    waited_s: float


class Loader:
    """Batches for a training, read ahead by threads; closed at the end.

    Arrays are [rows, ...], or [steps, rows, ...] when `take` is asked for several steps.
    """

    def __init__(
        self,
        reader: Reader,
        mesh: Mesh,
        *,
        ahead: int,
        tell_every_s: float = _TELL_EVERY_S,
        close_timeout_s: float = _CLOSE_TIMEOUT_S,
    ) -> None:
        self._reader = reader
        self._mesh = mesh
        self._ahead = ahead
        self._tell_every_s = tell_every_s
        self._close_timeout_s = close_timeout_s
        self._threads = _Threads(max(1, ahead) if reader.parallel else 1)
        self._waiting: list[tuple[int, Future[Read]]] = []

    def take(self, steps: int, following: Sequence[int] = ()) -> LoadedBatch:
        """The batches of the next `steps` steps; `following` are the numbers of steps of the calls after this one."""
        self._request([steps, *following[: self._ahead]])
        _, future = self._waiting.pop(0)
        began_s = time.monotonic()
        while not wait([future], timeout=self._tell_every_s).done:
            waited_s = time.monotonic() - began_s
            _log.warning("no batch for %.0f s: the data is read slowly, or its reader hangs", waited_s)
        host, position = future.result()
        waited_s = time.monotonic() - began_s
        return LoadedBatch(self._reader.on_devices(host, self._mesh, steps), position, waited_s)

    def close(self) -> None:
        """Read nothing more, and wait some seconds for what is being read."""
        if not self._threads.end(self._close_timeout_s):
            _log.warning("a batch is still being read after %g s; it is not waited for", self._close_timeout_s)

    def _request(self, calls: Sequence[int]) -> None:
        for number, steps in enumerate(calls):
            if number < len(self._waiting):
                assert self._waiting[number][0] == steps, "calls come in the order in which they were announced"
                continue
            self._waiting.append((steps, self._threads.submit(self._reader.following(steps))))


class _Threads:
    """`count` threads that call functions in the order in which they are given; a process exits without them."""

    def __init__(self, count: int) -> None:
        self._calls: SimpleQueue[tuple[Future[Read], Callable[[], Read]] | None] = SimpleQueue()
        self._ended = Event()
        self._all = [Thread(target=self._work, name=f"data-{number}", daemon=True) for number in range(count)]
        for thread in self._all:
            thread.start()

    def submit(self, call: Callable[[], Read]) -> Future[Read]:
        future: Future[Read] = Future()
        self._calls.put((future, call))
        return future

    def end(self, timeout_s: float) -> bool:
        """Begin no call any more; whether those in progress have ended within `timeout_s`."""
        self._ended.set()
        for _ in self._all:
            self._calls.put(None)
        until_s = time.monotonic() + timeout_s
        for thread in self._all:
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._all)

    def _work(self) -> None:
        while (given := self._calls.get()) is not None and not self._ended.is_set():
            future, call = given
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  # `result` raises it where the batch is taken
                future.set_exception(error)
