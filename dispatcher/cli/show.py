"""`dispatcher show JOB`: everything about one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.common import json_option, open_workspace
from dispatcher.cli.complete import complete_jobs
from dispatcher.cli.printing import print_json, print_rows

if TYPE_CHECKING:
    from dispatcher.report.snapshot import Snapshot


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@json_option
def show(job: str, as_json: bool) -> None:
    """Show everything about JOB.

    Its record, its parameters, its attempts, and why it waits. If the manifest differs from what the job ran with, both
    are shown.
    """
    from dispatcher.report.overview import job_row
    from dispatcher.report.selection import select

    workspace = open_workspace()
    snapshot = workspace.snapshot()
    job = select(snapshot, [job])[0]
    listed, ran = snapshot.entries.get(job), snapshot.last_ran(job)
    attempts = workspace.attempts(job)
    if as_json:
        print_json(
            {
                **job_row(snapshot, job),
                "record": snapshot.records[job].fields(),
                "entry": listed.document() if listed else None,
                "ran_with": ran.document() if ran else None,
                "changes": _changes(snapshot, job),
                "attempts": attempts,
                "why": _why(snapshot, job),
                "refused_edits": [refusal for refusal in snapshot.refusals if refusal.job == job],
            }
        )
        return
    run = attempts[-1]["run"] if attempts else None
    print_rows(_facts(snapshot, job, run), "plain", ("", job))
    entry = snapshot.entry(job)
    if entry is not None:
        click.echo()
        print_rows([{"entry": key, "value": value} for key, value in entry.document().items()], "plain")
        click.echo(_source(snapshot, job))
    rows = _changes(snapshot, job)
    if rows:
        click.echo()
        print_rows(rows, "plain", ("key", "ran_with", "manifest"))
    if attempts:
        click.echo()
        print_rows(attempts, "plain", ("attempt", "exit_code", "reason", "ended_at", "log_bytes", "directory"))


def _changes(snapshot: Snapshot, job: str) -> list[dict[str, Any]]:
    """The keys in which the last attempt differs from the manifest."""
    from dispatcher.report.ran import differences

    listed, ran = snapshot.entries.get(job), snapshot.last_ran(job)
    return differences(ran, listed) if ran is not None and listed is not None else []


def _source(snapshot: Snapshot, job: str) -> str:
    """The source of the values that are shown."""
    from dispatcher.report.ran import is_unknown, last_counts

    record = snapshot.records[job]
    if is_unknown(record) and not last_counts(record):
        return "(from the manifest: it is unknown what the job ran with)"
    if not record.attempt:
        return "(from the manifest: it has not run)"
    if snapshot.last_ran(job) is None:
        return f"(from the manifest: attempt {record.attempt} has no entry.json, so it is unknown what it ran with)"
    if job not in snapshot.entries:
        return f"(what attempt {record.attempt} ran with: the job is in no manifest)"
    if snapshot.entry(job) is snapshot.entries[job] and _changes(snapshot, job):
        return "(from the manifest: the next attempt will run with these values)"
    return f"(what attempt {record.attempt} ran with)"


def _facts(snapshot: Snapshot, job: str, run: dict[str, Any] | None) -> list[dict[str, Any]]:
    from dispatcher.base.times import duration_text
    from dispatcher.report.attempts import run_facts
    from dispatcher.report.external import external_text
    from dispatcher.report.overview import job_row
    from dispatcher.run_state.progress import progress_text

    row = job_row(snapshot, job)
    facts: dict[str, Any] = {key: value for key, value in snapshot.records[job].fields().items() if value != ""}
    if job in snapshot.edited:
        facts["edited"] = "by hand, not applied yet"
    if job in snapshot.unqueued:
        facts["rev"] = "no dispatcher has queued it yet"
    if job in snapshot.external:
        facts["external"] = external_text(job, snapshot.records[job], snapshot.external[job])
    facts["why it waits"] = _why(snapshot, job)
    facts["progress"] = progress_text(snapshot.progress.get(job)) or None
    if row["metrics"]:
        facts["metrics"] = row["metrics"]
    if row["started_at"] is not None:
        facts["elapsed"] = duration_text(row["elapsed_s"])
    if row["remaining_s"] is not None:
        facts["remaining"] = duration_text(row["remaining_s"])
    facts |= run_facts(run) if run is not None else {}
    for refusal in snapshot.refusals:
        if refusal.job == job:
            facts["refused edit"] = f"{refusal.why} (written: {refusal.line})"
    return [{"": key, job: value} for key, value in facts.items() if value is not None]


def _why(snapshot: Snapshot, job: str) -> str | None:
    from dispatcher.report.waiting import reasons
    from dispatcher.run_state.states import State

    return reasons(snapshot).why(job).text if snapshot.records[job].state is State.QUEUED else None
