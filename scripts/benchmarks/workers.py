"""Arms in processes of their own: what one holds in memory must not slow down the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.figures import BenchError

_SPAWN = multiprocessing.get_context("spawn")


class Worker:
    """`make(*arguments)` runs in a new process and gives a function that takes a number; `ask` calls it there."""

    def __init__(self, make: Callable[..., Callable[[int], Any]], *arguments: Any) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Wait until it has been made."""
        self.receive()

    def send(self, number: int) -> None:
        self._pipe.send(number)

    def receive(self) -> Any:
        try:
            failed, answer = self._pipe.recv()
        except EOFError:
            raise BenchError(f"a worker has died: {self._process}") from None
        if failed:
            raise BenchError(answer)
        return answer

    def ask(self, number: int) -> Any:
        self.send(number)
        return self.receive()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        self._process.kill()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def repeat(arm: Callable[[], float]) -> Callable[[int], list[float]]:
    """The arm `number` times."""
    return lambda number: [arm() for _ in range(number)]


def ask_once(make: Callable[..., Callable[[int], Any]], *arguments: Any, number: int = 1) -> Any:
    """One answer of a fresh process, to `number`."""
    with Worker(make, *arguments) as worker:
        worker.ready()
        return worker.ask(number)


def _serve(pipe: Connection, make: Callable[..., Callable[[int], Any]], arguments: tuple[Any, ...]) -> None:
    # An interrupt is for the one who asks; when it goes, the pipe ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            answer = make(*arguments)
            pipe.send((False, None))
            while True:
                pipe.send((False, answer(pipe.recv())))
        except (EOFError, BrokenPipeError):
            raise
        except BaseException:  # noqa: BLE001 - told to the one who asks, who raises it there
            pipe.send((True, traceback.format_exc()))
