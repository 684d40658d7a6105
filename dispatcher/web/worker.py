"""Threads that do what may take long, so that the server goes on answering."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Task = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Worker:
    """Some threads with one queue; with a single thread, tasks run one after the other.

    The threads are daemons: one that hangs in a file server does not keep the program from ending.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    async def run(self, function: Callable[..., T], *args: Any, timeout_s: float | None = None) -> T:
        """Run a function on one of the threads; TimeoutError when that takes too long. It is not interrupted then."""
        future: Future[T] = Future()
        self._tasks.put((future, function, args))
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)

    def _work(self) -> None:
        while True:
            future, function, args = self._tasks.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function(*args)
            except BaseException as error:  # noqa: BLE001 - who asked is told
                future.set_exception(error)
            else:
                future.set_result(result)
            # Nothing of a task is kept until the next one comes.
            del future, function, args
