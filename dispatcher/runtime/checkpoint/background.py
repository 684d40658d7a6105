"""At most one save in progress: the next one waits for it and gets its error."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Final

_LOG_AFTER_S: Final = 10.0

_log = logging.getLogger(__name__)
_all: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Runs one piece of work at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._waited_for = threading.Event()
        _all.add(self)

    def start(self, work: Callable[[], None]) -> None:
        """Begin `work`; `wait` must have been called for the work before it."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # `wait` returns it, whatever it is
                self._error = error
                # The next save may be hours away, or never come: then the error is logged here.
                if not self._waited_for.wait(_LOG_AFTER_S):
                    _log.error("%s", error)

        _wait_at_exit()
        self._waited_for.clear()
        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether work is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> Exception | None:
        """Wait for the work in progress; returns its error, once."""
        self._waited_for.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        return error

    def end(self) -> None:
        """Wait, and log the error, because no later call of `wait` will return it."""
        error = self.wait()
        if error is not None:
            _log.error("%s", error)


@cache
def _wait_at_exit() -> None:
    """Make an interpreter that exits wait for commits while Orbax can still start threads.

    `atexit` handlers and the join of non-daemon threads come too late for that.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_end_all)


def _end_all() -> None:
    for each in list(_all):
        each.end()
