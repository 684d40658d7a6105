"""Running attempts that leave their GPUs idle: recorded, and stopped where their methods say so."""

from __future__ import annotations

import time
from typing import Final

from dispatcher.config import GpuIdle
from dispatcher.outlets.base import GPU_IDLE
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.pod.recording import is_current
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.run_state.facets.gpu_idle import GpuBusy
from dispatcher.run_state.facets.gpu_idle import GpuIdle as Idle
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.store import Transaction

_MINUTE_S: Final = 60.0

_News = tuple[RunningAttempt, Idle | GpuBusy]


class IdleGpus(Participant):
    """Compares what outlets report of the GPUs of attempts with what the journal has."""

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        self._shared = shared
        self._backlog = backlog
        self._recorded: list[_News] = []

    def act(self, now: Pass) -> None:
        """Stop attempts that have left their GPUs idle for longer than their methods let them."""
        attempts = self._shared.attempts
        for attempt in attempts:
            if attempt.ended is None and not attempt.is_stopping and attempt.gpu_use is not None:
                limit = self._exceeded(attempt.key.job_id, attempt.gpu_use.idle_s)
                if limit is not None and limit.stop:
                    reason = _stopped_for(limit.after_s or 0.0)
                    self._shared.log(f"{attempt.key.job_id} (attempt {attempt.key.number}): {reason}: stopping it")
                    attempts.stop([attempt], reason)

    def has_news(self) -> bool:
        return bool(self._news())

    def record(self, now: Pass, tx: Transaction) -> None:
        self._recorded = self._news()
        for attempt, note in self._recorded:
            tx.note(note, job=attempt.key.job_id)

    def commit(self, tx: Transaction) -> None:
        for attempt, note in self._recorded:
            idle = f"idle since {note.since}" if isinstance(note, Idle) else "in use again"
            gpus = _gpus(attempt, note.gpus)
            self._shared.log(f"{attempt.key.job_id} (attempt {attempt.key.number}): {gpus} {idle}")

    def _news(self) -> list[_News]:
        """The attempts whose GPUs became idle or busy, which the journal does not have yet."""
        fold, now_s = self._shared.store.fold, time.time()
        found: list[_News] = []
        for attempt in self._shared.attempts:
            job, number, use = attempt.key.job_id, attempt.key.number, attempt.gpu_use
            if attempt.ended is not None or use is None or not is_current(fold.records.get(job), number):
                continue
            known = fold.gpu_idle.of(job, fold.records.get(job))
            if known is not None and use.idle_s == 0.0:
                found.append((attempt, GpuBusy(attempt=number, since=known.since, gpus=known.gpus)))
            elif known is None and self._exceeded(job, use.idle_s) is not None:
                since = now_text(now_s - use.idle_s)
                found.append((attempt, Idle(attempt=number, since=since, gpus=use.gpus)))
        return found

    def _exceeded(self, job: str, idle_s: float) -> GpuIdle | None:
        """The limit that GPUs exceed which were idle for so long; None when there is none."""
        entry = self._backlog.entry(job)
        limit = self._shared.config.now.gpu_idle_of(entry.method if entry is not None else "")
        return limit if limit.after_s is not None and idle_s >= limit.after_s else None


def _gpus(attempt: RunningAttempt, count: int) -> str:
    """Its GPUs; on a configured host those that it was given there, by number where only that is known."""
    indices = attempt.slot.gpus or (attempt.placement.gpus if attempt.placement is not None else ())
    if not indices:
        return "its GPU" if count == 1 else f"its {count} GPUs"
    return f"GPU{'s' if len(indices) > 1 else ''} {','.join(map(str, indices))}"


def _stopped_for(after_s: float) -> str:
    """`GPU idle for 30 min`."""
    text = f"{after_s / _MINUTE_S:g} min" if after_s >= _MINUTE_S else f"{after_s:g} s"
    return f"{GPU_IDLE} for {text}"
