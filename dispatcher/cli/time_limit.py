"""`--timeout` of commands that wait: when the time is over, they end as after Ctrl-C, but with exit status 124.

Such commands already know how to end on Ctrl-C, so an alarm sends that signal; `main` asks afterwards which it was.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from dispatcher.cli.common import read_duration
from dispatcher.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


class _Alarm:
    """The one alarm that a process has."""

    has_rung = False

    def start(self, seconds: float) -> None:
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _ring(self, _number: int, _frame: object) -> None:
        self.has_rung = True
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            # Shells that are not interactive start background commands like this.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)


_ALARM: Final = _Alarm()


def timeout_option(function: F) -> F:
    """`--timeout TIME`, for commands that wait."""
    return click.option(
        "--timeout", expose_value=False, callback=_start, metavar="TIME",
        help="Stop waiting after this time (30s, 10m, seconds), with exit status 124. Jobs go on.",
    )(function)  # fmt: skip


def end() -> bool:
    """Forget the limit; whether it has ended the command."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    was_over, _ALARM.has_rung = _ALARM.has_rung, False
    return was_over


def _start(context: click.Context, param: click.Parameter, value: str | None) -> None:
    seconds = read_duration(context, param, value)
    if seconds is None or context.resilient_parsing:
        return
    if seconds <= 0:
        raise UsageError(f"--timeout {value}: expected a time of more than 0 seconds")
    _ALARM.start(seconds)
