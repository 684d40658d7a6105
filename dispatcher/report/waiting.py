"""Why queued entries wait."""

from __future__ import annotations

import msgspec

from dispatcher.report.view import View
from dispatcher.run_state.journal import parse_time
from dispatcher.run_state.states import State

SLOT = "waits for a free slot"
NO_POD = "no pod is running"
_SHOWN = 3


class Wait(msgspec.Struct, frozen=True):
    """A reason and the queued jobs that it keeps."""

    why: str
    jobs: tuple[str, ...]


def why_waiting(view: View, job: str, whole: View) -> str:
    """Why a queued job does not run yet. `whole` is the view with all records, also those that are not shown."""
    entry, record = view.entries.get(job), view.records[job]
    if entry is None:
        return view.unknown_job
    for need in entry.needs:
        needed = whole.records.get(need)
        if needed is None or needed.state is not State.DONE:
            return f"needs {need} ({needed.state if needed else 'which nobody knows'})"
    retry_at = parse_time(record.retry_at)
    if retry_at is not None and retry_at > view.now_s:
        return f"waits for a retry until {record.retry_at}"
    if entry.method in view.pauses:
        return f"method {entry.method} is paused: {view.pauses[entry.method].why}"
    return _why_no_slot(view, entry.method)


def _why_no_slot(view: View, method: str) -> str:
    alive = [pod for pod in view.pods if pod.is_alive]
    if not alive:
        return NO_POD
    claiming = [pod for pod in alive if pod.state != "draining"]
    if not claiming:
        return "all pods are draining"
    if not any(not pod.info.methods or method in pod.info.methods for pod in claiming):
        return f"no pod that runs takes method {method}"
    return SLOT


def waits(view: View, whole: View | None = None) -> list[Wait]:
    """The queued jobs of the view by what they wait for, the most frequent reason first."""
    reasons: dict[str, list[str]] = {}
    for job, record in view.records.items():
        if record.state is State.QUEUED:
            reasons.setdefault(why_waiting(view, job, whole or view), []).append(job)
        elif record.state is State.HELD:
            reasons.setdefault("held: not claimed until it is queued again", []).append(job)
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    return [Wait(why, tuple(jobs)) for why, jobs in ordered]


def names_text(jobs: tuple[str, ...]) -> str:
    """The first few names."""
    return ", ".join(jobs[:_SHOWN]) + (", ..." if len(jobs) > _SHOWN else "")
