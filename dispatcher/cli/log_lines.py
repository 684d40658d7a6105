"""Lines of logs: those that match a pattern, with a prefix or a heading, the last ones.

A carriage return begins a line anew, as progress bars do. What is more than a copy of the log has the last state of
such a line, which is what a terminal shows in the end.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from dispatcher.errors import UsageError
from dispatcher.workspace import AttemptPaths, log_name

_BLOCK: Final = 1 << 20
_REWRITTEN: Final = re.compile(rb"[^\n]*\r[^\n]*")
# A line that is longer is cut, so that one without an end is shown.
_LONGEST_LINE: Final = 1 << 16


class Sink(Protocol):
    """Where a log is copied to."""

    def write(self, block: bytes, /) -> object: ...

    def flush(self) -> object: ...


class Choice(msgspec.Struct, frozen=True):
    """What is shown of logs: which attempt (None: the last one), only the last lines, only lines with a match.

    `hosts_file` has hosts where attempts may run. `rank` is the process of an attempt on several machines; None: the
    first one, or when they are followed all that have a log on a machine of their own.
    """

    attempt: int | None = None
    tail: int | None = None
    pattern: re.Pattern[str] | None = None
    hosts_file: Path | None = None
    rank: int | None = None

    @property
    def name(self) -> str:
        """The name of the log in the attempt's directory."""
        return log_name(self.rank or 0)


def missing_rank(paths: AttemptPaths, rank: int | None) -> str:
    """Why there is no log of this rank although there are others; empty where there is none at all."""
    there = paths.logged_ranks()
    if not (rank and there):
        return ""
    has = f"ranks {', '.join(map(str, there))}" if len(there) > 1 else f"rank {there[0]}"
    later = "" if os.path.exists(paths.exit) else "; others come when the attempt has ended, and -f shows them before"
    return f" of rank {rank}, only of {has}{later}"


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


class BlockHeadings:
    """Writes a heading before the first block, so that a log without a match has none."""

    def __init__(self, heading: bytes, out: Sink) -> None:
        self._heading = heading
        self._out = out

    def write(self, block: bytes) -> None:
        self._out.write(self._heading + block)
        self._heading = b""

    def flush(self) -> None:
        self._out.flush()


class LastStates:
    """Passes on text, and of a line that is begun anew its last state.

    An unfinished line is passed on at the `end`; until then `draw` shows it, where that is given.
    """

    def __init__(self, out: Sink, draw: Callable[[bytes], None] | None = None) -> None:
        self._out = out
        self._draw = draw
        self._drawn = b""
        self._rest = b""

    def write(self, block: bytes) -> None:
        lines, newline, self._rest = (self._rest + block).rpartition(b"\n")
        # What comes next may begin it anew: the carriage returns after the state stay.
        self._rest = self._rest[_last_state_start(self._rest, 0, len(self._rest)) :]
        if len(self._rest) > _LONGEST_LINE:
            lines, newline, self._rest = lines + newline + self._rest, b"", b""
        self._show(b"")
        self._out.write(_REWRITTEN.sub(lambda line: _last_state(line[0]), lines) + newline)
        self._show(_last_state(self._rest))

    def flush(self) -> None:
        self._out.flush()

    def end(self) -> None:
        """Pass on an unfinished line."""
        self._show(b"")
        self._out.write(_last_state(self._rest))
        self._rest = b""

    def _show(self, state: bytes) -> None:
        if self._draw is not None and (state or self._drawn):
            self._draw(state)
            self._drawn = state


def _last_state(line: bytes) -> bytes:
    """What is left of a line with carriage returns: its last part that is not blank."""
    start = _last_state_start(line, 0, len(line))
    return line[start:].partition(b"\r")[0]


def _last_state_start(block: bytes, start: int, end: int) -> int:
    """Where the last state of the line in `block[start:end]` begins; `start` where nothing says."""
    while (found := block.rfind(b"\r", start, end)) >= 0:
        if block[found + 1 : end].strip():
            return found + 1
        end = found
    return start


def _last_start(block: bytes, start: int, end: int) -> int:
    """Where the line in `block[start:end]` begins anew for the last time; `start` where it does not."""
    return max(start, block.rfind(b"\r", start, end) + 1)


class Lines:
    """Passes on whole lines, each with a prefix; with a pattern those that match, in their last state that does."""

    def __init__(self, out: Sink, prefix: bytes = b"", pattern: re.Pattern[str] | None = None) -> None:
        self._prefix = prefix
        self._pattern = pattern
        self._out = out
        self._rest = b""

    def write(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = self._shortened(self._rest)
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        self._pass_on(lines)

    def _shortened(self, line: bytes) -> bytes:
        """An unfinished line without the states that will not be shown."""
        rest = line[_last_state_start(line, 0, len(line)) :]
        match = None if self._pattern is None else self._state(line)
        return rest if match is None or rest.startswith(match) else match + b"\r" + rest

    def _state(self, line: bytes) -> bytes | None:
        """What is shown of a line; None where no state of it matches."""
        states = [line]
        if b"\r" in line:
            states = [state for state in reversed(line.split(b"\r")) if state.strip()] or [b""]
        return next(filter(self._matches, states), None)

    def _matches(self, state: bytes) -> bool:
        return self._pattern is None or self._pattern.search(state.decode("utf-8", "surrogateescape")) is not None

    def flush(self) -> None:
        """Whole lines are passed on at once."""

    def end(self) -> None:
        """Pass on the rest, an unfinished line, as a line."""
        if self._rest:
            self._pass_on([self._rest])
            self._rest = b""

    def _pass_on(self, lines: Sequence[bytes]) -> None:
        shown = [state for line in lines if (state := self._state(line)) is not None]
        if shown:
            self._out.write(b"".join(self._prefix + line + b"\n" for line in shown))
            self._out.flush()


class LastLines:
    """Keeps the last lines of what is written, in their last states, and an unfinished one after them."""

    def __init__(self, count: int) -> None:
        self._lines: deque[bytes] = deque(maxlen=count)
        self._rest = b""

    def write(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        self._lines.extend(map(_last_state, lines))
        self._rest = self._rest[_last_state_start(self._rest, 0, len(self._rest)) :]

    def flush(self) -> None:
        """Nothing is passed on before `write_to`."""

    def write_to(self, out: Sink) -> None:
        lines = [*(line + b"\n" for line in self._lines), _last_state(self._rest)]
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


def show(file: BinaryIO, out: Sink, tail: int | None, *, is_copy: bool = True) -> None:
    """Copy what the log has now; its last lines, or all that is no copy, in their last states."""
    if tail is None and is_copy:
        copy(file, out)
        return
    if tail is not None:
        file.seek(_tail_start(file, tail))
    states = LastStates(out)
    copy(file, states)
    states.end()


def _tail_start(file: BinaryIO, lines: int) -> int:
    """The offset of the last `lines` lines; of the first of them its last state, which may be the end of gigabytes."""
    end = file.seek(0, os.SEEK_END)
    # `stop`: the end of the line, or of its part in this block; `is_blank`: the parts of it that were read.
    position, found, is_blank = end, 0, True
    while position > 0 and lines:
        start = max(0, position - _BLOCK)
        file.seek(start)
        block = file.read(position - start)
        stop = len(block)
        while True:
            newline = block.rfind(b"\n", 0, stop)
            if found == lines - 1:
                find = _last_state_start if is_blank else _last_start
                if (state := find(block, newline + 1, stop)) > newline + 1:
                    return start + state
            is_blank = is_blank and not block[newline + 1 : stop].strip()
            if newline < 0:
                break
            # A newline at the end of the file does not begin a line.
            if start + newline != end - 1:
                found += 1
                if found == lines:
                    return start + newline + 1
            stop, is_blank = newline, True
        position = start
    return 0 if lines else end
