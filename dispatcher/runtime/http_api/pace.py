"""When the next request may be sent: requests per minute, and pauses that the API asks for."""

from __future__ import annotations

import threading
import time


class Pace:
    """Shared by all threads: at most `per_minute` requests, evenly spaced, and none during a pause.

    Waiting ends early when `stop` is set.
    """

    def __init__(self, per_minute: float | None, stop: threading.Event) -> None:
        self._interval_s = 60.0 / per_minute if per_minute is not None else 0.0
        self._stop = stop
        self._lock = threading.Lock()
        self._next_s = 0.0
        self._paused_until_s = 0.0

    def wait(self) -> bool:
        """Wait for this thread's turn; False when the job stops instead."""
        with self._lock:
            turn_s = max(self._next_s, time.monotonic())
            self._next_s = turn_s + self._interval_s
        # A pause may be prolonged by another thread while this one waits.
        while (left_s := max(turn_s, self._paused_until_s) - time.monotonic()) > 0:
            if self._stop.wait(left_s):
                return False
        return not self._stop.is_set()

    def pause(self, seconds: float) -> None:
        """Let no thread send for `seconds` from now on."""
        with self._lock:
            self._paused_until_s = max(self._paused_until_s, time.monotonic() + seconds)
