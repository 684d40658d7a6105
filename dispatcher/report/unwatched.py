"""Jobs that run outside: what can be said of them, and what a person may type."""

from __future__ import annotations

from typing import Final

from dispatcher.report.snapshot import Snapshot
from dispatcher.run_state.external import Presence
from dispatcher.run_state.states import Record

UNWATCHED: Final = "adopted; nobody watches it"
_SHOWN: Final = 3


def unwatched_text(job: str, record: Record, found: Presence) -> str:
    """What is known of a job that runs outside, and what to type."""
    pid, ended = f"pid {record.pid}", f"`dispatcher mark done {job}`, `mark failed {job}` or `requeue {job}`"
    if found is Presence.HERE:
        gpu = "" if record.gpu is None else ", so its GPU counts as taken"
        return f"{UNWATCHED}: {pid} lives on this host{gpu}. When it has ended: {ended}; to stop it: kill {record.pid}"
    if found is Presence.GONE:
        return f"{UNWATCHED}: {pid} is gone, and nobody knows how it ended. Look at what it wrote, then type {ended}"
    if found is Presence.NOT_HERE:
        where = f"there is no such {pid} on this host, and the record names no host"
        return f"{UNWATCHED}: {where}. If it runs nowhere any more, look at what it wrote, then type {ended}"
    where = f"{pid} on host {record.host}" if found is Presence.ELSEWHERE else "the record names no pid"
    return f"{UNWATCHED}: {where}. When it has ended: {ended}"


def unwatched_notices(snapshot: Snapshot) -> list[str]:
    """One notice for each of a few jobs, or one for many."""
    found = snapshot.unwatched
    if len(found) <= _SHOWN:
        return [
            f"{job}: {unwatched_text(job, snapshot.records[job], found[job])}"
            for job in found
            if job in snapshot.records
        ]
    names = ", ".join(list(found)[:_SHOWN])
    what = f"{len(found)} running jobs were adopted, and nobody watches them ({names}, ...)"
    return [f"{what}: `dispatcher show JOB` says what to type"]
