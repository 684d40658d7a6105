"""The columns of jobs: what `status`, `show`, the Python API and the page show of a job.

To add a column, add it to COLUMNS. With a `value` it is in rows as data (JSON, CSV, Python, answers of the page), with
a `text` in the tables of `dispatcher status`, with a `title` in the page's list of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from dispatcher.base.times import duration_text
from dispatcher.base.users import user_name
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.pod.waiting import Waiting
from dispatcher.query.external import EXTERNAL
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.waiting import reasons
from dispatcher.run_state.progress import progress_text, remaining_s
from dispatcher.run_state.states import IN_FLIGHT, State

JobRow = dict[str, Any]
Unit = Literal["text", "number", "seconds", "moment"]


class Job:
    """A job of a snapshot, as columns ask for it. `waiting` says why jobs wait; None: the column `why` is left out."""

    def __init__(self, snapshot: Snapshot, job: str, waiting: Waiting | None = None) -> None:
        self.snapshot = snapshot
        self.job = job
        self.record = snapshot.records[job]
        self.progress = snapshot.progress.get(job)
        self.elapsed_s = snapshot.elapsed_s(self.record)
        self.stalled_s = snapshot.stalled.get(job)
        self.waiting = waiting

    @property
    def remaining_s(self) -> float | None:
        # A stalled job may never end.
        is_known = self.record.state in IN_FLIGHT and self.stalled_s is None
        return remaining_s(self.elapsed_s, self.progress) if is_known else None

    @property
    def why(self) -> str | None:
        is_asked = self.waiting is not None and self.record.state is State.QUEUED
        return self.waiting.why(self.job).text if self.waiting is not None and is_asked else None


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One fact about jobs.

    name: its key in rows as data.
    value: as data, None where it is unknown or does not apply. Without it, the column has only a text.
    unit: what a value is; seconds and moments (UTC) are written for people as durations and local times.
    text: as tables of `status` show it; `heading` is what they call it.
    usual: what tells nothing; a column with nothing else is left out, unless `is_fixed`.
    of_ended: whether only tables of jobs of all states have it, not those of running jobs.
    title: what the page calls it; empty: the page's list does not have it. `shown`: when it has it by default, where
        some job has a value, where jobs differ in it, or never.
    """

    name: str
    value: Callable[[Job], Any] | None = None
    unit: Unit = "text"
    text: Callable[[Job], Any] | None = None
    heading: str = ""
    usual: tuple[Any, ...] = (None, "")
    is_fixed: bool = False
    of_ended: bool = False
    title: str = ""
    shown: Literal["given", "differing", "never"] = "given"


def _state_text(it: Job) -> str:
    state = it.record.state.value
    words = f"{state} -> {it.record.desired}" if it.record.desired else state
    words += f" ({EXTERNAL})" if it.job in it.snapshot.external else ""
    return f"{words} (edited by hand)" if it.job in it.snapshot.edited else words


def _where(it: Job) -> str | None:
    """`gpu-a:0` for a GPU of a pod's own host, the outlet of a job that runs elsewhere."""
    record = it.record
    if record.outlet not in (None, LOCAL):
        return record.outlet
    gpus = _gpu_text(record.gpu)
    return f"{record.pod}:{gpus}" if gpus is not None and record.pod else record.pod


def _gpu_text(gpu: int | tuple[int, ...] | None) -> str | None:
    if gpu is None:
        return None
    return str(gpu) if isinstance(gpu, int) else ",".join(map(str, gpu))


def _progress_text(it: Job) -> str | None:
    marks = [("stalled", it.stalled_s), ("GPU idle", it.snapshot.gpu_idle.get(it.job))]
    words = [f"{word} {duration_text(seconds)}" for word, seconds in marks if seconds is not None]
    if words:
        share = [] if it.progress is None or it.progress.share is None else [f"{it.progress.share:.0%}"]
        return ", ".join([*words, *share])
    return progress_text(it.progress) or it.snapshot.waits_for(it.job)


def _elapsed_text(it: Job) -> str | None:
    return None if it.record.started_at is None else duration_text(it.elapsed_s)


def _remaining_text(it: Job) -> str | None:
    return None if (left_s := it.remaining_s) is None else duration_text(left_s)


def _owner(it: Job) -> str | None:
    return it.snapshot.owner(it.job)


# In the order of all tables. `stalled_s`: for how long a running job has reported nothing, where that is longer than
# usual (run_state/stalls.py). `gpu_idle_s`: for how long all its GPUs have been at 0 %, where its pod has recorded that
# as too long. `waits_for`: what its outlet reports of a submitted job. `edited`: by hand, not applied yet. `changed`:
# it ran with other parameters than the manifest has now. `newer_inputs`: jobs that it needs and that were done again
# since it began, each with its attempt. `why`: what a queued job waits for.
COLUMNS: Final = (
    Column(name="job", value=lambda it: it.job, text=lambda it: it.job, is_fixed=True, title="Job"),
    Column(name="user", value=_owner, text=_owner, title="User", shown="differing"),
    Column(name="method", value=lambda it: it.snapshot.method(it.job), title="Method", shown="differing"),
    Column(name="state", value=lambda it: it.record.state.value, text=_state_text, is_fixed=True, title="State"),
    Column(name="desired", value=lambda it: it.record.desired),
    Column(name="pod", value=lambda it: it.record.pod),
    Column(name="outlet", value=lambda it: it.record.outlet),
    Column(name="where", text=_where, title="Where"),
    Column(name="host", value=lambda it: it.record.host, title="Host", shown="never"),
    Column(name="gpu", value=lambda it: it.record.gpu),
    Column(
        name="attempt", value=lambda it: it.record.attempt, unit="number", text=lambda it: it.record.attempt or None,
        # Nearly every job is in its first attempt.
        usual=(None, 0, 1), title="Attempt",
    ),
    Column(name="started_at", value=lambda it: it.record.started_at, unit="moment", title="Started", shown="never"),
    Column(name="finished_at", value=lambda it: it.record.finished_at, unit="moment", title="Ended", shown="never"),
    Column(name="progress", text=_progress_text),
    Column(
        name="elapsed_s", value=lambda it: it.elapsed_s, unit="seconds", text=_elapsed_text, heading="elapsed",
        title="Took",
    ),
    Column(name="remaining_s", value=lambda it: it.remaining_s, unit="seconds", text=_remaining_text, heading="left"),
    Column(name="step", value=lambda it: it.progress.step if it.progress else None, unit="number"),
    Column(name="of", value=lambda it: it.progress.of if it.progress else None, unit="number"),
    Column(name="metrics", value=lambda it: it.progress.metrics if it.progress else None),
    Column(name="stalled_s", value=lambda it: it.stalled_s, unit="seconds"),
    Column(name="gpu_idle_s", value=lambda it: it.snapshot.gpu_idle.get(it.job), unit="seconds"),
    Column(name="waits_for", value=lambda it: it.snapshot.waits_for(it.job)),
    Column(
        name="exit_code", value=lambda it: it.record.exit_code, unit="number", title="Exit status", shown="never"
    ),
    Column(name="reason", value=lambda it: it.record.reason, text=lambda it: it.record.reason, of_ended=True),
    Column(name="error", value=lambda it: it.record.error, text=lambda it: it.record.error, of_ended=True),
    Column(
        name="priority", value=lambda it: it.snapshot.priority(it.job), unit="number", title="Priority", shown="never"
    ),
    Column(name="edited", value=lambda it: it.job in it.snapshot.edited),
    Column(name="changed", value=lambda it: it.snapshot.differs(it.job)),
    Column(name="newer_inputs", value=lambda it: it.snapshot.newer_inputs.get(it.job)),
    Column(name="rev", value=lambda it: it.record.rev, unit="number"),
    Column(name="why", value=lambda it: it.why, text=lambda it: it.why, of_ended=True, title="Why"),
)  # fmt: skip
_DATA: Final = tuple((column.name, column.value) for column in COLUMNS if column.value is not None)
_PAGE: Final = tuple(column for column in COLUMNS if column.title)
_TEXTS: Final = tuple((column.heading or column.name, column.text) for column in COLUMNS if column.text is not None)


def row_of(it: Job) -> JobRow:
    """One job as plain data."""
    return {name: value(it) for name, value in _DATA if name != "why" or it.waiting is not None}


def job_row(snapshot: Snapshot, job: str) -> JobRow:
    """One job as plain data, without why it waits."""
    return row_of(Job(snapshot, job))


def job_rows(snapshot: Snapshot, unfiltered: Snapshot | None = None) -> list[JobRow]:
    """Every job of the snapshot as plain data; `unfiltered` has all jobs, which needs may refer to."""
    return [row_of(it) for it in _jobs(snapshot, unfiltered)]


def _jobs(snapshot: Snapshot, unfiltered: Snapshot | None) -> Iterator[Job]:
    waiting = reasons(unfiltered or snapshot)
    return (Job(snapshot, job, waiting) for job in snapshot.records)


def why_it_waits(snapshot: Snapshot, job: str) -> str | None:
    """What a queued job waits for."""
    return reasons(snapshot).why(job).text if snapshot.records[job].state is State.QUEUED else None


def text_of_job(it: Job) -> JobRow:
    """One job as text for people, by heading."""
    return {heading: text(it) for heading, text in _TEXTS}


def text_rows(snapshot: Snapshot, unfiltered: Snapshot | None = None) -> list[JobRow]:
    """Every job of the snapshot as text for people."""
    return [text_of_job(it) for it in _jobs(snapshot, unfiltered)]


def used_columns(rows: Sequence[JobRow], *, running: bool = False) -> list[str]:
    """The headings of `text_of_job` that have something to tell of these rows; `running`: of jobs that run."""
    found = []
    for column in COLUMNS:
        heading = column.heading or column.name
        # Where all jobs are the reader's own, the column says nothing.
        usual = (*column.usual, user_name()) if column.name == "user" else column.usual
        is_used = column.is_fixed or any(row.get(heading) not in usual for row in rows)
        if column.text is not None and is_used and not (running and column.of_ended):
            found.append(heading)
    return found


def page_row(it: Job) -> JobRow:
    """One job for the page: as data, and the texts of columns without."""
    return {**row_of(it), **{one.name: one.text(it) for one in _PAGE if one.value is None and one.text is not None}}


def page_columns() -> list[dict[str, Any]]:
    """The columns of the page's list of jobs."""
    return [
        {
            "name": one.name,
            "title": one.title,
            "unit": one.unit,
            "usual": one.usual,
            "shown": one.shown,
            "sorts": one.value is not None,
        }
        for one in _PAGE
    ]
