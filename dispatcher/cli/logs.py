"""`dispatcher logs JOB...`: the output of attempts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from dispatcher.base.messages import counted
from dispatcher.cli.common import WholeNumber, jobs_argument, open_workspace, state_option, where_option
from dispatcher.cli.hardware import hosts_option
from dispatcher.cli.log_lines import BlockHeadings, Choice, Lines, Output, Sink, missing_rank, read_pattern, show
from dispatcher.cli.one_argument import one_argument
from dispatcher.cli.printing import note
from dispatcher.cli.time_limit import timeout_option
from dispatcher.errors import StateError, UsageError
from dispatcher.matrix.condition import Where
from dispatcher.run_state.states import ENDED

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.query.snapshot import Snapshot
    from dispatcher.workspace import AttemptPaths

_NOTHING: Final = 1
# Of each job when several are followed, as `tail -f` does.
_FOLLOWED_LINES: Final = 10


class _Which(msgspec.Struct, frozen=True, kw_only=True):
    """Which log of a job; None: not given."""

    attempt: int | None = None
    rank: int | None = None


_which_options: Final = one_argument("which", _Which, (
    click.option("--attempt", type=WholeNumber(1), metavar="N", help="Which attempt.  [default: the last one]"),
    click.option(
        "--rank", type=WholeNumber(0), metavar="N",
        help="Which process of a job on several machines.  [default: 0; with -f all of a TPU VM]",
    ),
))  # fmt: skip


@click.command()
@jobs_argument
@state_option
@where_option
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the job has ended; wait for a queued job.")
@click.option("--grep", metavar="REGEX", help="Only lines with a match; exit code 1 when there is none.")
@_which_options
@click.option(
    "-n",
    "--tail",
    type=WholeNumber(0),
    metavar="LINES",
    help="Only the last lines; --grep looks only at these.  [default: all; 10 of each when several are followed]",
)
@timeout_option
@hosts_option
def logs(
    jobs: tuple[str, ...],
    states: tuple[str, ...],
    where: Where,
    follow: bool,
    grep: str | None,
    which: _Which,
    tail: int | None,
    hosts_file: Path | None,
) -> int:
    """Print the log of the last attempt of JOB... (ids, globs).

    Of a progress bar a terminal, --tail and --grep show the last state; a pipe gets the log as it is.

    Several jobs have headings, and with -f each line begins with its job. The exit code is 1 when there is no log of
    any of them.
    """
    from dispatcher.query.selection import is_glob, parse_states, select

    if not (jobs or states or where):
        raise UsageError("name the jobs: ids, globs such as 'fft_*', --state or --where key=value")
    pattern = read_pattern(grep)
    workspace = open_workspace()
    snapshot = workspace.snapshot()
    chosen = select(snapshot, jobs, parse_states(states), where)
    if not chosen:
        note("no job matches")
        return _NOTHING
    is_one = len(jobs) == 1 and not is_glob(jobs[0])
    output = Output(sys.stdout.buffer)
    if follow:
        from dispatcher.cli.log_follow import Follower

        lines = _FOLLOWED_LINES if tail is None and not is_one else tail
        choice = Choice(which.attempt, lines, pattern, hosts_file, which.rank)
        followed = chosen if is_one else _unended(snapshot, chosen, named=jobs)
        Follower(workspace, output, choice, names_jobs=not is_one).follow(followed)
        return _NOTHING if pattern is not None and output.is_empty else 0
    choice = Choice(which.attempt, tail, pattern, rank=which.rank)
    if is_one:
        number = which.attempt or snapshot.records[chosen[0]].attempt
        has_log = _print_one(workspace, chosen[0], number, output, choice)
    else:
        has_log = _print_several(workspace, snapshot, chosen, output, choice)
    return _NOTHING if not has_log or (pattern is not None and output.is_empty) else 0


def _unended(snapshot: Snapshot, chosen: Sequence[str], named: Sequence[str]) -> list[str]:
    """The jobs to follow: those that were named exactly, and of the others those that are not over."""
    left_out = {job for job in chosen if snapshot.records[job].state in ENDED and job not in named}
    if left_out:
        note(f"{counted(len(left_out), 'job has', 'jobs have')} ended: not followed")
    return [job for job in chosen if job not in left_out]


def _print_one(workspace: Workspace, job: str, number: int, output: Output, choice: Choice) -> bool:
    """Print the log; whether there is one."""
    paths = workspace.layout.attempt(job, number)
    if not number:
        raise StateError(f"{job} has not run yet: there is no log (state: {workspace.records()[job].state})")
    has_log = _copy_log(paths, output, choice)
    if not has_log:
        if not paths.directory.is_dir():
            known = ", ".join(str(row["attempt"]) for row in workspace.attempts(job)) or "none"
            raise StateError(f"{job} has no attempt {number} (attempts: {known})")
        why = ": `dispatcher clean` removed it" if os.path.exists(paths.cleaned) else ""
        note(f"attempt {number} of {job} has no log{why or missing_rank(paths, choice.rank)}")
    return has_log


def _print_several(
    workspace: Workspace, snapshot: Snapshot, chosen: Sequence[str], output: Output, choice: Choice
) -> bool:
    """Print the logs one after another, each with a heading; whether there is any."""
    without = 0
    for job in chosen:
        number = choice.attempt or snapshot.records[job].attempt
        heading = f"==> {job} <==\n" if output.is_empty else f"\n==> {job} <==\n"
        sink = BlockHeadings(heading.encode(), output)
        without += not number or not _copy_log(workspace.layout.attempt(job, number), sink, choice)
    if without:
        which = f" of attempt {choice.attempt}" if choice.attempt else ""
        note(f"{counted(without, 'job has', 'jobs have')} no log{which}")
    return without < len(chosen)


def _copy_log(paths: AttemptPaths, out: Sink, choice: Choice) -> bool:
    """Copy what a log has now; whether there is one."""
    try:
        with open(paths.directory / choice.name, "rb", buffering=0) as file:
            if choice.pattern is None:
                # A log without a line has its heading all the same.
                out.write(b"")
                show(file, out, choice.tail, is_copy=not sys.stdout.isatty())
            else:
                lines = Lines(out, pattern=choice.pattern)
                show(file, lines, choice.tail)
                lines.end()
    except FileNotFoundError:
        return False
    return True
