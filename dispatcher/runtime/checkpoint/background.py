"""At most one save on its way: the next one waits for it, and hears how it ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Background:
    """Runs one piece of work at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether something is on its way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Begin `work`; what was begun before must have been waited for."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # whoever waits gets it, whatever it is
                self._problem = error
                # Nobody may ever wait: a process that ends otherwise says it here at least.
                _log.error("%s", error)

        # Not a daemon: an interpreter that comes to its end lets the commit come to its own.
        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def wait(self) -> Exception | None:
        """Wait for what is on its way; the error with which it ended, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem, self._problem = self._problem, None
        return problem
