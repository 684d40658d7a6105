"""Claims wait for a moment after an attempt that could not be started because of the storage."""

from __future__ import annotations

import time
from typing import Final

from dispatcher.pod.backlog import Backlog
from dispatcher.pod.participant import Participant, Pass, Shared

_PAUSE_S: Final = 2.0


class StoragePause(Participant):
    """The storage has no room or does not answer: the next job would not start either."""

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        self._shared = shared
        self._backlog = backlog
        self._until_s = 0.0

    def look(self, now: Pass) -> None:
        if any(one.ended is not None and one.ended.is_passing for one in self._shared.attempts):
            self._until_s = time.monotonic() + _PAUSE_S

    def may_claim(self) -> bool:
        return time.monotonic() >= self._until_s

    def due_in_s(self, *, claiming: bool) -> float | None:
        if not claiming or self.may_claim() or not self._backlog.has_ready():
            return None
        return self._until_s - time.monotonic()
