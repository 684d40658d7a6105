"""`dispatcher status`: the state of all jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.common import (
    format_option,
    interval_option,
    keys_option,
    open_workspace,
    state_option,
    utc_option,
    where_option,
)
from dispatcher.cli.printing import note, note_lines, table_text, terminal_size, terminal_width
from dispatcher.cli.time_limit import timeout_option
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.cli.watch import Frame
    from dispatcher.query.snapshot import Snapshot


class StatusOptions:
    """The options of the command."""

    def __init__(
        self, by: tuple[str, ...], where: Where, states: tuple[str, ...], style: str, *, utc: bool, watch: bool
    ) -> None:
        self.by = by
        self.where = where
        self.states = states
        self.style = style
        self.utc = utc
        self.watch = watch

    @property
    def is_filtered(self) -> bool:
        return bool(self.where or self.states)


@click.command()
@keys_option("--by", help="Count states by these keys, e.g. lang,method, or by reason.")
@click.option("--watch", is_flag=True, help="Stay on the screen and keep it up to date; j, k and space scroll, q ends.")
@interval_option
@timeout_option
@where_option
@state_option
@utc_option
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
    utc: bool,
    style: str,
    restore: bool,
) -> None:
    """Show the state of all jobs.

    Counts, slots, rate and time left; failed jobs by cause, why others wait, and what runs. A terminal shows as much as
    it has room for; `--watch` scrolls, and piped output has everything. Marked as stalled: a running job that has
    reported no progress for longer than `stall_after` in dispatcher.yaml, or for longer than usual for its method. `GPU
    idle`: all its GPUs have been at 0 % for as long as `gpu_idle` allows.
    """
    workspace = open_workspace()
    if restore:
        _restore(workspace)
        return
    options = StatusOptions(by, where, states, style, utc=utc, watch=watch)
    if watch:
        _watch(workspace, options, interval)
        return
    text, notices = _text(workspace, options)
    click.echo(text)
    for notice in notices:
        note(notice)


def _watch(workspace: Workspace, options: StatusOptions, interval_s: float) -> None:
    from dispatcher.cli.watch import repeat, watch

    if options.style == "plain" and terminal_size() is not None:
        watch(lambda: _frame(workspace, options), interval_s)
    else:
        repeat(lambda: _whole_text(workspace, options), interval_s)


def _restore(workspace: Workspace) -> None:
    from dispatcher.run_state.projection import restore

    kept = restore(workspace.store)
    if kept is None:
        click.echo(f"{workspace.layout.status_file} is readable: nothing was changed")
    else:
        click.echo(f"{workspace.layout.status_file}: replaced; the old one is kept as {kept}")


def _snapshots(workspace: Workspace, options: StatusOptions) -> tuple[Snapshot, Snapshot]:
    """The jobs that were asked for, and all jobs."""
    from dispatcher.query.selection import parse_states, select

    everything = workspace.snapshot()
    if options.style not in ("json", "csv"):
        everything = everything.for_people(utc=options.utc)
    if not options.is_filtered:
        return everything, everything
    jobs = select(everything, (), parse_states(options.states), options.where)
    return everything.only({job: everything.records[job] for job in jobs}), everything


def _text(workspace: Workspace, options: StatusOptions) -> tuple[str, list[str]]:
    """The text to print and the notices."""
    from dispatcher.query.job_columns import job_rows
    from dispatcher.query.overview import notices

    snapshot, everything = _snapshots(workspace, options)
    if options.style == "json" and not options.by:
        return _json(snapshot, everything), []
    # What is printed beside the table is for people, whatever the table is for.
    found = notices(everything.for_people(utc=options.utc))
    if options.by:
        return _pivot(snapshot, options), found
    if options.style == "csv":
        return table_text(job_rows(snapshot, everything), "csv"), found
    if options.style != "plain":
        return _job_table(snapshot, everything, options.style), found
    size = terminal_size()
    room = None if size is None else size.lines - 1 - len(note_lines(found, size.columns))
    header, body = _lines(snapshot, everything, options, room)
    return "\n".join([*header, *body]), found


def _whole_text(workspace: Workspace, options: StatusOptions) -> str:
    text, notices = _text(workspace, options)
    return "\n".join([text, *note_lines(notices, None)])


def _frame(workspace: Workspace, options: StatusOptions) -> Frame:
    """The screen of `--watch`: numbers and the clock stay, the rest scrolls."""
    from dispatcher.base.terminal import one_line
    from dispatcher.base.times import Clock
    from dispatcher.cli.watch import Frame
    from dispatcher.query.overview import notices

    snapshot, everything = _snapshots(workspace, options)
    header, body = _lines(snapshot, everything, options)
    found = note_lines(notices(everything), terminal_width())
    title = f"{workspace.root.name}  {Clock(everything.now_s, options.utc)(everything.now_s)}"
    return Frame([one_line(title), *header], [*body, "", *found] if found else body)


def _lines(
    snapshot: Snapshot, everything: Snapshot, options: StatusOptions, room: int | None = None
) -> tuple[list[str], list[str]]:
    """The header and the tables; with `room`, shortened for a screen with so many lines."""
    from dispatcher.cli.status_text import Screen, counts_lines

    if options.by:
        return counts_lines(snapshot, terminal_width()), ["", *_pivot(snapshot, options).splitlines()]
    if options.is_filtered:
        table = ["", *_job_table(snapshot, everything, "plain").splitlines()] if snapshot.records else []
        return counts_lines(snapshot, terminal_width()), table
    screen = Screen(snapshot, terminal_width())
    header = screen.header()
    if options.watch:
        return [*header, *screen.failed_line()], screen.body()
    return header, screen.body(None if room is None else room - len(header))


def _pivot(snapshot: Snapshot, options: StatusOptions) -> str:
    from dispatcher.cli.fitting import Narrowing
    from dispatcher.query.groups import states_by

    if "state" in options.by:
        raise UsageError("--by state: states are the columns already; use keys of the jobs, such as lang,method")
    rows = states_by(snapshot, options.by)
    if options.style not in ("json", "csv"):
        rows = [{**row, **{key: row[key] or "-" for key in options.by}} for row in rows]
    return table_text(rows, options.style, narrowing=Narrowing(keep=options.by))


def _job_table(snapshot: Snapshot, everything: Snapshot, style: str) -> str:
    """One row for each job, with the columns that have something to tell."""
    from dispatcher.cli.status_text import OF_JOBS
    from dispatcher.query.job_columns import text_rows, used_columns

    rows = text_rows(snapshot, everything)
    return table_text(rows, style, used_columns(rows), narrowing=OF_JOBS)


def _json(snapshot: Snapshot, everything: Snapshot) -> str:
    from dispatcher.cli.tables import json_text
    from dispatcher.query.job_columns import job_rows
    from dispatcher.query.overview import overview

    seen = overview(snapshot, everything)
    document: dict[str, Any] = {
        "counts": seen.counts,
        "total": seen.total,
        "pace": seen.pace,
        "jobs": job_rows(snapshot, everything),
        "failures": seen.failures,
        "waiting": seen.waiting,
        "pauses": list(everything.pauses.values()),
        "refusals": everything.refusals,
        "problem": everything.problem,
        "notices": seen.notices,
    }
    return json_text(document)
