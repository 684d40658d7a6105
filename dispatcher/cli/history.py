"""`dispatcher history [JOB]`: all changes, with time and author."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import click

from dispatcher.cli.common import json_option, open_workspace
from dispatcher.cli.complete import complete_jobs
from dispatcher.cli.printing import print_json
from dispatcher.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dispatcher.run_state.journal import Line


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("-n", "--tail", type=click.IntRange(1), metavar="N", help="Only the last N changes.")
@json_option
def history(job: str | None, tail: int | None, as_json: bool) -> None:
    """List the changes of JOB, or of all jobs, oldest first."""
    workspace = open_workspace()
    lines: Iterable[Line] = workspace.history(job)
    if tail is not None:
        lines = collections.deque(lines, maxlen=tail)
    if as_json:
        print_json(list(lines))
        return
    nothing = True
    for line in lines:
        click.echo(_text(line))
        nothing = False
    if nothing and job is not None and job not in workspace.records():
        raise UsageError(f"unknown job {job!r}")


def _text(line: Line) -> str:
    from dispatcher.report.selection import cell_text
    from dispatcher.report.terminal import one_line

    changed = [f"{key}={cell_text(value)}" for key, value in line.set.items() if value is not None]
    # `set` has what was edited; `edit` only lets dispatchers recognise the same file later.
    changed += [f"{key}: {cell_text(value)}" for key, value in (line.data or {}).items() if key != "edit"]
    return one_line(
        "  ".join([str(line.seq), line.at, line.by, line.event, line.job or "-", " ".join(changed)]).rstrip()
    )
