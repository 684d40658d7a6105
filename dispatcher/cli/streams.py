"""The standard streams of a command: closed ones, full ones, ones without a reader, terminals; and the log of a pod."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
import time
from typing import Any, TextIO

import click

from dispatcher.base import files
from dispatcher.base.times import Clock


class PodLog:
    """Prints the lines of a pod's log with the time, and with the date on the first one of each day."""

    def __init__(self, *, utc: bool) -> None:
        self._utc = utc
        self._last_s = 0.0

    def __call__(self, line: str) -> None:
        from dispatcher.base.terminal import one_line

        now_s = time.time()
        stamp = Clock(self._last_s, self._utc)(now_s)
        self._last_s = now_s
        # Errors of jobs and words of schedulers are in it: a terminal must not obey them.
        _print_line("\n".join(map(one_line, f"{stamp} {line}".split("\n"))))


def _print_line(line: str) -> None:
    """Print a line. The pod continues when the disk is full or the reader has gone.

    Ctrl-C also ends the `tee` of `dispatcher ... | tee log`, and the jobs must finish all the same.
    """
    try:
        click.echo(line)
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        if error.errno not in files.PASSING:
            raise


def discard_output() -> None:
    """Send what is still to be printed to /dev/null."""
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


class CleanTerminal(io.RawIOBase):
    """A terminal that gets nothing it would obey but colours: names, values and logs come from jobs."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        # The stream is kept: it would close its file when it is collected.
        self._stream = stream
        self._file = stream.fileno()
        self._encoding = stream.encoding
        self._decoder = codecs.getincrementaldecoder(stream.encoding)(errors="replace")
        self._rest = ""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file

    def write(self, data: Any, /) -> int:
        from dispatcher.base.terminal import cleaned

        text, self._rest = cleaned(self._rest + self._decoder.decode(bytes(data)))
        self.obey(text)
        return len(data)

    def obey(self, text: str) -> None:
        """Write what the terminal shall obey."""
        data = text.encode(self._encoding, "replace")
        while data:
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:
                select.select([], [self._file], [])


def clean_terminals() -> None:
    """Let terminals show `?` for letters that they do not have, and for what they would obey (`CleanTerminal`)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty() and _terminal_of(stream) is None:
            stream.flush()
            buffer = io.BufferedWriter(CleanTerminal(stream))
            errors = "replace" if stream.errors == "strict" else stream.errors
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, errors, line_buffering=True))


def _terminal_of(stream: TextIO) -> CleanTerminal | None:
    """The terminal that a stream writes to; None where it is none."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, CleanTerminal) else None


def draw(text: str) -> None:
    """Write escape sequences of our own to stdout, a terminal that shall obey them."""
    sys.stdout.flush()
    if (terminal := _terminal_of(sys.stdout)) is not None:
        terminal.obey(text)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()


def open_closed_streams() -> None:
    """Open /dev/null for closed streams (`>&-`): otherwise the next opened file would get their descriptor."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nothing, True)
            setattr(sys, name, open(nothing, "w" if fd else "r"))  # noqa: SIM115 (for as long as the process lives)
