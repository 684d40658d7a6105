"""`dispatcher submit`, of queued jobs or of a new command, and `dispatcher poll`."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dispatcher.base.messages import counted, shortened
from dispatcher.cli.command_options import CommandOptions, TakesCommand, command_options, given_command
from dispatcher.cli.common import confirm, jobs_argument, json_option, layout, open_workspace, where_option
from dispatcher.cli.hardware import NO_HOSTS, HardwareOptions, hardware_options, hosts_option
from dispatcher.cli.host_overrides import override_options
from dispatcher.cli.one_argument import one_argument
from dispatcher.cli.outlet_option import read_outlets
from dispatcher.cli.printing import note, print_json, print_rows, print_text
from dispatcher.cli.time_limit import timeout_option
from dispatcher.cli.vms import create_missing, yes_option
from dispatcher.config import CodeMode, Config, load_config
from dispatcher.errors import INTERRUPTED, StateError, UsageError, nearest
from dispatcher.hosts.overrides import HostOverrides
from dispatcher.matrix.condition import Where
from dispatcher.run_state.states import WAITING, State
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.matrix.entry import Entry
    from dispatcher.query.snapshot import Snapshot
    from dispatcher.run_state.states import Record
    from dispatcher.submitting import Destination, Handover, Submission, Target

# More new jobs than this are added only after a question.
_MANY: Final = 1000
_COLUMNS: Final = ("job", "outlet", "handle", "state", "error")


class SubmissionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was given on the command line. `code` None: the setting of dispatcher.yaml."""

    outlets: tuple[str, ...] = ()
    hosts_file: Path | None = None
    host_overrides: HostOverrides = HostOverrides()
    hardware: HardwareOptions = HardwareOptions()
    code: CodeMode | None = None
    is_dry_run: bool = False
    yes: bool = False
    as_json: bool = False

    def goes_to_hosts(self, hosts: Collection[str]) -> bool:
        """Whether a new job is submitted to one of these hosts at once, and not left to pods."""
        hardware = self.hardware
        asks = hardware.chip is not None or hardware.nodes is not None
        named = self.outlets or hardware.clusters or hardware.excluded_clusters or self.code is not None
        return bool(named) or self.host_overrides != HostOverrides() or (asks and bool(hosts))

    def config(self, layout: Layout) -> Config:
        """The configuration of the workspace with the hosts of `--hosts`, changed as the options say."""
        config = load_config(layout, self.hosts_file)
        named = [name.partition(":")[0] for name in self.outlets]
        meant = named if named and "auto" not in named else config.hosts.hosts
        return msgspec.structs.replace(config, hosts=self.host_overrides.over(config.hosts, meant))

    def destination(self, config: Config) -> Destination:
        """Where jobs go. Raises UsageError for a host and for a cluster that is not configured."""
        from dispatcher.submitting import Destination

        if not config.hosts.hosts:
            raise UsageError(NO_HOSTS.format(config.layout.config_file))
        self.hardware.check_clusters(config.hosts)
        return Destination(
            hosts=self._hosts(config),
            by_hardware=self.hardware.are_given or "auto" in self.outlets,
            over=self.hardware.over,
            changes_requests=self.hardware.are_given,
        )

    def _hosts(self, config: Config) -> tuple[str, ...]:
        """The hosts that `--outlet` names; none for `auto`, or without it."""
        names = [name for name in self.outlets if name != "auto"]
        asked = read_outlets(names, 1, config.hosts)
        for name in asked.submissions:
            if name not in config.hosts.hosts:
                raise UsageError(f"--outlet {name}: no such host is configured{nearest(name, config.hosts.hosts)}")
        if asked.cpu_slots and names:
            raise UsageError("--outlet local: jobs of this host are run by a pod: `dispatcher --pod NAME --slots N`")
        return tuple(asked.submissions)

    def handover(self, config: Config) -> Handover:
        """How jobs are handed to the hosts."""
        from dispatcher.submitting import Handover

        return Handover(config=config, code=self.code, log=note)


# Of commands that submit, as one argument `options`.
submission_options: Final = one_argument("options", SubmissionOptions, (
    click.option(
        "--outlet", "outlets", multiple=True, metavar="HOST",
        help="Submit to this configured host; repeat for several, the preferred first; auto: the best of all.",
    ),
    hardware_options,
    hosts_option,
    override_options(),
    click.option(
        "--dirty", "code", type=click.UNPROCESSED, flag_value=CodeMode.DIRTY, default=None,
        help="Run the tracked files as they are now, shipped to the host.",
    ),
    click.option(
        "--clean", "code", type=click.UNPROCESSED, flag_value=CodeMode.SHIP,
        help="Run the code of HEAD, shipped to the host.",
    ),
    click.option(
        "--dry-run", "is_dry_run", is_flag=True, help="Show the entries, or where the jobs would go; change nothing."
    ),
    yes_option,
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
))  # fmt: skip


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
        ids, status = _submit_new(workspace, command, job, options, is_awaited=wait or follow, follow=follow)
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
        _refuse_several(len(chosen))
    entries = {job: snapshot.entries[job] for job in chosen if job in snapshot.entries}
    return chosen, submit_jobs(config, options, entries, _manifests(config, snapshot, chosen))


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


def _submit_new(
    workspace: Workspace,
    command: tuple[str, ...],
    job: CommandOptions,
    options: SubmissionOptions,
    *,
    is_awaited: bool,
    follow: bool,
) -> tuple[list[str], int]:
    """Add jobs of a command, and submit them where that was asked for; their ids and the exit status."""
    from dispatcher.submitting import Submission

    config = options.config(layout())
    new = job.new_jobs(command, workspace.layout, options.hardware)
    if follow:
        _refuse_several(len(new.rows))
    if len(new.rows) > _MANY and not options.is_dry_run:
        confirm(f"submit {counted(len(new.rows), 'job')}?", yes=options.yes)
    submission = Submission(workspace, new)
    if options.goes_to_hosts(config.hosts.hosts):
        return submit_at_once(submission, config, options)
    if options.is_dry_run:
        _print_documents(submission.documents, options)
        return [], 0
    ids = submission.add()
    if submission.warning:
        note(submission.warning)
    rows = [{"job": one, "outlet": None, "handle": None, "state": State.QUEUED.value, "error": None} for one in ids]
    _print_ids(ids, rows, options)
    if not is_awaited:
        _note_where(workspace, ids)
    return ids, 0


def submit_jobs(
    config: Config, options: SubmissionOptions, entries: Mapping[str, Entry], manifests: Mapping[str, Path | None]
) -> int:
    """Submit these queued jobs, or show where they would go; the exit code: 1 when one was not accepted."""
    from dispatcher.submitting import choose_targets

    targets = choose_targets(config, options.destination(config), entries, manifests)
    if options.is_dry_run:
        rows = [{"job": job, "outlet": target.outlets_text} for job, target in targets.items()]
        _print_rows(rows, options, ("job", "outlet"))
        return 0
    groups: dict[Target, list[str]] = {}
    for job, target in targets.items():
        groups.setdefault(target, []).append(job)
    for outlets in dict.fromkeys(target.outlets for target in groups):
        create_missing(config, outlets, yes=options.yes)
    handover = options.handover(config)
    for target, jobs in groups.items():
        handover.run(target, jobs)
    rows = _rows(config, targets)
    _print_rows(rows, options)
    return int(not all(row["handle"] for row in rows))


def submit_at_once(submission: Submission, config: Config, options: SubmissionOptions) -> tuple[list[str], int]:
    """Hand new jobs to hosts, which their entries name; their ids and the exit status."""
    from dispatcher.submitting import choose_targets, merged

    entries = submission.entries
    chosen = choose_targets(config, options.destination(config), entries, dict.fromkeys(entries))
    submission.name_hosts(config, chosen)
    if options.is_dry_run:
        _print_documents(submission.documents, options)
        return [], 0
    submission.keep_code(is_extracted=True)
    targets = list(chosen.values())
    create_missing(config, merged(targets).outlets, yes=options.yes)

    def tell() -> None:
        if submission.warning:
            note(submission.warning)
        _print_ids(submission.ids, [], options)

    # What entries cannot say no other pod would do.
    holds_rest = options.code is not None or options.host_overrides != HostOverrides()
    if not submission.hand_over(options.handover(config), targets, tell, holds_rest=holds_rest):
        note("interrupted: nothing was submitted")
        return [], INTERRUPTED
    return _report(_rows(config, dict(zip(submission.ids, targets, strict=True))), options)


def _report(rows: list[dict[str, Any]], options: SubmissionOptions) -> tuple[list[str], int]:
    if options.as_json:
        _print_rows(rows, options)
    else:
        for row in rows:
            known = [row["outlet"], row["handle"] and f"handle {row['handle']}", row["state"], row["error"]]
            note(f"{row['job']}: {', '.join(filter(None, known))}")
    return [row["job"] for row in rows], int(not all(row["handle"] for row in rows))


def _print_documents(documents: list[dict[str, Any]], options: SubmissionOptions) -> None:
    """The entries as they would be written."""
    if options.as_json:
        print_json(documents)
        return
    for one in documents:
        click.echo(json.dumps(one, ensure_ascii=False))


def _print_ids(ids: list[str], rows: list[dict[str, Any]], options: SubmissionOptions) -> None:
    """The ids and nothing else: a script reads them. At once, as waiting for the jobs may take days."""
    if options.as_json:
        if rows:
            _print_rows(rows, options)
    else:
        click.echo("\n".join(ids))
    sys.stdout.flush()


def _note_where(workspace: Workspace, ids: list[str]) -> None:
    """Say why the jobs may not begin soon."""
    from dispatcher.cli.wait_notes import START_A_POD, WaitNotes
    from dispatcher.pod.waiting import SLOT

    WaitNotes(workspace, START_A_POD).tell(ids, expected=SLOT)


def _refuse_several(count: int) -> None:
    if count > 1:
        raise UsageError(
            f"--follow is for one job, and this would be {count}, so nothing was submitted: use --wait for several, "
            "and `dispatcher logs -f` beside it"
        )


def _rows(config: Config, targets: Mapping[str, Target]) -> list[dict[str, Any]]:
    """What has become of jobs that were submitted; without a `handle` one was not accepted."""
    from dispatcher.api import Workspace

    records = Workspace(config.layout.root).records()
    return [_row(job, records.get(job), target) for job, target in targets.items()]


def _row(job: str, record: Record | None, target: Target) -> dict[str, Any]:
    is_queued = record is None or record.state in WAITING
    return {
        "job": job,
        "outlet": target.outlets_text if record is None or is_queued else record.outlet,
        "handle": None if record is None else record.handle,
        "state": "queued" if record is None else record.state.value,
        "error": None if record is None else record.error,
    }


def _print_rows(rows: list[dict[str, Any]], options: SubmissionOptions, columns: Sequence[str] = _COLUMNS) -> None:
    """The rows, as a table or as JSON."""
    if options.as_json:
        print_json(rows)
    else:
        print_rows(rows, "plain", columns)
