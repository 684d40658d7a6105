"""What the main thread does while the workers send: progress, metrics, and whether there is a newer attempt."""

from __future__ import annotations

import time
from typing import Final

from dispatcher.checkpoints.fence import Run
from dispatcher.runtime.http_api.workers import Workers
from dispatcher.runtime.metrics import PROGRESS_EVERY_S, MetricsLog

_LOOK_EVERY_S: Final = 0.25
_FENCE_EVERY_S: Final = 1.0
_METRICS_EVERY_S: Final = 10.0


class Monitor:
    """Reports on `workers` in a job of `of` requests, `before` of which were answered by earlier runs."""

    def __init__(self, workers: Workers, log: MetricsLog, *, before: int, of: int) -> None:
        self._workers = workers
        self._log = log
        self._before = before
        self._of = of
        self._fence = Run.current()
        self._began_s = self._changed_s = time.monotonic()
        self._seen = before

    def watch(self) -> None:
        """Return when all requests have ended. SupersededError when there is a newer attempt."""
        fence_s = metrics_s = self._began_s
        while not self._workers.wait(_LOOK_EVERY_S):
            now_s = time.monotonic()
            if now_s - fence_s >= _FENCE_EVERY_S:
                self._fence.check("no more requests are sent")
                fence_s = now_s
            if now_s - metrics_s >= _METRICS_EVERY_S:
                self._log_metrics()
                metrics_s = now_s
            self._show_progress(now_s)
        self._log_metrics()
        self._show_progress(self._changed_s)

    def _show_progress(self, now_s: float) -> None:
        """Only of late: an API that no longer answers shows as a job that is silent for longer than usual."""
        done = self._done()
        if done != self._seen:
            self._seen, self._changed_s = done, now_s
        # The log writes at most once a second.
        if now_s - self._changed_s <= 2 * PROGRESS_EVERY_S:
            self._log.progress(done, self._of)

    def _done(self) -> int:
        counts = self._workers.counts
        return self._before + counts.answered + counts.refused

    def _log_metrics(self) -> None:
        counts = self._workers.counts
        minutes = (time.monotonic() - self._began_s) / 60
        metrics: dict[str, float] = {
            "requests_per_minute": (counts.answered + counts.refused) / minutes,
            "retries": counts.retries,
            "failed": counts.refused + len(self._workers.unanswered),
        }
        if counts.answered:
            metrics["response_s"] = counts.exchange_s / counts.answered
        self._log.log(self._done(), metrics)
