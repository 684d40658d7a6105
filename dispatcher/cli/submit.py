"""`dispatcher submit`, of queued jobs or of a new command, and `dispatcher poll`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dispatcher.base.messages import shortened
from dispatcher.cli.command_options import CommandOptions, TakesCommand, command_options, given_command
from dispatcher.cli.common import jobs_argument, json_option, layout, open_workspace, where_option
from dispatcher.cli.hardware import hosts_option
from dispatcher.cli.printing import note, print_json, print_text
from dispatcher.cli.submission import SubmissionOptions, choose_targets, submission_options, submit_jobs
from dispatcher.cli.submit_new import refuse_several, submit_new
from dispatcher.cli.time_limit import timeout_option
from dispatcher.errors import StateError, UsageError
from dispatcher.matrix.condition import Where
from dispatcher.run_state.states import State

if TYPE_CHECKING:
    from pathlib import Path

    from dispatcher.api import Workspace
    from dispatcher.config import Config
    from dispatcher.query.snapshot import Snapshot


@click.command(cls=TakesCommand)
@jobs_argument
@where_option
@command_options
@click.option("--wait", is_flag=True, help="Wait for the end; exit with the job's status (several: 0 if all are done).")
@click.option("--follow", "-f", is_flag=True, help="Print the log of the one job until it has ended, then as --wait.")
@timeout_option
@submission_options
def submit(
    jobs: tuple[str, ...],
    where: Where,
    job: CommandOptions,
    wait: bool,
    follow: bool,
    options: SubmissionOptions,
) -> int:
    """Queue a command as a new job, or submit queued jobs to hosts and clusters, once.

    `dispatcher submit -- python train.py --lr 0.1` queues a job without a manifest, which a pod runs, and prints its
    id. A value {lr} of the command comes from --param or --from. With --outlet, --chip or the like the job is submitted
    to a host at once.

    `dispatcher submit JOB... --outlet HOST` submits queued jobs, selected by ids, globs and --where. With --chip, -n,
    --mem and the like the best host is chosen, and the jobs ask for that instead of what their entries say.

    Waits until each job was accepted or refused by its host; it then runs on by itself, and any pod of this workspace,
    or `dispatcher poll`, records how it ends. Ctrl-C ends the waiting, not the jobs.
    """
    command = given_command()
    workspace = open_workspace()
    if command is None:
        if option := job.first_given():
            raise UsageError(f"{option} is for a new job: put its command after `--`")
        if options.is_dry_run and (wait or follow):
            raise UsageError("--wait and --follow: a dry run starts nothing")
        ids, status = _submit_queued(workspace, jobs, where, options, follow=follow)
    else:
        if jobs or where:
            raise UsageError("either jobs that are queued already, or a new command after `--`")
        if not command:
            raise UsageError("expected a command after `--`, as in: dispatcher submit -- python train.py")
        ids, status = submit_new(workspace, command, job, options, is_awaited=wait or follow, follow=follow)
    if status or not (wait or follow) or options.is_dry_run:
        return status
    return _wait(workspace, ids, options, follow=follow)


@click.command()
@jobs_argument
@hosts_option
@json_option
def poll(jobs: tuple[str, ...], hosts_file: Path | None, as_json: bool) -> None:
    """Record what has become of jobs that no live pod looks after, such as those of `submit`.

    Asks every host that has some, once, and prints what has changed. Jobs that were cancelled, held or requeued
    meanwhile are stopped.
    """
    from dispatcher.cli.waiting import poll_once
    from dispatcher.config import load_config
    from dispatcher.query.selection import select

    config = load_config(layout(), hosts_file)
    workspace = open_workspace()
    snapshot = workspace.snapshot()
    chosen = frozenset(select(snapshot, jobs)) if jobs else None
    poll_once(config, chosen, note if as_json else print_text)
    if as_json:
        now = workspace.records()
        print_json({"changed": {job: one.state for job, one in now.items() if one != snapshot.records.get(job)}})


def _wait(workspace: Workspace, ids: list[str], options: SubmissionOptions, *, follow: bool) -> int:
    from dispatcher.cli.waiting import goes_on_when_interrupted, wait_for

    if follow:
        from dispatcher.cli.log_follow import Follower
        from dispatcher.cli.log_lines import Choice, Output
        from dispatcher.pod.waiting import SLOT

        choice = Choice(hosts_file=options.hosts_file)
        with goes_on_when_interrupted(ids):
            Follower(workspace, Output(sys.stdout.buffer), choice, names_jobs=False, expected=SLOT).follow(ids)
    return wait_for(workspace, ids, options.hosts_file)


def _submit_queued(
    workspace: Workspace, jobs: tuple[str, ...], where: Where, options: SubmissionOptions, *, follow: bool
) -> tuple[list[str], int]:
    config = options.config(layout())
    snapshot = workspace.snapshot()
    try:
        chosen = _queued(snapshot, jobs, where)
    except UsageError as error:
        if not jobs:
            raise
        raise UsageError(f"{error}\nTo run a command: dispatcher submit [OPTIONS] -- {' '.join(jobs)} ...") from None
    if follow:
        refuse_several(len(chosen))
    entries = {job: snapshot.entries[job] for job in chosen if job in snapshot.entries}
    targets = choose_targets(config, options, entries, _manifests(config, snapshot, chosen))
    return chosen, submit_jobs(config, options, targets)


def _queued(snapshot: Snapshot, names: tuple[str, ...], where: Where) -> list[str]:
    """The jobs to submit. Globs and --where select queued ones; UsageError for another that is named exactly."""
    from dispatcher.query.selection import is_glob, select

    if not names and not where:
        raise UsageError("name the jobs: ids, globs such as 'fft_*', or --where key=value; or a command after `--`")
    selected = select(snapshot, names, where=where)
    others = {job: snapshot.records[job].state for job in selected if snapshot.records[job].state is not State.QUEUED}
    exact = [f"{job} is {state}" for job, state in others.items() if job in names]
    if exact:
        raise StateError(
            f"only queued jobs can be submitted: {', '.join(shortened(exact))}. Queue it with `dispatcher requeue`"
        )
    chosen = [job for job in selected if job not in others]
    if not chosen:
        none = "is queued" if any(map(is_glob, names)) or where else "matches"
        raise StateError(f"nothing to submit: no such job {none}")
    return chosen


def _manifests(config: Config, snapshot: Snapshot, jobs: list[str]) -> dict[str, Path | None]:
    """The manifest that lists each job: the default one, else any other of the workspace; None: it was submitted."""
    from dispatcher.errors import ManifestError
    from dispatcher.matrix.submitted import is_submitted
    from dispatcher.query.manifests import ManifestCache

    entries = snapshot.entries
    submitted = [job for job in jobs if job in entries and is_submitted(entries[job])]
    found: dict[str, Path | None] = dict.fromkeys(submitted)
    if len(found) == len(jobs):
        return found
    cache = ManifestCache(config.layout.saved_entries)
    for path in dict.fromkeys([config.matrix, *config.layout.manifests()]):
        listed = cache.read(path)
        if not isinstance(listed, ManifestError):
            found.update({job: path for job in jobs if job in listed and job not in found})
    missing = [job for job in jobs if job not in found]
    if missing:
        raise StateError(f"no manifest lists {', '.join(shortened(missing))}: {snapshot.unknown_job}")
    return found
