"""The first screen: what needs a person, counts and pace, what runs, failures by cause, why others wait."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, Final

from dispatcher.base.terminal import clip
from dispatcher.pod.waiting import Reason
from dispatcher.query.attention import attention, notices
from dispatcher.query.failures import Failure, failures
from dispatcher.query.groups import count_states
from dispatcher.query.job_columns import Job, JobRow, page_row
from dispatcher.query.pace import Pace, pace
from dispatcher.query.pods import GpuUse, gpu_uses
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.waiting import WaitReason, reasons, waits
from dispatcher.run_state.failures import signature
from dispatcher.run_state.journal import now_text
from dispatcher.web.logs import last_lines
from dispatcher.workspace import Layout

# How much of each list is shown; counts are of all.
_RUNNING: Final = 200
_CAUSES: Final = 30
_REASONS: Final = 30
_JOBS: Final = 5
_LINES: Final = 12
_LONG: Final = 2_000


class OverviewPage:
    """Makes the parts of the first screen of a workspace. What ended attempts have logged is read once."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._last_lines: dict[tuple[str, int], list[str]] = {}
        self._signatures: dict[tuple[str | None, str | None], str] = {}
        # The jobs of each cause of failures and of each reason for waiting, by "failure" or "waiting" and a key.
        self.groups: dict[tuple[str, str], frozenset[str]] = {}

    def parts(self, chosen: Snapshot, everything: Snapshot) -> dict[str, Any]:
        """The parts by name; `chosen` has the jobs that were asked for; the parts are about these alone."""
        waiting = waits(chosen, everything)
        found = pace(chosen, waiting, everything)
        whole = found if chosen is everything else pace(everything, waits(everything))
        running = self._running(chosen)
        causes, why = failures(chosen, self._signatures), reasons(everything)
        failed = [(_key(signature(one.error, one.reason, one.jobs[0])), one) for one in causes]
        held_up = [(_key(_kind(why.why(one.jobs[0]), one)), one) for one in waiting]
        if chosen is everything:
            self.groups = {("failure", key): frozenset(one.jobs) for key, one in failed}
            self.groups |= {("waiting", key): frozenset(one.jobs) for key, one in held_up}
        needs = attention(chosen, found, is_all=chosen is everything)
        return {
            "attention": needs,
            "attention_of_all": len(needs if chosen is everything else attention(everything, whole)),
            "counts": count_states(chosen),
            "total": len(chosen.records),
            **_pace_parts(found),
            "others_left": whole.left - found.left,
            "running": running,
            "running_total": len(chosen.in_flight()),
            "failures": [self._failure(chosen, key, one) for key, one in failed[:_CAUSES]],
            "waiting": [_waiting_row(chosen, key, one) for key, one in held_up[:_REASONS]],
            "notices": notices(chosen),
        }

    def _running(self, snapshot: Snapshot) -> list[JobRow]:
        needs_a_look = {*snapshot.stalled, *snapshot.gpu_idle}
        jobs = sorted(snapshot.in_flight(), key=lambda job: job not in needs_a_look)[:_RUNNING]
        uses = gpu_uses(snapshot.pods)
        return [self.running_row(snapshot, job, uses) for job in jobs]

    def running_row(self, snapshot: Snapshot, job: str, uses: Mapping[str, GpuUse]) -> JobRow:
        """A row of a job in flight: without durations, which would change with every look."""
        row = page_row(Job(snapshot, job))
        record = snapshot.records[job]
        del row["elapsed_s"], row["changed"]
        if (stalled_s := row.pop("stalled_s")) is not None:
            row["stalled_since"] = now_text(snapshot.now_s - stalled_s)
        if (idle_s := row.pop("gpu_idle_s")) is not None:
            row["gpu_idle_since"] = now_text(snapshot.now_s - idle_s)
        row["last_sign_at"] = self._last_sign(job, record.attempt)
        return row | uses.get(f"{job}/{record.attempt}", GpuUse())._asdict()

    def _last_sign(self, job: str, attempt: int) -> str | None:
        """When the attempt last wrote its progress, else when it began to run."""
        paths = self._layout.attempt(job, attempt)
        for path in (paths.progress, paths.taken):
            try:
                return now_text(os.stat(path).st_mtime)
            except OSError:
                continue
        return None

    def _failure(self, snapshot: Snapshot, key: str, failure: Failure) -> dict[str, Any]:
        job = failure.jobs[0]
        attempt = snapshot.records[job].attempt
        return {
            "key": key,
            "cause": clip(failure.text, _LONG),
            "reason": failure.reason,
            "count": len(failure.jobs),
            "jobs": failure.jobs[:_JOBS],
            "last_at": failure.last_at,
            "last_lines": self._lines(job, attempt),
        }

    def _lines(self, job: str, attempt: int) -> list[str]:
        key = (job, attempt)
        if key not in self._last_lines:
            if len(self._last_lines) > 10 * _CAUSES:
                self._last_lines.clear()
            self._last_lines[key] = last_lines(self._layout.attempt(job, attempt).log, _LINES) if attempt else []
        return self._last_lines[key]


def _pace_parts(found: Pace) -> dict[str, Any]:
    """Slots, rate and time left."""
    eta = {"low_s": found.low_s, "mid_s": found.remaining_s, "high_s": found.high_s}
    return {
        "slots": {"busy": found.slots_busy, "all": found.slots, "pods": found.pods},
        "rate_per_hour": found.done_per_hour,
        "rate_window_s": found.window_s,
        "eta": None if found.remaining_s is None else {key: value and round(value) for key, value in eta.items()},
        "left": found.left,
        "stuck": found.stuck,
        "unknown_methods": found.unknown_methods,
        "refused": found.refused,
        "stalled": found.stalled,
        "limited_by": found.limited_by,
    }


def _kind(reason: Reason, wait: WaitReason) -> str:
    return f"{reason.kind or reason.text}\n{wait.needs_person}"


def _key(text: str) -> str:
    """A short name for a cause or a reason: the same for as long as it is the same."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _waiting_row(snapshot: Snapshot, key: str, wait: WaitReason) -> dict[str, Any]:
    return {
        "key": key,
        "state": snapshot.records[wait.jobs[0]].state.value,
        "reason": wait.why,
        "count": len(wait.jobs),
        "jobs": wait.jobs[:_JOBS],
        "needs_person": wait.needs_person,
    }
