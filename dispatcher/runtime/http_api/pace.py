"""When the next request may be sent: requests per minute, and pauses that the API asks for."""

from __future__ import annotations

import asyncio
import time


class Pace:
    """Shared by all requests: at most `per_minute` are sent, evenly spaced, and none during a pause.

    Waiting ends early when `stop` is set.
    """

    def __init__(self, per_minute: float | None, stop: asyncio.Event) -> None:
        self._interval_s = 60.0 / per_minute if per_minute is not None else 0.0
        self._stop = stop
        self._next_s = 0.0
        self._paused_until_s = 0.0

    async def wait(self) -> bool:
        """Wait for this request's turn; False when the job stops instead."""
        turn_s = max(self._next_s, time.monotonic())
        self._next_s = turn_s + self._interval_s
        # A pause may be prolonged while this one waits.
        while (left_s := max(turn_s, self._paused_until_s) - time.monotonic()) > 0:
            if await is_set_within(self._stop, left_s):
                return False
        return not self._stop.is_set()

    def pause(self, seconds: float) -> None:
        """Let nothing be sent for `seconds` from now on."""
        self._paused_until_s = max(self._paused_until_s, time.monotonic() + seconds)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event`, at most `seconds`; whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
