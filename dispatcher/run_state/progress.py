"""Progress, elapsed and remaining time of a job.

Only for display: the times come from the clocks of several hosts, so nothing may be decided by them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dispatcher.base.times import parse_time
from dispatcher.run_state.states import IN_FLIGHT, Record


class Progress(msgspec.Struct, frozen=True):
    """The content of `progress.json`: `step` of `of` (None: unknown), and metrics.

    `longest_gap_s` is the longest time that has passed before a report, since the one before or the attempt's start.
    """

    step: float
    of: float | None = None
    metrics: Mapping[str, Any] = {}
    longest_gap_s: float | None = None

    @property
    def share(self) -> float | None:
        """The fraction that is done, 0 to 1; None when the numbers make no sense."""
        if self.of is None or not (math.isfinite(self.step) and math.isfinite(self.of)):
            return None
        if self.of <= 0 or self.step < 0:
            return None
        return min(1.0, self.step / self.of)


_decode = msgspec.json.Decoder(Progress)


def parse_progress(data: bytes | None) -> Progress | None:
    """The progress that a job has written; None when there is none or it is malformed."""
    if not data:
        return None
    try:
        return _decode.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Jobs may write anything here; one of them must not break the table of all jobs.
        return None


def elapsed_s(record: Record, now_s: float) -> float | None:
    """Seconds since the attempt began, up to its end if it has ended; None when a time is unknown.

    0 when it began in the future, as seen by a clock that is behind.
    """
    begun = parse_time(record.started_at)
    if begun is None:
        return None
    running = record.finished_at is None and record.state in IN_FLIGHT
    ended = now_s if running else parse_time(record.finished_at)
    return None if ended is None else max(0.0, ended - begun)


def remaining_s(elapsed: float | None, progress: Progress | None) -> float | None:
    """Estimated seconds to go, elapsed * (of - step) / step; None when unknown."""
    if elapsed is None or progress is None or progress.of is None or progress.share is None or progress.step <= 0:
        return None
    return elapsed * max(0.0, progress.of - progress.step) / progress.step


def progress_text(progress: Progress | None) -> str:
    """`12% 120/1000`, `step 120` of an unknown number, empty when the job reports nothing."""
    if progress is None:
        return ""
    if progress.of is None:
        return f"step {progress.step:g}"
    counted = f"{progress.step:g}/{progress.of:g}"
    return counted if progress.share is None else f"{progress.share:.0%} {counted}"
