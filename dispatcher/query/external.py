"""External jobs (started by something other than a dispatcher): what is known about them, and the commands to use."""

from __future__ import annotations

from typing import Final

from dispatcher.base.messages import first_names
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.external import Presence
from dispatcher.run_state.states import Record

# Also the outlet of what a script of the lab runs.
EXTERNAL: Final = "external"
_UNMONITORED: Final = "external, not monitored by any dispatcher"
_SHOWN: Final = 3


def external_text(job: str, record: Record, found: Presence) -> str:
    """What is known about an external job, and the commands to use."""
    pid, commands = f"pid {record.pid}", f"`dispatcher mark done {job}`, `mark failed {job}` or `requeue {job}`"
    if found is Presence.HERE:
        gpu = "" if record.gpu is None else ", so its GPU counts as in use"
        when = f"When it has ended: {commands}; to stop it: kill {record.pid}"
        return f"{_UNMONITORED}: {pid} is running on this host{gpu}. {when}"
    if found is Presence.GONE:
        return (
            f"{_UNMONITORED}: {pid} has ended, and its exit status is unknown. Look at its output, then use {commands}"
        )
    if found is Presence.NOT_HERE:
        return (
            f"{_UNMONITORED}: there is no {pid} on this host, and the record names no host. If it is not running "
            f"anywhere, look at its output, then use {commands}"
        )
    where = f"{pid} on host {record.host}" if found is Presence.ELSEWHERE else "the record names no pid"
    return f"{_UNMONITORED}: {where}. When it has ended: {commands}"


def external_notices(snapshot: Snapshot) -> list[str]:
    """One notice per job, or a single one for many jobs."""
    found, records = snapshot.external, snapshot.records
    if len(found) <= _SHOWN:
        return [f"{job}: {external_text(job, records[job], found[job])}" for job in found if job in records]
    return [
        f"{len(found)} running jobs are external and not monitored by any dispatcher "
        f"({first_names(list(found), _SHOWN)}): "
        "`dispatcher show JOB` shows the commands to use"
    ]
