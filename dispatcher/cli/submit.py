"""`dispatcher submit JOB...` and `dispatcher poll`: hosts and clusters without a pod that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dispatcher.cli.common import jobs_argument, open_workspace, where_option
from dispatcher.cli.hardware import hosts_option
from dispatcher.cli.printing import print_text
from dispatcher.cli.submission import SubmissionOptions, choose_targets, submission_options, submit_jobs
from dispatcher.errors import StateError, UsageError
from dispatcher.matrix.condition import Where
from dispatcher.run_state.states import State

if TYPE_CHECKING:
    from pathlib import Path

    from dispatcher.config import Config
    from dispatcher.report.snapshot import Snapshot


@click.command()
@jobs_argument
@where_option
@submission_options
def submit(jobs: tuple[str, ...], where: Where, options: SubmissionOptions) -> int:
    """Submit queued jobs to hosts and clusters, once.

    Select them by ids, globs and --where. With --chip, -n, --mem and the like the best host is chosen, and the jobs ask
    for that instead of what their entries say. Waits until each job was accepted or refused; it then runs on by itself,
    and any pod of this workspace, or `dispatcher poll`, records how it ends. Ctrl-C ends the waiting, not the jobs.
    """
    workspace = open_workspace()
    config = options.config(workspace.layout)
    snapshot = workspace.snapshot()
    chosen = _queued(snapshot, jobs, where)
    manifests = _manifests(config, snapshot, chosen)
    entries = {job: snapshot.entries[job] for job in chosen}
    return submit_jobs(config, options, choose_targets(config, options, entries, manifests))


@click.command()
@jobs_argument
@hosts_option
def poll(jobs: tuple[str, ...], hosts_file: Path | None) -> None:
    """Record what has become of jobs that no live pod looks after, such as those of `submit`.

    Asks every host that has some, once, and prints what has changed. Jobs that were cancelled, held or requeued
    meanwhile are told to stop.
    """
    from dispatcher.config import load_config
    from dispatcher.pod.options import PodOptions
    from dispatcher.pod.run import run_pod
    from dispatcher.pod.short_lived import unique_name
    from dispatcher.report.selection import select

    workspace = open_workspace()
    snapshot = workspace.snapshot()
    chosen = frozenset(select(snapshot, jobs)) if jobs else None
    config = load_config(workspace.layout, hosts_file)
    # A workspace may have none but matrix/submitted.json.
    manifest = None if config.matrix.exists() else next(iter(config.layout.manifests()), None)
    options = PodOptions(pod=unique_name("poll"), matrix=manifest, jobs=chosen, once=True, on_exit="leave")
    run_pod(config.layout, config, options, log=print_text)


def _queued(snapshot: Snapshot, names: tuple[str, ...], where: Where) -> list[str]:
    """The jobs to submit. Globs and --where select queued ones; UsageError for another that is named exactly."""
    from dispatcher.report.selection import is_glob, select

    if not names and not where:
        raise UsageError("name the jobs: ids, globs such as 'fft_*', or --where key=value")
    selected = select(snapshot, names, where=where)
    others = {job: snapshot.records[job].state for job in selected if snapshot.records[job].state is not State.QUEUED}
    exact = [f"{job} is {state}" for job, state in others.items() if job in names]
    if exact:
        raise StateError(f"only queued jobs can be submitted: {', '.join(exact)}. Queue it with `dispatcher requeue`")
    chosen = [job for job in selected if job not in others]
    if not chosen:
        none = "is queued" if any(map(is_glob, names)) or where else "matches"
        raise StateError(f"nothing to submit: no such job {none}")
    return chosen


def _manifests(config: Config, snapshot: Snapshot, jobs: list[str]) -> dict[str, Path]:
    """The manifest that lists each job: the default one, else any other of the workspace."""
    from dispatcher.errors import ManifestError
    from dispatcher.report.manifests import ManifestCache

    found: dict[str, Path] = {}
    cache = ManifestCache(config.layout.saved_entries)
    for path in dict.fromkeys([config.matrix, *config.layout.manifests()]):
        entries = cache.read(path)
        if not isinstance(entries, ManifestError):
            found.update({job: path for job in jobs if job in entries and job not in found})
    missing = [job for job in jobs if job not in found]
    if missing:
        raise StateError(f"no manifest lists {', '.join(missing)}: {snapshot.unknown_job}")
    return found
