"""Running attempts that leave their GPUs idle: what the journal is told of them, and which are to be stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from dispatcher.config import GpuIdle
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import GPU_IDLE
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.recording import is_current
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.run_state.facets import gpu_idle
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.transaction import Transaction

_MINUTE_S: Final = 60.0


class IdleGpus:
    """Compares what outlets tell of the GPUs of attempts with what the journal says."""

    def __init__(self, config: CurrentConfig, entry_of: Callable[[str], Entry | None]) -> None:
        self._config = config
        self._entry_of = entry_of

    def news(
        self, attempts: Iterable[RunningAttempt], fold: Fold, now_s: float
    ) -> list[tuple[RunningAttempt, gpu_idle.GpuIdle | gpu_idle.GpuBusy]]:
        """The attempts whose GPUs became idle or busy, and what the journal does not say yet. `now_s`: wall clock."""
        found: list[tuple[RunningAttempt, gpu_idle.GpuIdle | gpu_idle.GpuBusy]] = []
        for attempt in attempts:
            job, number, use = attempt.key.job_id, attempt.key.number, attempt.gpu_use
            if attempt.ended is not None or use is None or not is_current(fold.records.get(job), number):
                continue
            said = fold.gpu_idle.of(job, fold.records.get(job))
            if said is not None and use.idle_s == 0.0:
                found.append((attempt, gpu_idle.GpuBusy(attempt=number, since=said.since, gpus=said.gpus)))
            elif said is None and self._is_over(job, use.idle_s) is not None:
                since = now_text(now_s - use.idle_s)
                found.append((attempt, gpu_idle.GpuIdle(attempt=number, since=since, gpus=use.gpus)))
        return found

    def record(
        self, tx: Transaction, news: Iterable[tuple[RunningAttempt, gpu_idle.GpuIdle | gpu_idle.GpuBusy]]
    ) -> list[str]:
        """Write news into the journal; a line for people of each."""
        lines = []
        for attempt, note in news:
            tx.note(note, job=attempt.key.job_id)
            idle = f"idle since {note.since}" if isinstance(note, gpu_idle.GpuIdle) else "in use again"
            lines.append(f"{attempt.key.job_id} (attempt {attempt.key.number}): {_gpus(attempt, note.gpus)} {idle}")
        return lines

    def to_stop(self, attempts: Iterable[RunningAttempt]) -> list[tuple[RunningAttempt, str]]:
        """The attempts that have left their GPUs idle for too long, and the reason of their failure."""
        found = []
        for attempt in attempts:
            if attempt.ended is None and not attempt.is_stopping and attempt.gpu_use is not None:
                limit = self._is_over(attempt.key.job_id, attempt.gpu_use.idle_s)
                if limit is not None and limit.stop:
                    found.append((attempt, _stopped_for(limit.after_s or 0.0)))
        return found

    def _is_over(self, job: str, idle_s: float) -> GpuIdle | None:
        """What was exceeded by GPUs that were idle for so long; None when nothing was."""
        entry = self._entry_of(job)
        limit = self._config.now.gpu_idle_of(entry.method if entry is not None else "")
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
