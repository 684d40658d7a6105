"""`dispatcher status`: the state of all jobs."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.base.messages import counted, first_names
from dispatcher.cli.common import (
    format_option,
    interval_option,
    open_workspace,
    read_list,
    state_option,
    where_option,
)
from dispatcher.cli.printing import coloured, note, table_text, wants_colour
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.report.snapshot import Snapshot

_FAILED_SHOWN: Final = 10
_HOME, _TO_LINE_END, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR: Final = "\x1b[2J"
# Long lines are truncated, or wrapped again.
_TRUNCATE, _WRAP = "\x1b[?7l", "\x1b[?7h"


class Request:
    """The options of the command."""

    def __init__(self, by: tuple[str, ...], where: Where, states: tuple[str, ...], style: str) -> None:
        self.by = by
        self.where = where
        self.states = states
        self.style = style

    @property
    def is_filtered(self) -> bool:
        return bool(self.where or self.states)


@click.command()
@click.option("--by", callback=read_list, metavar="KEYS", help="Count states by these keys, e.g. lang,method.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@interval_option
@where_option
@state_option
@format_option
@click.option(
    "--restore", is_flag=True, help="Replace a status file that cannot be read; the old one is kept in rejected/."
)
def status(
    by: tuple[str, ...],
    watch: bool,
    interval: float,
    where: Where,
    states: tuple[str, ...],
    style: str,
    restore: bool,
) -> None:
    """Show the state of all jobs.

    Counts, running jobs with remaining time, failed jobs, and why the others wait.
    """
    workspace = open_workspace()
    if restore:
        _restore(workspace)
        return
    request = Request(by, where, states, style)
    if not watch:
        text, notices = _text(workspace, request)
        click.echo(text)
        for notice in notices:
            note(notice)
        return
    with contextlib.suppress(KeyboardInterrupt):
        _watch(workspace, request, interval)


def _watch(workspace: Workspace, request: Request, interval: float) -> None:
    on_terminal = sys.stdout.isatty()
    if on_terminal:
        click.echo(_CLEAR, nl=False)
    while True:
        text, notices = _text(workspace, request)
        text = "\n".join([text, *(f"note: {notice}" for notice in notices)])
        if on_terminal:
            # Overwritten in place: clearing first would flicker.
            lines = "".join(f"{line}{_TO_LINE_END}\n" for line in _that_fit(text.splitlines()))
            click.echo(f"{_HOME}{_TRUNCATE}{lines}{_WRAP}{_TO_END}", nl=False)
        else:
            click.echo(f"{text}\n")
        time.sleep(interval)


def _that_fit(lines: list[str]) -> list[str]:
    """The lines that fit on the terminal: with more, the top would scroll away."""
    # Imported here: imports take a third of this command's time, and only a terminal needs this one.
    import shutil

    room = max(2, shutil.get_terminal_size().lines - 1)
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], f"... {len(lines) - room + 1} more lines"]


def _restore(workspace: Workspace) -> None:
    from dispatcher.run_state.projection import restore

    kept = restore(workspace.store)
    if kept is None:
        click.echo(f"{workspace.layout.status_file} is readable: nothing was changed")
    else:
        click.echo(f"{workspace.layout.status_file}: replaced; the old one is kept as {kept}")


def _text(workspace: Workspace, request: Request) -> tuple[str, list[str]]:
    """The text to print and the notices."""
    from dispatcher.report.overview import notices
    from dispatcher.report.selection import parse_states, select

    unfiltered = workspace.snapshot()
    snapshot = unfiltered
    if request.is_filtered:
        jobs = select(unfiltered, (), parse_states(request.states), request.where)
        snapshot = unfiltered.only({job: unfiltered.records[job] for job in jobs})
    if request.by:
        return _pivot(snapshot, request), notices(unfiltered)
    if request.style == "json":
        return _json(snapshot, unfiltered), []
    if request.style == "csv":
        from dispatcher.report.overview import job_rows

        return table_text(job_rows(snapshot, unfiltered), "csv"), notices(unfiltered)
    return _plain_text(snapshot, unfiltered, request), notices(unfiltered)


def _pivot(snapshot: Snapshot, request: Request) -> str:
    from dispatcher.report.pivot import states_by
    from dispatcher.report.selection import check_keys

    if "state" in request.by:
        raise UsageError("--by state: states are the columns already; use keys of the jobs, such as lang,method")
    check_keys(snapshot, request.by)
    return table_text(states_by(snapshot, request.by), request.style)


def _json(snapshot: Snapshot, unfiltered: Snapshot) -> str:
    from dispatcher.report.overview import job_rows, overview
    from dispatcher.report.tables import json_text

    seen = overview(snapshot, unfiltered)
    document: dict[str, Any] = {
        "counts": seen.counts,
        "total": seen.total,
        "jobs": job_rows(snapshot, unfiltered),
        "waiting": seen.waiting,
        "pauses": list(unfiltered.pauses.values()),
        "refusals": unfiltered.refusals,
        "problem": unfiltered.problem,
        "notices": seen.notices,
    }
    return json_text(document)


def _plain_text(snapshot: Snapshot, unfiltered: Snapshot, request: Request) -> str:
    from dispatcher.report.overview import (
        ALWAYS_SHOWN,
        CHOSEN_COLUMNS,
        RUNNING_COLUMNS,
        job_row,
        job_rows,
        shown_job,
        useful_columns,
    )
    from dispatcher.run_state.states import IN_FLIGHT

    parts = [_counts(snapshot)]
    if request.is_filtered:
        rows = [shown_job(snapshot, row) for row in job_rows(snapshot, unfiltered)]
        useful = useful_columns(CHOSEN_COLUMNS, rows)
        used = [name for name in useful if name in ALWAYS_SHOWN or any(row[name] for row in rows)]
        parts += [table_text(rows, request.style, used)] if rows else []
    else:
        running = [job for job, record in snapshot.records.items() if record.state in IN_FLIGHT]
        if running:
            rows = [shown_job(snapshot, job_row(snapshot, job)) for job in running]
            parts.append(table_text(rows, request.style, useful_columns(RUNNING_COLUMNS, rows)))
        parts += [*_waiting(snapshot, request), *_failed(snapshot, request)]
    return "\n\n".join(parts)


def _counts(snapshot: Snapshot) -> str:
    from dispatcher.report.pivot import count_states
    from dispatcher.run_state.states import BY_HAND

    counts = {state: count for state, count in count_states(snapshot).items() if count}
    by_hand = Counter(record.state.value for record in snapshot.records.values() if record.reason == BY_HAND)
    notes = {state: f" ({count} set by hand)" for state, count in by_hand.items()}
    words = [f"{state} {count}{notes.get(state, '')}" for state, count in counts.items()]
    if wants_colour():
        words = [coloured("state", word) for word in words]
    return counted(len(snapshot.records), "job") + (f": {', '.join(words)}" if words else "")


def _waiting(snapshot: Snapshot, request: Request) -> list[str]:
    from dispatcher.report.waiting import waits

    rows = [
        {"jobs": len(wait.jobs), "waiting because": wait.why, "which": first_names(wait.jobs)}
        for wait in waits(snapshot)
    ]
    return [table_text(rows, request.style)] if rows else []


def _failed(snapshot: Snapshot, request: Request) -> list[str]:
    from dispatcher.report.overview import FAILED_COLUMNS, job_row, shown_job
    from dispatcher.run_state.states import State

    jobs = [job for job, record in snapshot.records.items() if record.state is State.FAILED]
    if not jobs:
        return []
    # The most recent ones: revisions increase with time.
    recent = sorted(jobs, key=lambda job: -snapshot.records[job].rev)[:_FAILED_SHOWN]
    rows = [shown_job(snapshot, job_row(snapshot, job)) for job in recent]
    for row in rows:
        row["failed"] = row["job"]
    table = table_text(rows, request.style, ("failed", *FAILED_COLUMNS[1:]))
    more = len(jobs) - len(recent)
    return [table + (f"\n... and {more} more: dispatcher status --state failed" if more else "")]
