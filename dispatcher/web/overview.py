"""The first screen: what needs a person, counts and pace, what runs, failures by cause, why others wait."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dispatcher.base.messages import counted, first_names
from dispatcher.base.terminal import clip
from dispatcher.pod.waiting import Reason
from dispatcher.query.external import external_notices
from dispatcher.query.failures import Failure, failures
from dispatcher.query.job_columns import Job, Row, page_row
from dispatcher.query.pace import Pace, pace
from dispatcher.query.pivot import count_states
from dispatcher.query.refusals import refusal_text
from dispatcher.query.snapshot import PodStatus, Snapshot
from dispatcher.query.waiting import Wait, reasons, waits
from dispatcher.run_state.fold import signature
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.pauses import Pause, unpause_command
from dispatcher.run_state.states import IN_FLIGHT, WAITING
from dispatcher.web.logs import last_lines
from dispatcher.workspace import Layout

# How much of each list is shown; counts are of all.
_ATTENTION: Final = 50
_RUNNING: Final = 200
_CAUSES: Final = 30
_REASONS: Final = 30
_JOBS: Final = 5
_LISTED: Final = 100
_LINES: Final = 12
_LONG: Final = 2_000


class Shown:
    """Makes the parts of the first screen of a workspace. What ended attempts have logged is read once."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._last_lines: dict[tuple[str, int], list[str]] = {}
        self._signatures: dict[tuple[str | None, str | None], str] = {}
        # The jobs of each cause of failures and of each reason for waiting, by "failure" or "waiting" and a key.
        self.groups: dict[tuple[str, str], frozenset[str]] = {}

    def parts(self, chosen: Snapshot, everything: Snapshot) -> dict[str, Any]:
        """The parts by name; `chosen` has the jobs that were asked for, and all that is told is of these."""
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

    def _running(self, snapshot: Snapshot) -> list[Row]:
        needs_a_look = {*snapshot.stalled, *snapshot.gpu_idle}
        jobs = sorted(snapshot.in_flight(), key=lambda job: job not in needs_a_look)[:_RUNNING]
        uses = gpu_uses(snapshot.pods)
        return [self.running_row(snapshot, job, uses) for job in jobs]

    def running_row(self, snapshot: Snapshot, job: str, uses: Mapping[str, GpuUse]) -> Row:
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


def _kind(reason: Reason, wait: Wait) -> str:
    return f"{reason.kind or reason.text}\n{wait.needs_person}"


def _key(text: str) -> str:
    """A short name for a cause or a reason: the same for as long as it is the same."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _waiting_row(snapshot: Snapshot, key: str, wait: Wait) -> dict[str, Any]:
    return {
        "key": key,
        "state": snapshot.records[wait.jobs[0]].state.value,
        "reason": wait.why,
        "count": len(wait.jobs),
        "jobs": wait.jobs[:_JOBS],
        "needs_person": wait.needs_person,
    }


def attention(snapshot: Snapshot, found: Pace, *, is_all: bool = True) -> list[dict[str, Any]]:
    """What needs a person, the most urgent first; of some of the jobs, what concerns these."""
    items: list[dict[str, Any]] = []
    for pause in snapshot.pauses.values():
        if is_all or _holds_up(pause, snapshot):
            text = f"{pause.scope} is paused: {clip(pause.why, _LONG)}"
            command = unpause_command(pause.scope)
            items.append({"kind": "paused", "text": text, "scope": pause.scope, "command": command, "since": pause.at})
    items += _of_jobs(snapshot, "gpu_idle", snapshot.gpu_idle, ("leaves its GPU idle", "leave their GPUs idle"))
    jobs_of = _in_flight_by_pod(snapshot)
    pods = [pod for pod in snapshot.pods if is_all or pod.info.pod in jobs_of]
    items += _dead_pods(pods, jobs_of)
    items += _silent_pods(pods)
    if found.left > len(snapshot.in_flight()) and not found.is_claiming:
        text = f"{counted(found.left, 'job')} left to run, and no pod claims jobs: `dispatcher --pod NAME --gpus ...`"
        items.append({"kind": "nothing_claims", "text": text, "since": None})
    if is_all:
        items += [{"kind": "notice", "text": text, "since": None} for text in snapshot.untold]
    items += _of_jobs(snapshot, "stalled", snapshot.stalled, ("is stalled: no report", "are stalled: no report"))
    items += [
        {"kind": "refused_edit", "text": refusal_text(one, snapshot.clock), "jobs": [one.job], "since": one.at or None}
        for one in snapshot.refusals
    ]
    texts = [*([snapshot.problem] if snapshot.problem else []), *snapshot.warnings] if is_all else []
    items += [{"kind": "problem", "text": text, "since": None} for text in texts]
    items += [{"kind": "external", "text": text, "since": None} for text in external_notices(snapshot)]
    return items[:_ATTENTION]


def _holds_up(pause: Pause, snapshot: Snapshot) -> bool:
    """Whether the pause is for some of the jobs that wait, wherever they would run."""
    entries = (snapshot.entries.get(job) for job in snapshot.jobs_in(*WAITING))
    return any(pause.covers(entry) for entry in entries if entry is not None)


def notices(snapshot: Snapshot) -> list[str]:
    """What is worth knowing, and needs nobody at once."""
    found = []
    if snapshot.edited:
        edits = counted(len(snapshot.edited), "hand edit")
        found.append(f"{edits} not applied yet, shown as if applied: {first_names(sorted(snapshot.edited))}")
    if changed := snapshot.changed:
        jobs = counted(len(changed), "job")
        found.append(f"{jobs} ran with other parameters than the manifest has now: {first_names(changed)}")
    if older := list(snapshot.newer_inputs):
        need = "it needs" if len(older) == 1 else "they need"
        found.append(f"{counted(len(older), 'job')} began before what {need} was done again: {first_names(older)}")
    return found


def _of_jobs(snapshot: Snapshot, kind: str, jobs: Mapping[str, float], words: tuple[str, str]) -> list[dict[str, Any]]:
    """One item for each of a few jobs, else one for all. `jobs` has for how many seconds it has been so."""
    if len(jobs) > 2 * _JOBS:
        since = now_text(snapshot.now_s - max(jobs.values()))
        text = f"{len(jobs)} jobs {words[1]} ({first_names(list(jobs))})"
        return [{"kind": kind, "text": text, "jobs": list(jobs)[:_LISTED], "count": len(jobs), "since": since}]
    return [
        {
            "kind": kind,
            "text": f"{job} {words[0]}",
            "jobs": [job],
            "pod": snapshot.records[job].pod,
            "since": now_text(snapshot.now_s - seconds),
        }
        for job, seconds in jobs.items()
    ]


def _in_flight_by_pod(snapshot: Snapshot) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for job in snapshot.jobs_in(*IN_FLIGHT):
        found.setdefault(snapshot.records[job].pod, []).append(job)
    return found


def _dead_pods(pods: Sequence[PodStatus], jobs_of: Mapping[str | None, list[str]]) -> list[dict[str, Any]]:
    found = []
    for pod in pods:
        if pod.state == "dead":
            jobs = jobs_of.get(pod.info.pod, [])
            holds = f", and {counted(len(jobs), 'job')} of it recorded as running" if jobs else ""
            text = f"pod {pod.info.pod} on {pod.info.host} is dead{holds}: start it again, or another pod takes over"
            item = {"kind": "dead_pod", "text": text, "pod": pod.info.pod, "jobs": jobs[:_LISTED]}
            found.append({**item, "since": last_heartbeat(pod)})
    return found


def _silent_pods(pods: Sequence[PodStatus]) -> list[dict[str, Any]]:
    found = []
    for pod in pods:
        if pod.state == "silent":
            text = f"pod {pod.info.pod} on {pod.info.host} shows no sign of life, and its lock is still held"
            found.append({"kind": "silent_pod", "text": text, "pod": pod.info.pod, "since": last_heartbeat(pod)})
    return found


def last_heartbeat(pod: PodStatus) -> str | None:
    """When a pod was last heard of: by its own clock, which a copy of the workspace keeps."""
    return pod.info.heartbeat_at or (None if pod.beat_at_s is None else now_text(pod.beat_at_s))


class GpuUse(NamedTuple):
    """The GPUs of an attempt together: memory in MiB, the mean of their utilisations. None: not known."""

    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    gpu_percent: int | None = None


def gpu_uses(pods: Sequence[PodStatus]) -> dict[str, GpuUse]:
    """By `job_id/attempt`."""
    slots: dict[str, list[SlotInfo]] = {}
    for pod in pods:
        for slot in pod.info.slots if pod.is_alive else ():
            for name in slot.jobs if slot.gpu_name or slot.memory_total_mib else ():
                slots.setdefault(name, []).append(slot)
    return {
        name: GpuUse(
            _sum(slot.memory_used_mib for slot in on),
            _sum(slot.memory_total_mib for slot in on),
            None if (total := _sum(slot.busy_percent for slot in on)) is None else round(total / len(on)),
        )
        for name, on in slots.items()
    }


def _sum(values: Iterable[int | None]) -> int | None:
    """None when one is not known."""
    found = 0
    for value in values:
        if value is None:
            return None
        found += value
    return found
