"""Following the logs of all machines of an attempt at once, for `logs -f`: each line with the index of its machine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from dispatcher.cli.remote_log import Elsewhere, Sink, copy_what_is_there, follow_elsewhere

# A line that is longer is cut, so that one without an end is shown.
_LONGEST_LINE: Final = 1 << 16


def follow_several(logs: Sequence[Elsewhere], out: Sink, tail: int | None, has_ended: Callable[[], bool]) -> None:
    """Copy all logs from their beginning, or the last `tail` lines of each, until the attempt has ended on all.

    Each is followed by a thread of its own, with a connection that is made again when it breaks off.
    """
    printing, asking, stopping = threading.Lock(), threading.Lock(), threading.Event()

    def is_over() -> bool:
        with asking:
            return stopping.is_set() or has_ended()

    def follow(index: int, where: Elsewhere) -> None:
        lines = _Lines(b"[%d] " % index, out, printing, stopping)
        offset = 0
        if tail is not None:
            last = _LastLines(tail)
            offset = copy_what_is_there(where, last)
            last.give(lines)
        try:
            follow_elsewhere(where, lines, offset, is_over)
        except _Stopped:
            return
        lines.end()

    threads = [threading.Thread(target=follow, args=each) for each in enumerate(logs)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        # Interrupted by a person: those that copy are stopped by their next line, or within a second.
        stopping.set()


class _Stopped(Exception):
    """Nobody reads any more."""


class _Lines:
    """Gives whole lines to `out`, each with what is put before it; several of these share `out`."""

    def __init__(self, prefix: bytes, out: Sink, printing: threading.Lock, stopping: threading.Event) -> None:
        self._prefix = prefix
        self._out = out
        self._printing = printing
        self._stopping = stopping
        self._rest = b""

    def write(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        self._print(lines)

    def flush(self) -> None:
        """Whole lines are given on at once."""

    def end(self) -> None:
        """Nothing comes any more: what is no whole line is printed as one."""
        if self._rest:
            self._print([self._rest])
            self._rest = b""

    def _print(self, lines: Sequence[bytes]) -> None:
        if self._stopping.is_set():
            raise _Stopped
        with self._printing:
            self._out.write(b"".join(self._prefix + line + b"\n" for line in lines))
            self._out.flush()


class _LastLines:
    """Keeps the last lines of what is written, and what comes after the last one."""

    def __init__(self, count: int) -> None:
        self._lines: deque[bytes] = deque(maxlen=count)
        self._rest = b""

    def write(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        self._lines.extend(lines)

    def flush(self) -> None:
        """Nothing is given on before `give`."""

    def give(self, out: _Lines) -> None:
        lines = [*(line + b"\n" for line in self._lines), self._rest]
        out.write(b"".join(lines if self._rest else lines[:-1]))
