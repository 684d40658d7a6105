"""When the time has come to save."""

from __future__ import annotations

import time
from collections.abc import Callable


class SaveTimer:
    """Says when `interval_s` seconds have passed since the last checkpoint; never when it is None.

    Clocks of several processes differ: one of them asks its timer, and the others hear of it with the next update.
    """

    def __init__(self, interval_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._began_s = clock()

    @property
    def due(self) -> bool:
        return self._interval_s is not None and self._clock() - self._began_s >= self._interval_s

    def restart(self) -> None:
        """Something was saved now."""
        self._began_s = self._clock()
