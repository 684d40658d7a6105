"""Lines of logs: those that match a pattern, with a prefix or a heading, the last ones."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from dispatcher.errors import UsageError

_BLOCK: Final = 1 << 20
# A line that is longer is cut, so that one without an end is shown.
_LONGEST_LINE: Final = 1 << 16


class Sink(Protocol):
    """Where a log is copied to."""

    def write(self, block: bytes, /) -> object: ...

    def flush(self) -> object: ...


class Choice(msgspec.Struct, frozen=True):
    """What is shown of logs: which attempt (None: the last one), only the last lines, only lines with a match.

    `hosts_file` has hosts where attempts may run.
    """

    attempt: int | None = None
    tail: int | None = None
    pattern: re.Pattern[str] | None = None
    hosts_file: Path | None = None


class Stopped(Exception):
    """The reader of the output has gone, or the following is over."""


def read_pattern(text: str | None) -> re.Pattern[str] | None:
    """The regular expression of `--grep`. Raises UsageError with what is wrong with it."""
    if text is None:
        return None
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--grep {text}: not a regular expression: {error}") from None


class Output:
    """The one place that several logs are copied to; whole blocks of lines, and none when it is `stopping`."""

    def __init__(self, out: Sink) -> None:
        self.stopping = threading.Event()
        self.is_empty = True
        self._out = out
        self._printing = threading.Lock()

    def write(self, block: bytes) -> None:
        if self.stopping.is_set():
            raise Stopped
        with self._printing:
            self.is_empty = self.is_empty and not block
            self._out.write(block)
            self._out.flush()

    def flush(self) -> None:
        """Blocks are passed on at once."""


class Headed:
    """Writes a heading before the first block, so that a log without a match has none."""

    def __init__(self, heading: bytes, out: Sink) -> None:
        self._heading = heading
        self._out = out

    def write(self, block: bytes) -> None:
        self._out.write(self._heading + block)
        self._heading = b""

    def flush(self) -> None:
        self._out.flush()


class Lines:
    """Passes on whole lines: those with a match, each with a prefix."""

    def __init__(self, out: Sink, prefix: bytes = b"", pattern: re.Pattern[str] | None = None) -> None:
        self._prefix = prefix
        self._pattern = pattern
        self._out = out
        self._rest = b""

    def write(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        self._pass_on(lines)

    def flush(self) -> None:
        """Whole lines are passed on at once."""

    def end(self) -> None:
        """Pass on the rest, an unfinished line, as a line."""
        if self._rest:
            self._pass_on([self._rest])
            self._rest = b""

    def _pass_on(self, lines: Sequence[bytes]) -> None:
        if self._pattern is not None:
            lines = [line for line in lines if self._pattern.search(line.decode("utf-8", "surrogateescape"))]
        if lines:
            self._out.write(b"".join(self._prefix + line + b"\n" for line in lines))
            self._out.flush()


class LastLines:
    """Keeps the last lines of what is written, and an unfinished one after them."""

    def __init__(self, count: int) -> None:
        self._lines: deque[bytes] = deque(maxlen=count)
        self._rest = b""

    def write(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        self._lines.extend(lines)

    def flush(self) -> None:
        """Nothing is passed on before `write_to`."""

    def write_to(self, out: Sink) -> None:
        lines = [*(line + b"\n" for line in self._lines), self._rest]
        out.write(b"".join(lines if self._rest else lines[:-1]))


def copy(file: BinaryIO, out: Sink) -> bool:
    """Copy the rest of the file; whether there was any."""
    some = False
    while block := file.read(_BLOCK):
        out.write(block)
        some = True
    if some:
        out.flush()
    return some


def show(file: BinaryIO, out: Sink, tail: int | None) -> None:
    """Copy what the log has now, or its last lines."""
    if tail is not None:
        file.seek(_tail_start(file, tail))
    copy(file, out)


def _tail_start(file: BinaryIO, lines: int) -> int:
    """The offset of the last `lines` lines."""
    end = file.seek(0, os.SEEK_END)
    position, found = end, 0
    while position > 0:
        start = max(0, position - _BLOCK)
        file.seek(start)
        block = file.read(position - start)
        for index in range(len(block) - 1, -1, -1):
            # A newline at the end of the file does not begin a line.
            if block[index] == 0x0A and start + index != end - 1:
                found += 1
                if found == lines:
                    return start + index + 1
        position = start
    return 0 if lines else end
