"""`dispatcher show JOB`: everything about one job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.base.times import duration_text, parse_time
from dispatcher.cli.common import WholeNumber, json_option, open_workspace, utc_option
from dispatcher.cli.complete import complete_jobs
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import note, print_facts, print_json, print_rows, print_text
from dispatcher.errors import StateError
from dispatcher.matrix.entry import OWNER
from dispatcher.run_state.edits.status_file import TIMES
from dispatcher.run_state.states import IN_FLIGHT
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.query.snapshot import Snapshot


# Told above the parameters.
_FACTS: Final = ("job_id", OWNER)
_NARROWING: Final = Narrowing(shrink=("host", "error"), drop=("host",), keep=("attempt", "reason"))


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--code", is_flag=True, help="Print the uncommitted changes that the job ran with, as a patch.")
@click.option("--attempt", type=WholeNumber(1), metavar="N", help="Which attempt.  [default: the last one]")
@utc_option
@json_option
def show(job: str, code: bool, attempt: int | None, utc: bool, as_json: bool) -> None:
    """Show everything about JOB.

    Its record, its parameters, what it ran from (code, Python, packages, host), its attempts, why it waits, and the
    notices that name it. If the manifest differs from what the job ran with, both are shown.
    """
    from dispatcher.cli.notify import print_notices
    from dispatcher.query.job_columns import job_row, why_it_waits
    from dispatcher.query.notices import rows_that_name
    from dispatcher.query.provenance import provenance_facts
    from dispatcher.query.selection import select

    workspace = open_workspace()
    snapshot = workspace.snapshot()
    job = select(snapshot, [job])[0]
    attempts = workspace.attempts(job)
    told = rows_that_name(job, workspace.notices())
    number = _attempt(job, attempts, attempt)
    if code:
        _print_code(workspace.layout, job, number)
        return
    if as_json:
        listed, ran = snapshot.entries.get(job), snapshot.last_ran(job)
        print_json(
            {
                **job_row(snapshot, job),
                "record": snapshot.records[job].fields(),
                "entry": listed.document() if listed else None,
                "ran_with": ran.document() if ran else None,
                "changes": snapshot.differences(job),
                "attempts": attempts,
                "why": why_it_waits(snapshot, job),
                "notices": told,
                "lost_result": snapshot.lost_result(job) or None,
                "refused_edits": [refusal for refusal in snapshot.refusals if refusal.job == job],
            }
        )
        return
    snapshot = snapshot.for_people(utc=utc)
    print_facts(_facts(snapshot, job, attempts))
    entry = snapshot.entry(job)
    if entry is not None:
        click.echo()
        print_text(f"parameters {_source(snapshot, job)}")
        print_facts({f"  {key}": value for key, value in entry.document().items() if key not in _FACTS})
    rows = snapshot.differences(job)
    if rows:
        click.echo()
        print_rows(rows, "plain", ("key", "ran_with", "manifest"))
    if number:
        click.echo()
        print_text(f"ran from (attempt {number})")
        facts = provenance_facts(workspace.layout, job, number)
        print_facts({f"  {name}": value for name, value in facts.items()})
    if attempts:
        click.echo()
        rows = [_shown_attempt(snapshot, job, row) for row in attempts]
        used = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
        print_rows(rows, "plain", used, narrowing=_NARROWING)
    if told:
        click.echo("\nnotices that name it")
        print_notices(told, snapshot.clock)


def _attempt(job: str, attempts: Sequence[Mapping[str, Any]], asked: int | None) -> int:
    """The number of the attempt that was asked for, else of the last one; 0 when there is none."""
    known = [row["attempt"] for row in attempts]
    if asked is not None and asked not in known:
        raise StateError(f"{job} has no attempt {asked} (attempts: {', '.join(map(str, known)) or 'none'})")
    return asked or max(known, default=0)


def _print_code(layout: Layout, job: str, attempt: int) -> None:
    from dispatcher.base.terminal import one_line
    from dispatcher.query.provenance import code_of

    if not attempt:
        raise StateError(f"{job} has not run yet: it is not known what it will run from")
    patch = code_of(layout, job, attempt)
    if not patch:
        note(f"attempt {attempt} of {job} ran the commit without changes")
    elif sys.stdout.isatty():
        # What is in files is not for the terminal to obey.
        lines = patch.decode("utf-8", "replace").split("\n")
        click.echo_via_pager("\n".join(one_line(line.expandtabs()) for line in lines))
    else:
        click.echo(patch, nl=False)


def _shown_attempt(snapshot: Snapshot, job: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `Workspace.attempts` as text for people."""
    begun, ended = parse_time(row["started_at"]), parse_time(row["ended_at"])
    ran_s = None if begun is None or ended is None else max(0.0, ended - begun)
    return {
        "attempt": row["attempt"],
        "started": snapshot.clock(row["started_at"]),
        "ran": duration_text(ran_s) if ran_s is not None else "",
        "exit": row["exit_code"],
        "host": row["host"],
        "reason": _reason(snapshot, job, row),
        "error": row["error"],
        "files": "cleaned" if row["cleaned_at"] else "",
    }


def _reason(snapshot: Snapshot, job: str, row: Mapping[str, Any]) -> str:
    """Why an attempt ended, or that it has not."""
    record = snapshot.records[job]
    if row["event"] is None and row["exit_code"] is None:
        in_flight = record.state in IN_FLIGHT and record.attempt == row["attempt"]
        return record.state.value if in_flight else row["reason"] or "unknown"
    if row["exit_code"] == 0 and not row["reason"]:
        return "done"
    return row["reason"] or f"exit {row['exit_code']}"


def _source(snapshot: Snapshot, job: str) -> str:
    """The source of the values that are shown."""
    from dispatcher.query.ran import is_unknown, last_counts

    record = snapshot.records[job]
    if is_unknown(record) and not last_counts(record):
        return "(from the manifest: it is unknown what the job ran with)"
    if not record.attempt:
        return "(from the manifest: it has not run)"
    if snapshot.last_ran(job) is None:
        return f"(from the manifest: attempt {record.attempt} has no entry.json, so it is unknown what it ran with)"
    if job not in snapshot.entries:
        return f"(what attempt {record.attempt} ran with: the job is in no manifest)"
    if snapshot.entry(job) is snapshot.entries[job] and snapshot.differences(job):
        return "(from the manifest: the next attempt will run with these values)"
    return f"(what attempt {record.attempt} ran with)"


def _facts(snapshot: Snapshot, job: str, attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from dispatcher.query.attempts import run_facts
    from dispatcher.query.external import external_text
    from dispatcher.query.inputs import newer_text
    from dispatcher.query.job_columns import job_row, why_it_waits
    from dispatcher.run_state.progress import progress_text

    row = job_row(snapshot, job)
    facts: dict[str, Any] = {"job": job, OWNER: row["user"]}
    for key, value in snapshot.records[job].fields().items():
        if value != "" and key not in (OWNER, "has_result", "inputs_at", "redone"):
            facts[key] = snapshot.clock(value) if key in TIMES else value
    if job in snapshot.edited:
        facts["edited"] = "by hand, not applied yet"
    if job in snapshot.unqueued:
        facts["rev"] = "no dispatcher has queued it yet"
    if job in snapshot.external:
        facts["external"] = external_text(job, snapshot.records[job], snapshot.external[job])
    facts["why it waits"] = why_it_waits(snapshot, job)
    if job in snapshot.newer_inputs:
        facts["newer inputs"] = f"{newer_text(snapshot.newer_inputs[job])}, done again since this job began"
    facts["progress"] = progress_text(snapshot.progress.get(job)) or None
    if row["gpu_idle_s"] is not None:
        facts["GPU idle"] = duration_text(row["gpu_idle_s"])
    if row["metrics"]:
        facts["metrics"] = row["metrics"]
    if row["started_at"] is not None:
        facts["elapsed"] = duration_text(row["elapsed_s"])
    if row["remaining_s"] is not None:
        facts["remaining"] = duration_text(row["remaining_s"])
    if attempts:
        facts |= run_facts(attempts[-1]["run"], snapshot.clock) if attempts[-1]["run"] else {}
        facts["directory"] = attempts[-1]["directory"]
    facts["lost result"] = snapshot.lost_result(job) or None
    for refusal in snapshot.refusals:
        if refusal.job == job:
            facts["refused edit"] = f"{refusal.why} (written: {refusal.line})"
    return facts
