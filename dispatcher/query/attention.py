"""What needs a person, as the first screen of the page lists it, and what is worth knowing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatcher.base.messages import counted, first_names
from dispatcher.base.terminal import clip
from dispatcher.query.external import external_notices
from dispatcher.query.pace import Pace
from dispatcher.query.pods import last_heartbeat
from dispatcher.query.refusals import refusal_text
from dispatcher.query.snapshot import PodStatus, Snapshot
from dispatcher.run_state.facets.pauses import Pause, unpause_command
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import IN_FLIGHT, WAITING

# How much of each list is shown; counts are of all.
_ATTENTION: Final = 50
_EACH: Final = 10
_LISTED: Final = 100
_LONG: Final = 2_000


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
    """What is worth knowing, but not urgent."""
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
    if len(jobs) > _EACH:
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
