"""`dispatcher requeue | hold | cancel | update | mark | delete`: change jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click
import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.base.values import MOST, MOST_BITS, NAME_EXPECTED, is_name, shown
from dispatcher.cli.command_options import read_time_limit
from dispatcher.cli.common import (
    MANY,
    WholeNumber,
    confirm,
    jobs_argument,
    json_option,
    layout,
    open_workspace,
    state_option,
    where_option,
    yes_option,
)
from dispatcher.cli.complete import complete_jobs, complete_methods
from dispatcher.cli.one_argument import one_argument
from dispatcher.cli.printing import note, print_json
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where
from dispatcher.matrix.submitted import is_submitted
from dispatcher.run_state.states import MARKABLE, Record, State

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.query.changes import Changes, Plan


_NONE_CHANGED: Final = (
    "no job ran with other parameters than the manifest has now, or before what it needs was done again"
)


class ChangeOptions(msgspec.Struct, frozen=True):
    """Which jobs a command is to change, and how."""

    jobs: tuple[str, ...]
    states: tuple[str, ...]
    where: Where
    yes: bool
    as_json: bool


_asked: Final = one_argument(
    "asked", ChangeOptions, (jobs_argument, state_option, where_option, yes_option, json_option)
)


@click.command()
@click.option(
    "--changed", is_flag=True,
    help="Select jobs that ran with other parameters than the manifest has now, or before what they need was done "
    "again.",
)  # fmt: skip
@click.option(
    "--no-result", is_flag=True, help="Select done jobs whose results are lost, or not where their method says."
)
@click.option(
    "--downstream", is_flag=True,
    help="Also all done and failed jobs that need the selected ones, directly or through others.",
)  # fmt: skip
@_asked
def requeue(asked: ChangeOptions, changed: bool, no_result: bool, downstream: bool) -> int:
    """Queue jobs again.

    Select them by ids, globs, --state, --where, --changed and --no-result; filters are combined with AND. A glob or
    --where alone selects failed, abandoned and held jobs; --changed selects done ones, too. A running job that is named
    exactly is stopped first. A job starts when those that it needs are done again.
    """
    return _request(State.QUEUED, "requeue", asked, changed=changed, no_result=no_result, downstream=downstream)


@click.command()
@_asked
def hold(asked: ChangeOptions) -> int:
    """Keep jobs from being claimed until requeued.

    Select them by ids, globs, --state and --where. A glob or --where alone selects queued jobs. A running job that is
    named exactly is stopped.
    """
    return _request(State.HELD, "hold", asked)


@click.command()
@click.option("--force", is_flag=True, help="Kill what runs at once, without time to save.")
@_asked
def cancel(asked: ChangeOptions, force: bool) -> int:
    """Give jobs up, and stop those that run.

    Their state becomes abandoned. Select them by ids, globs, --state and --where. A glob or --where alone selects all
    jobs that are not done. What runs gets TERM, and KILL after `kill_grace`; --force kills it at once, also when
    it got TERM before.
    """
    return _request(State.ABANDONED, "cancel", asked, force=force)


@click.command()
@click.option("--priority", type=WholeNumber(-MOST_BITS, MOST_BITS), metavar="N", help="Higher is claimed first.")
@click.option("--time-limit", metavar="TIME", help="Stop the job after this time: 90m, 8h, or seconds.")
@click.option(
    "--max-running", type=WholeNumber(1, MOST), metavar="N",
    help="How many jobs of --method may run at once, in all pods; written to dispatcher.yaml.",
)  # fmt: skip
@click.option("--method", metavar="METHOD", shell_complete=complete_methods, help="The method of --max-running.")
@_asked
def update(
    asked: ChangeOptions, priority: int | None, time_limit: str | None, max_running: int | None, method: str | None
) -> int:
    """Change the priority or the time limit of jobs, instead of those in the manifest; or how many of a method may run.

    Select jobs by ids, globs, --state and --where. A glob or --where alone selects queued and held jobs. An attempt
    that runs keeps its time limit.
    """
    if max_running is not None or method is not None:
        return _update_method(asked, method, max_running, others=priority is not None or time_limit is not None)
    if priority is None and time_limit is None:
        raise UsageError("what is to change? --priority N, --time-limit TIME, or --method METHOD --max-running N")
    limit = read_time_limit(time_limit)
    workspace = open_workspace()
    plan = workspace.plan_update(asked.jobs, states=asked.states, where=asked.where)
    if len(plan.jobs) > MANY:
        confirm(_question("update", plan.jobs), yes=asked.yes)
    text = limit if limit is None or isinstance(limit, str) else f"{limit:g}s"
    outcome = workspace.apply_update(plan, priority=priority, time_limit=text) if plan.jobs else None
    if asked.as_json:
        print_json(outcome or {"changed": {}, "unchanged": {}, "refused": {}, "left_alone": tuple(plan.left_alone)})
    elif outcome is not None:
        _print(outcome)
    else:
        click.echo(
            "nothing to update: no job that matches waits" if plan.left_alone else "nothing to update: no job matches"
        )
    if plan.left_alone and not asked.as_json:
        _note_left_alone(list(plan.left_alone))
    return 0


def _update_method(asked: ChangeOptions, method: str | None, most: int | None, *, others: bool) -> int:
    from dispatcher.config import write_max_running

    if method is None or most is None or others or asked.jobs or asked.states or asked.where:
        raise UsageError("--max-running N is for --method METHOD alone, without jobs and other options")
    if not is_name(method):
        raise UsageError(f"--method {shown(method)}: {NAME_EXPECTED}")
    where = layout()
    write_max_running(where, method, most)
    if asked.as_json:
        print_json({"method": method, "max_running": most})
    else:
        click.echo(f"{where.config_file}: max_running of {method} is {most}")
    return 0


@click.command()
@click.argument("verdict", type=click.Choice([state.value for state in MARKABLE]), metavar="done|failed")
@_asked
def mark(asked: ChangeOptions, verdict: str) -> int:
    """Set jobs to done or failed by hand.

    Select jobs that are not running by ids, globs, --state and --where. The reason becomes "set by hand". A glob or
    --where alone selects jobs that are not done.
    """
    return _request(State(verdict), f"mark {verdict}", asked)


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=complete_jobs)
@yes_option
@json_option
def delete(jobs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete the records of jobs (ids, globs) for good. Their directories and their history are kept.

    A job that is still in a manifest is queued and run again; a submitted one is not. To stop a job from running, use
    cancel.
    """
    from dispatcher.query.applying import refuse_in_flight
    from dispatcher.query.selection import select

    workspace = open_workspace()
    snapshot = workspace.snapshot()
    selected = [job for job in select(snapshot, jobs) if job not in snapshot.unqueued]
    if not selected:
        if as_json:
            print_json({"deleted": []})
        else:
            click.echo("nothing to delete: no dispatcher has queued these jobs yet")
        return
    refuse_in_flight({job: snapshot.records[job] for job in selected})
    entries = snapshot.entries
    listed = tuple(job for job in selected if job in entries and not is_submitted(entries[job]))
    if listed:
        still = "is still in a manifest" if len(listed) == 1 else "are still in a manifest"
        note(f"{first_names(listed)} {still} and will be queued and run again; use `dispatcher cancel` to give jobs up")
    # Asked about a single record, too: no command brings it back.
    of = "the record of" if len(selected) == 1 else "the records of"
    confirm(_question(f"delete {of}", {job: snapshot.records[job] for job in selected}), yes=yes)
    deleted = workspace.delete(*selected)
    if as_json:
        print_json({"deleted": deleted})
        return
    for job in deleted:
        click.echo(f"{job}: deleted")


def _request(
    state: State,
    verb: str,
    asked: ChangeOptions,
    *,
    changed: bool = False,
    no_result: bool = False,
    downstream: bool = False,
    force: bool = False,
) -> int:
    workspace = open_workspace()
    plan = workspace.plan(
        state, asked.jobs, states=asked.states, where=asked.where,
        changed=changed, no_result=no_result, downstream=downstream,
    )  # fmt: skip
    if len(plan.jobs) > MANY:
        confirm(_question(verb, plan.jobs), yes=asked.yes)
    # Without jobs there is nothing to change, so no lock is taken.
    outcome = workspace.apply(plan, force=force) if plan.jobs else None
    exit_code = 1 if outcome is not None and outcome.refused else 0
    if asked.as_json:
        print_json(outcome or {"changed": {}, "unchanged": {}, "refused": {}, "left_alone": tuple(plan.left_alone)})
        return exit_code
    if outcome is not None:
        _print(outcome)
        _note_without_pods(workspace, outcome)
    elif plan.left_alone:
        click.echo(f"nothing to {verb}{_already(plan)}")
    else:
        none = _NONE_CHANGED if changed else "no job matches"
        none = "no selected job is known to lack its result" if no_result else none
        click.echo(f"nothing to {verb}: {none}")
    if plan.unknown:
        note(
            f"{counted(len(plan.unknown), 'job')} left alone ({first_names(plan.unknown)}): adopted or marked by "
            "hand, so what they ran with is not known"
        )
    if plan.dependents:
        need, keep = ("needs", "is not run again") if len(plan.dependents) == 1 else ("need", "are not run again")
        note(
            f"{counted(len(plan.dependents), 'done job')} that {need} them {keep} ({first_names(plan.dependents)}): "
            "`--downstream` runs such jobs again, too"
        )
    others = [job for job, record in plan.left_alone.items() if record.state is not state]
    if others:
        _note_left_alone(others)
    return exit_code


def _note_left_alone(others: list[str]) -> None:
    them = "it" if len(others) == 1 else "them"
    note(
        f"{counted(len(others), 'job')} matched and left alone ({first_names(others)}): name {them} exactly, "
        "or use --state"
    )


def _already(plan: Plan) -> str:
    """Which of the jobs that were left alone are in the requested state."""
    count = sum(record.state is plan.state for record in plan.left_alone.values())
    return f": {counted(count, 'job is', 'jobs are')} already {plan.state}" if count else ""


def _note_without_pods(workspace: Workspace, outcome: Changes) -> None:
    from dispatcher.query.changes import STOP_REQUESTED

    asked = [job for job, done in outcome.changed.items() if done.startswith(STOP_REQUESTED)]
    if asked and not any(pod.is_alive for pod in workspace.pods()):
        runs, them = ("keeps running", "it") if len(asked) == 1 else ("keep running", "them")
        until = f"until one starts or `dispatcher poll` stops {them}"
        note(f"no pod is running, so {first_names(asked)} {runs} {until}")


def _question(verb: str, jobs: Mapping[str, Record]) -> str:
    """`hold 30 jobs (28 queued, 2 failed): fft_s1, fft_s2, fft_s3, ...?`"""
    counts = Counter(record.state.value for record in jobs.values())
    states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    return f"{verb} {counted(len(jobs), 'job')} ({states}): {first_names(list(jobs))}?"


def _print(outcome: Changes) -> None:
    if len(outcome.changed) > MANY:
        # What follows is of one job.
        kinds = Counter(done.partition(":")[0] for done in outcome.changed.values())
        for kind, count in sorted(kinds.items()):
            click.echo(f"{counted(count, 'job')}: {kind}")
    else:
        for job, done in outcome.changed.items():
            click.echo(f"{job}: {done}")
    for job, why in outcome.unchanged.items():
        click.echo(f"{job}: {why}")
    for job, why in outcome.refused.items():
        click.echo(f"{job}: refused: {why}", err=True)
