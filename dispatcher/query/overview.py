"""What `dispatcher status` shows: counts, running and failed jobs, why the others wait, and notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.base.terminal import clip
from dispatcher.query.external import external_notices
from dispatcher.query.failures import Failure, failures
from dispatcher.query.groups import count_states
from dispatcher.query.inputs import RUN_AGAIN
from dispatcher.query.job_columns import JobRow, job_row
from dispatcher.query.pace import Pace, pace
from dispatcher.query.ran import count_text
from dispatcher.query.refusals import refusal_text
from dispatcher.query.silence import silence_texts
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.waiting import WaitReason, waits
from dispatcher.run_state.facets.pauses import unpause_command
from dispatcher.run_state.states import State

# A longer reason of a pause is shortened in notices.
_LONG: Final = 60
# So many of the jobs that were done last are asked whether they have their results.
_LATEST: Final = 1_000


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a snapshot in numbers and rows.

    counts: the number of jobs in each state, for all states.
    running, failed: rows as made by `job_row`.
    failures: the failed jobs by cause.
    waiting: why queued and held jobs do not run.
    pace: how many slots are busy, how fast jobs get done, how long the rest will take; of all jobs of the workspace.
    notices: problems and what to do about each.
    """

    counts: Mapping[str, int]
    total: int
    running: list[JobRow]
    waiting: list[WaitReason]
    failed: list[JobRow]
    failures: list[Failure]
    pace: Pace
    notices: list[str]


def overview(snapshot: Snapshot, unfiltered: Snapshot | None = None) -> Overview:
    """The overview of `snapshot`; `unfiltered` has all jobs, which needs may refer to."""
    everything = unfiltered or snapshot
    waiting = waits(snapshot, everything)
    return Overview(
        counts=count_states(snapshot),
        total=len(snapshot.records),
        running=[job_row(snapshot, job) for job in snapshot.in_flight()],
        waiting=waiting,
        failed=[job_row(snapshot, job) for job in snapshot.jobs_in(State.FAILED)],
        failures=failures(snapshot),
        pace=pace(everything, waiting if everything is snapshot else waits(everything)),
        notices=notices(everything),
    )


def notices(snapshot: Snapshot) -> list[str]:
    """Problems of the workspace, each with what to do about it."""
    found = list(snapshot.warnings)
    if snapshot.problem:
        found.append(snapshot.problem)
    if snapshot.edited:
        found.append(
            f"{counted(len(snapshot.edited), 'hand edit')} not applied yet (shown as if applied): a dispatcher or the "
            "next command that changes something applies them"
        )
    found += [refusal_text(refusal, snapshot.clock) for refusal in snapshot.refusals]
    found += [
        f"{'method ' if ':' not in pause.scope else ''}{pause.scope} is paused since {snapshot.clock(pause.at)}: "
        f"{clip(pause.why, _LONG)}. Continue with `{unpause_command(pause.scope)}`"
        for pause in snapshot.pauses.values()
    ]
    found += snapshot.untold
    found += external_notices(snapshot)
    found += _dead_pods(snapshot)
    found += silence_texts(snapshot.pods)
    found += [f"pod {pod.info.pod}: {line}" for pod in snapshot.pods if pod.is_alive for line in pod.info.warnings]
    found += _changed(snapshot)
    found += _older(snapshot)
    if snapshot.lost_results:
        found.append(_lost_text(snapshot.lost_results))
    found += _without_result(snapshot)
    return found


def _lost_text(jobs: Sequence[str]) -> str:
    """That the results of these done jobs are lost, and what to do."""
    them = "it" if len(jobs) == 1 else "them"
    return (
        f"the results of {counted(len(jobs), 'done job')} are lost or damaged ({first_names(jobs)}): "
        f"`dispatcher show {jobs[0]}` says how, `dispatcher requeue --no-result` runs {them} again"
    )


def _changed(snapshot: Snapshot) -> list[str]:
    jobs = snapshot.changed
    if not jobs:
        return []
    text = count_text((job, snapshot.records[job]) for job in jobs)
    return [
        f"{text} job{'s' if len(jobs) > 1 else ''} ran with other parameters than the manifest has now "
        f"({first_names(jobs)}): `dispatcher show {jobs[0]}` compares, "
        "`dispatcher requeue --changed` runs them again"
    ]


def _older(snapshot: Snapshot) -> list[str]:
    jobs = list(snapshot.newer_inputs)
    if not jobs:
        return []
    text = count_text((job, snapshot.records[job]) for job in jobs)
    began = "jobs began before what they need" if len(jobs) > 1 else "job began before what it needs"
    return [
        f"{text} {began} was done again ({first_names(jobs)}): `dispatcher show {jobs[0]}` says what that is, "
        f"{RUN_AGAIN}"
    ]


def _without_result(snapshot: Snapshot) -> list[str]:
    """Jobs whose scripts have not left the result that their methods name, or not all of it."""
    jobs = [job for job in snapshot.latest(State.DONE, _LATEST) if snapshot.records[job].result_lacks]
    if not jobs:
        return []
    return [
        f"{counted(len(jobs), 'job')} done without a result, or not with all of it ({first_names(jobs)}): "
        f"{snapshot.records[jobs[0]].result_lacks}. Correct `result` of the method, or what the script writes; then "
        "`dispatcher requeue --no-result`"
    ]


def _dead_pods(snapshot: Snapshot) -> list[str]:
    jobs = Counter(snapshot.records[job].pod for job in snapshot.in_flight())
    dead = [pod.info for pod in snapshot.pods if pod.state == "dead" and jobs[pod.info.pod]]
    if not dead:
        return []
    listed = ", ".join(f"{info.pod} on {info.host} ({counted(jobs[info.pod], 'job')})" for info in dead)
    one = len(dead) == 1
    return [
        f"{'pod' if one else 'pods'} {listed} {'is' if one else 'are'} dead, and {'its' if one else 'their'} jobs are "
        f"recorded as running: another pod, or {'this one' if one else 'one of these'} when it is started again, takes "
        "care of them"
    ]
