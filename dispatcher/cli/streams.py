"""The standard streams of a command: closed ones, full ones, ones that no one reads; and the log of a pod."""

from __future__ import annotations

import io
import os
import sys
import time

import click

from dispatcher.base import files
from dispatcher.base.times import Clock


class PodLog:
    """Prints the lines of a pod's log with the time, and with the date on the first one of each day."""

    def __init__(self, *, utc: bool) -> None:
        self._utc = utc
        self._last_s = 0.0

    def __call__(self, line: str) -> None:
        from dispatcher.report.terminal import one_line

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


def show_every_letter() -> None:
    """Terminals show `?` for letters that they do not have: tables have an ellipsis, and jobs say anything."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.isatty() and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def open_closed_streams() -> None:
    """Open /dev/null for closed streams (`>&-`): otherwise the next opened file would get their descriptor."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nothing, True)
            setattr(sys, name, open(nothing, "w" if fd else "r"))  # noqa: SIM115 (for as long as the process lives)
