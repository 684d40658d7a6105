"""Where attempts run: recorded with the next transaction, or by itself when none comes soon."""

from __future__ import annotations

import time
from typing import Final

from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.pod.recording import Recorder
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.run_state.store import Transaction

_DELAY_S: Final = 0.02


class Placements(Participant):
    """A claim costs one sync of the disk and not two."""

    def __init__(self, shared: Shared, recorder: Recorder) -> None:
        self._attempts = shared.attempts
        self._recorder = recorder
        self._recorded: list[RunningAttempt] = []

    def has_news(self) -> bool:
        now_s = time.monotonic()
        return any(now_s - attempt.claimed_s >= _DELAY_S for attempt in self._attempts.unrecorded())

    def record(self, now: Pass, tx: Transaction) -> None:
        self._recorded = list(self._attempts)
        for attempt in self._recorded:
            self._recorder.placement(tx, attempt)

    def commit(self, tx: Transaction) -> None:
        for attempt in self._recorded:
            attempt.mark_recorded()

    def due_in_s(self, *, claiming: bool) -> float | None:
        return _DELAY_S if self._attempts.unrecorded() else None
