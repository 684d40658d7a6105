"""What a check of `dispatcher doctor` reports."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import msgspec

# `unknown`: cannot be proved from here. `warning`: dispatchers work, but slower or at a higher risk than necessary.
OK, UNKNOWN, WARNING, WRONG = "ok", "unknown", "warning", "wrong"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. `cure` is what to do about it, `value` what was measured, in `unit`."""

    check: str
    verdict: str
    what: str
    cure: str = ""
    value: float | None = None
    unit: str = ""


Findings = Iterator[Finding]


def measured(check: str, times_s: Sequence[float], what: str) -> Finding:
    median_ms, worst_ms = 1000 * statistics.median(times_s), 1000 * max(times_s)
    shown = f"{median_ms:.2f} ms {what} (worst of {len(times_s)}: {worst_ms:.1f} ms)"
    return Finding(check, OK, shown, "", median_ms, "ms")
