"""When a checkpoint is due by time."""

from __future__ import annotations

import time
from collections.abc import Callable


class SaveTimer:
    """Due when `interval_s` seconds have passed since the last checkpoint; never if it is None.

    The clocks of processes differ, so only one process has a timer with an interval, and requests the save for all.
    """

    def __init__(self, interval_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._began_s = clock()

    @property
    def due(self) -> bool:
        return self._interval_s is not None and self._clock() - self._began_s >= self._interval_s

    def restart(self) -> None:
        """Start a new interval: a checkpoint was saved."""
        self._began_s = self._clock()
