"""At most one save on its way: the next one waits for it, and hears how it ended."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Final

_UNHEARD_S: Final = 10.0

_log = logging.getLogger(__name__)
_all: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Runs one piece of work at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None
        self._asked_for = threading.Event()
        _all.add(self)

    def start(self, work: Callable[[], None]) -> None:
        """Begin `work`; what was begun before must have been waited for."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # whoever waits gets it, whatever it is
                self._problem = error
                # Nobody may ever wait, or not for hours: then it is said here. Who does wait says it himself.
                if not self._asked_for.wait(_UNHEARD_S):
                    _log.error("%s", error)

        _outlast_the_interpreter()
        self._asked_for.clear()
        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def wait(self) -> Exception | None:
        """Wait for what is on its way; the error with which it ended, once."""
        self._asked_for.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        problem, self._problem = self._problem, None
        return problem

    def end(self) -> None:
        """Wait, and say what nobody has asked for and nobody will."""
        problem = self.wait()
        if problem is not None:
            _log.error("%s", problem)


@cache
def _outlast_the_interpreter() -> None:
    """Let an interpreter that comes to its end wait for commits while the threads that Orbax needs can still start.

    `atexit`, and the end of a thread that is no daemon, come after those are gone.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_end_all)


def _end_all() -> None:
    for each in list(_all):
        each.end()
