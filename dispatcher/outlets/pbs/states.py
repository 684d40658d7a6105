"""What `qstat -x -f -F json` reports about jobs. Pure.

| job_state     | phase   | remarks                                                                                   |
|---------------|---------|-------------------------------------------------------------------------------------------|
| Q H W T       | pending | `why` is the comment, such as "Can Never Run: ..."                                         |
| R B E S U     | running | E: its files are being copied; S, U: suspended                                            |
| F X           | ended   | by Exit_status, below                                                                     |
| M             | unknown | it was moved to another server, which this one does not ask                               |
| anything else | unknown |                                                                                           |

| Exit_status   | exit code | reason                                                                                  |
|---------------|-----------|-----------------------------------------------------------------------------------------|
| 0 to 255      | the same  |                                                                                         |
| 256 + signal  | 128 + s   | "cancelled", unless the comment names a preemption                                      |
| none          | none      | "cancelled": deleted before it began                                                    |
| -29           | none      | "time limit"                                                                            |
| -26 -27       | none      | "out of memory": more than it had asked for                                             |
| -28, -24 -25  | none      | "time limit" of its CPU time; "cancelled": more CPUs than it had asked for              |
| -1 -2 -8 ...  | none      | "cannot start"                                                                          |
| -20           | none      | its node was lost, and it may still run there                                           |
| others        | none      |                                                                                         |

The script ends with REFUSED when it was run before: PBS has taken the job from its node and started it again
(`run_count`), or the attempt was submitted twice. Neither says how the attempt ended.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dispatcher.errors import OutletError
from dispatcher.outlets.base import CANCELLED, CANNOT_START, OUT_OF_MEMORY, TIME_LIMIT
from dispatcher.outlets.batch.scheduler import JobState, Phase

# With this status the batch script refuses to run a second time.
REFUSED: Final = 91
_PHASES: Final = {
    "Q": Phase.PENDING,
    "H": Phase.PENDING,
    "W": Phase.PENDING,
    "T": Phase.PENDING,
    "R": Phase.RUNNING,
    "B": Phase.RUNNING,
    "E": Phase.RUNNING,
    "S": Phase.RUNNING,
    "U": Phase.RUNNING,
    "F": Phase.ENDED,
    "X": Phase.ENDED,
}
_STATE_WORDS: Final = {
    "H": "held",
    "W": "waits for its start time or its files",
    "T": "is being moved",
    "E": "its files are being copied",
    "S": "suspended",
    "U": "suspended: its workstation is in use",
    "M": "moved to another server",
}
# JOB_EXEC_* of OpenPBS.
_WALLTIME: Final = -29
_NODE_LOST: Final = -20
_NOT_STARTED: Final = {
    -1: "it could not be started (before its files were there)",
    -2: "it could not be started (after its files were there)",
    -3: "it could not be started, repeatedly",
    -8: "the node does not know the user or the group",
    -11: "the user's password was refused",
    -15: "a hook of the site deleted it",
    -17: "a hook of the site deleted it",
    -19: "the node refused it for security",
}
# The limits of what was asked for, and what that is as a reason.
_LIMITS: Final = {
    -24: (CANCELLED, "it used more CPUs than it had asked for"),
    -25: (CANCELLED, "it used more CPUs than it had asked for"),
    -26: (OUT_OF_MEMORY, "it used more virtual memory than it had asked for"),
    -27: (OUT_OF_MEMORY, "it used more memory than it had asked for"),
    -28: (TIME_LIMIT, "its CPU time was over"),
    _WALLTIME: (TIME_LIMIT, "its walltime was over"),
}
_DECODER: Final = json.JSONDecoder(strict=False)
_ENVIRONMENT: Final = re.compile(r'^([ \t]*)"Variable_List":\s*\{.*?^\1\},?[ \t]*$', re.MULTILINE | re.DOTALL)
# Where PBS says why a job was deleted or requeued.
_PREEMPTED: Final = re.compile(r"preempt", re.IGNORECASE)


class PbsJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a job. `id` is never truncated, as it is in PBS's tables."""

    id: str
    name: str
    state: str
    exit_status: int | None = None
    comment: str = ""
    exec_host: str = ""
    run_count: int = 0


def read_jobs(text: str) -> dict[str, PbsJob]:
    """The jobs of one listing, or of several, by id; raises OutletError for what is none.

    Before OpenPBS 23 the environment of a job is printed without escapes, so that a variable with a line break makes
    the whole listing invalid. Then it is read without the environments.
    """
    found: dict[str, PbsJob] = {}
    for document in _decode(text):
        jobs = document.get("Jobs") or {}
        if not isinstance(jobs, dict):
            raise OutletError(f"qstat: 'Jobs' is no object: {str(jobs)[:200]}")
        found |= {name: _read_job(name, job) for name, job in jobs.items() if isinstance(job, dict)}
    return found


def _decode(text: str) -> list[Mapping[str, Any]]:
    for candidate in (text, _ENVIRONMENT.sub(r'\1"Variable_List": {},', text)):
        with contextlib.suppress(ValueError):
            return _objects(candidate.strip())
    raise OutletError(f"qstat -F json printed what is no JSON: {text[:200]!r}")


def _objects(text: str) -> list[Mapping[str, Any]]:
    """The JSON objects, one after the other; ValueError for what is none."""
    found: list[Mapping[str, Any]] = []
    while text or not found:
        document, end = _DECODER.raw_decode(text)
        if not isinstance(document, dict):
            raise ValueError("no object")  # noqa: TRY004 -- as for what is no JSON
        found.append(document)
        text = text[end:].lstrip()
    return found


def _read_job(name: str, job: Mapping[str, Any]) -> PbsJob:
    return PbsJob(
        id=name,
        name=str(job.get("Job_Name", "")),
        state=str(job.get("job_state", "")),
        exit_status=_number(job.get("Exit_status")),
        comment=str(job.get("comment", "")),
        exec_host=str(job.get("exec_host", "")),
        run_count=_number(job.get("run_count")) or 0,
    )


def _number(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def state_of(job: PbsJob) -> JobState:
    """What the job's state means for its attempt."""
    phase = _PHASES.get(job.state, Phase.UNKNOWN)
    if phase is Phase.ENDED:
        return _ended(job)
    words = _STATE_WORDS.get(job.state, "" if job.state in _PHASES else f"unknown state {job.state!r}")
    if phase is Phase.PENDING and job.run_count:
        words = "; ".join(filter(None, (words, "PBS has put it back into the queue, and a second run is refused")))
    return JobState(
        phase=phase,
        handle=job.id,
        why="; ".join(filter(None, (words, job.comment if phase is not Phase.RUNNING else ""))),
        host=_host(job),
        was_preempted=phase is Phase.PENDING and job.run_count > 0,
    )


def _host(job: PbsJob) -> str | None:
    """The nodes of `node1/0*4+node2/1`, without the rest."""
    names = dict.fromkeys(part.partition("/")[0] for part in job.exec_host.split("+"))
    return ",".join(filter(None, names)) or None


def _ended(job: PbsJob) -> JobState:
    code, reason, why = _end(job)
    return JobState(
        phase=Phase.ENDED,
        handle=job.id,
        why="; ".join(filter(None, (why, job.comment))),
        host=_host(job),
        exit_code=code,
        reason=reason,
        was_preempted=(job.exit_status == REFUSED and job.run_count > 1) or bool(_PREEMPTED.search(job.comment)),
        may_still_run=job.exit_status == _NODE_LOST,
    )


def _end(job: PbsJob) -> tuple[int | None, str, str]:
    """The exit code, the reason and the words for it."""
    status = job.exit_status
    if status is None:
        return None, CANCELLED, "deleted before it began"
    if status == REFUSED:
        return None, "", "started a second time, which the script refuses"
    if status >= 256:
        return 128 + status - 256, CANCELLED, f"killed by signal {status - 256}"
    return (status, "", "") if status >= 0 else (None, *_ended_by_pbs(status))


def _ended_by_pbs(status: int) -> tuple[str, str]:
    """The reason of a negative Exit_status, and the words for it."""
    if status in _LIMITS:
        return _LIMITS[status]
    if status in _NOT_STARTED:
        return CANNOT_START, _NOT_STARTED[status]
    return "", "its node was lost" if status == _NODE_LOST else f"PBS ended it (Exit_status {status})"
