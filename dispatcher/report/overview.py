"""What `dispatcher status` shows: counts, running and failed jobs, why the others wait, and notices.

To add a column, add a key to `job_row` (JSON and CSV; also `show --json` and Python), and for the tables a text to
`shown_job` and its name to RUNNING_COLUMNS or CHOSEN_COLUMNS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.base.times import duration_text
from dispatcher.base.users import user_name
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.report.columns import Narrowing
from dispatcher.report.external import EXTERNAL, external_notices
from dispatcher.report.failures import Failure, failures
from dispatcher.report.inputs import RUN_AGAIN
from dispatcher.report.pace import Pace, pace
from dispatcher.report.pivot import count_states
from dispatcher.report.ran import count_text
from dispatcher.report.refusals import refusal_text
from dispatcher.report.silence import silence_texts
from dispatcher.report.snapshot import Snapshot
from dispatcher.report.terminal import clip
from dispatcher.report.waiting import Wait, reasons, waits
from dispatcher.run_state.facets.pauses import unpause_command
from dispatcher.run_state.progress import progress_text, remaining_s
from dispatcher.run_state.states import IN_FLIGHT, State

Row = dict[str, Any]
# A longer reason of a pause is shortened in notices.
_LONG: Final = 60
# So many of the jobs that were done last are asked whether they have their results.
_LATEST: Final = 1_000

# The columns of the tables of `dispatcher status`, keys of `shown_job`, as far as they are not empty; ALWAYS_SHOWN in
# any case.
RUNNING_COLUMNS: Final = ("job", "user", "state", "where", "attempt", "progress", "elapsed", "left")
CHOSEN_COLUMNS: Final = (*RUNNING_COLUMNS, "reason", "error", "why")
ALWAYS_SHOWN: Final = ("job", "state")
NARROWING: Final = Narrowing(
    shrink=("user", "where", "progress", "reason", "error", "why", "job"),
    drop=("attempt", "elapsed", "user", "where"),
    keep=("job",),
)


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
    running: list[Row]
    waiting: list[Wait]
    failed: list[Row]
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


def job_row(snapshot: Snapshot, job: str) -> Row:
    """One job as plain data, durations in seconds; None for values that are unknown or do not apply.

    `user` owns the job. `step`, `of` and `metrics` are what the job has reported, `waits_for` what its outlet tells of
    a submitted job.
    `stalled_s`: for how long a running job has reported nothing, where that is longer than usual (run_state/stalls.py).
    `gpu_idle_s`: for how long all its GPUs have been at 0 %, where its pod has recorded that as too long.
    `edited`: by hand, not applied yet. `changed`: it ran with other parameters than the manifest has now.
    `newer_inputs`: jobs that it needs and that were done again since it began, each with its attempt.
    """
    record = snapshot.records[job]
    progress = snapshot.progress.get(job)
    elapsed = snapshot.elapsed_s(record)
    stalled_s = snapshot.stalled.get(job)
    return {
        "job": job,
        "user": snapshot.owner(job),
        "method": snapshot.method(job),
        "state": record.state.value,
        "desired": record.desired,
        "pod": record.pod,
        "outlet": record.outlet,
        "host": record.host,
        "gpu": record.gpu,
        "attempt": record.attempt,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "elapsed_s": elapsed,
        # A stalled job may never end.
        "remaining_s": remaining_s(elapsed, progress) if record.state in IN_FLIGHT and stalled_s is None else None,
        "step": progress.step if progress else None,
        "of": progress.of if progress else None,
        "metrics": progress.metrics if progress else None,
        "stalled_s": stalled_s,
        "gpu_idle_s": snapshot.gpu_idle.get(job),
        "waits_for": snapshot.waits_for(job),
        "exit_code": record.exit_code,
        "reason": record.reason,
        "error": record.error,
        "priority": snapshot.priority(job),
        "edited": job in snapshot.edited,
        "changed": snapshot.differs(job),
        "newer_inputs": snapshot.newer_inputs.get(job),
        "rev": record.rev,
    }


def job_rows(snapshot: Snapshot, unfiltered: Snapshot | None = None) -> list[Row]:
    """Every job of the snapshot; `why` is what a queued job waits for."""
    rows = []
    waiting = reasons(unfiltered or snapshot)
    for job, record in snapshot.records.items():
        row = job_row(snapshot, job)
        row["why"] = waiting.why(job).text if record.state is State.QUEUED else None
        rows.append(row)
    return rows


def shown_job(snapshot: Snapshot, row: Row) -> Row:
    """A row of `job_row` as text for people."""
    started = row["started_at"] is not None
    state = f"{row['state']} -> {row['desired']}" if row["desired"] else row["state"]
    state += f" ({EXTERNAL})" if row["job"] in snapshot.external else ""
    return {
        "job": row["job"],
        "user": row["user"],
        "state": f"{state} (edited by hand)" if row["edited"] else state,
        "where": _where(row),
        "attempt": row["attempt"] or None,
        "progress": _progress(snapshot, row),
        "elapsed": duration_text(row["elapsed_s"]) if started else None,
        "left": duration_text(row["remaining_s"]) if row["remaining_s"] is not None else None,
        "reason": row["reason"],
        "error": row["error"],
        "why": row.get("why"),
    }


def used_columns(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The columns that have something to tell of these rows of `shown_job`."""
    used = [name for name in columns if name in ALWAYS_SHOWN or any(row[name] for row in rows)]
    if all(row["user"] in (None, user_name()) for row in rows):
        # All of them are the reader's own.
        used = [name for name in used if name != "user"]
    # Nearly every job is in its first attempt.
    return [name for name in used if name != "attempt" or any((row[name] or 1) > 1 for row in rows)]


def _where(row: Row) -> str | None:
    """`gpu-a:0` for a GPU of a pod's own host, the outlet of a job that runs elsewhere."""
    if row["outlet"] not in (None, LOCAL):
        return str(row["outlet"])
    gpus = gpu_text(row["gpu"])
    return f"{row['pod']}:{gpus}" if gpus is not None and row["pod"] else row["pod"]


def _progress(snapshot: Snapshot, row: Row) -> str | None:
    progress = snapshot.progress.get(row["job"])
    marks = [("stalled", row["stalled_s"]), ("GPU idle", row["gpu_idle_s"])]
    words = [f"{word} {duration_text(seconds)}" for word, seconds in marks if seconds is not None]
    if words:
        share = [] if progress is None or progress.share is None else [f"{progress.share:.0%}"]
        return ", ".join([*words, *share])
    return progress_text(progress) or row["waits_for"]


def gpu_text(gpu: int | tuple[int, ...] | None) -> str | None:
    if gpu is None:
        return None
    return str(gpu) if isinstance(gpu, int) else ",".join(map(str, gpu))


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
        found.append(lost_text(snapshot.lost_results))
    found += _without_result(snapshot)
    return found


def lost_text(jobs: Sequence[str]) -> str:
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
