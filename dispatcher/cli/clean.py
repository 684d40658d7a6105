"""`dispatcher clean`: remove what old attempts have left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dispatcher.base.messages import bytes_text, counted, first_names
from dispatcher.base.times import ago
from dispatcher.cli.common import WholeNumber, jobs_argument, json_option, layout, open_workspace, where_option
from dispatcher.cli.disk import Progress
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import note, print_json, print_rows
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.cleaning.plan import Item, RemovalPlan

_COLUMNS: Final = ("what", "files", "size", "last used")
_NARROWING: Final = Narrowing(shrink=("what",), drop=("last used",), keep=("what", "size"))
_FAILED: Final = 1


def _read_age(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float:
    from dispatcher.base.values import BadValueError, parse_duration

    if value is None:
        return 0.0
    try:
        return parse_duration(value)
    except BadValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for, as it was given on the command line."""

    attempts: bool
    blobs: bool
    checkpoints: bool
    keep: int | None
    periodic: bool
    older_than: float

    def plan(
        self, workspace: Workspace, jobs: tuple[str, ...], where: Where, on_job: Callable[[int], None]
    ) -> RemovalPlan:
        if self.periodic and not self.checkpoints:
            raise UsageError("--periodic says which checkpoints may go: add --checkpoints")
        given = {"attempts": self.attempts, "blobs": self.blobs, "checkpoints": self.checkpoints}
        # Without a choice it is both, but what is shared is of no job.
        what = [kind for kind, is_given in given.items() if is_given] or [
            "attempts",
            *([] if jobs or where else ["blobs"]),
        ]
        return workspace.clean(
            jobs,
            what=what,
            where=where,
            keep=self.keep,
            older_than_s=self.older_than,
            periodic=self.periodic,
            on_job=on_job,
        )


@click.command()
@jobs_argument
@click.option("--attempts", is_flag=True, help="Logs and other files of old attempts of jobs that have ended.")
@click.option("--blobs", is_flag=True, help="Recorded differences, package lists and archives that nothing refers to.")
@click.option("--checkpoints", is_flag=True, help="Checkpoints of job classes beyond their retention.")
@click.option(
    "--keep",
    type=WholeNumber(1),
    metavar="N",
    help="Keep the last N attempts of each job [default: 1], or with --checkpoints its last N checkpoints [default: as "
    "many as the job keeps].",
)
@click.option(
    "--hosts",
    "on_hosts",
    is_flag=True,
    help="Code that attempts have left on the configured hosts, and files of their submissions.",
)
@click.option("--periodic", is_flag=True, help="With --checkpoints: also those that are kept every so many steps.")
@click.option(
    "--older-than",
    callback=_read_age,
    metavar="TIME",
    help="Only what ended, or was last used, longer ago than that: 14d, 12h.",
)
@where_option
@click.option("-y", "--yes", is_flag=True, help="Remove what is listed; without this option nothing is removed.")
@json_option
def clean(jobs: tuple[str, ...], where: Where, yes: bool, as_json: bool, on_hosts: bool, **options: Any) -> int:
    """List what can be removed, and with --yes remove it.

    Looks at JOB... (ids or globs), or at all jobs: at attempts and blobs, unless options say otherwise. The last
    attempt of a job, the last one that succeeded, the last checkpoint and what may be running are never touched. The
    records of removed attempts stay, so `show`, `results` and `usage` still have them.
    """
    if on_hosts:
        others = [name for name in ("attempts", "blobs", "checkpoints", "keep", "periodic") if options[name]]
        if jobs or where or others:
            raise UsageError("--hosts looks at the hosts alone: it goes with --older-than, --yes and --json only")
        return _clean_hosts(options["older_than"], yes=yes, as_json=as_json)
    workspace, progress = open_workspace(), Progress()
    plan = _Options(**options).plan(workspace, jobs, where, progress.tell)
    progress.clear()
    if as_json:
        return _as_json(plan, yes=yes)
    items = plan.items
    if items:
        print_rows([_shown(item) for item in items], "plain", _COLUMNS, narrowing=_NARROWING)
    for why, names in sorted(plan.skipped.items()):
        note(f"{counted(len(names), 'attempt')} left alone ({first_names(names)}): {why}")
    for why, names in sorted(plan.unlooked.items()):
        note(f"checkpoints of {counted(len(names), 'job')} left alone ({first_names(names)}): {why}")
    if not items:
        click.echo("nothing to remove")
        return 0
    if not yes:
        click.echo(f"{_sum(plan.size.files, plan.size.bytes)} could be removed: add --yes")
        return 0
    plan.remove()
    assert plan.removed is not None
    for line in plan.removed.failed:
        note(f"not removed: {line}")
    click.echo(f"{_sum(plan.removed.size.files, plan.removed.size.bytes)} removed")
    return _FAILED if plan.removed.failed else 0


def _clean_hosts(older_than_s: float, *, yes: bool, as_json: bool) -> int:
    from dispatcher.cleaning import hosts
    from dispatcher.config import load_config

    hosts_file = os.environ.get("DISPATCHER_HOSTS")
    config = load_config(layout(), Path(hosts_file) if hosts_file else None)
    workspace = open_workspace()
    workspace.store.refresh()
    left = hosts.leftovers(config, workspace.store.records, older_than_s)
    size = sum(one.bytes for one in left.found)
    if not as_json:
        shown = [{"what": one.what, "size": bytes_text(one.bytes), "last used": ago(one.age_s)} for one in left.found]
        if shown:
            print_rows(shown, "plain", ("what", "size", "last used"), narrowing=_NARROWING)
    problems = [*left.problems, *(hosts.remove(config, left.found) if yes and left.found else [])]
    for line in problems:
        note(line)
    if as_json:
        items = [{"what": one.what, "bytes": one.bytes, "age_s": one.age_s} for one in left.found]
        print_json({"items": items, "removed": yes, "bytes": size, "failed": problems})
    elif not left.found:
        click.echo("nothing to remove")
    else:
        number = counted(len(left.found), "directory", "directories")
        click.echo(f"{number}, {bytes_text(size)}, {'removed' if yes else 'could be removed: add --yes'}")
    return _FAILED if problems else 0


def _as_json(plan: RemovalPlan, *, yes: bool) -> int:
    skipped = [{"what": name, "why": why} for why, names in plan.skipped.items() for name in names]
    skipped += [{"what": f"checkpoints of {job}", "why": why} for why, jobs in plan.unlooked.items() for job in jobs]
    items = [msgspec.to_builtins(item) for item in plan.items]
    if yes:
        plan.remove()
    size = plan.size if plan.removed is None else plan.removed.size
    failed = [] if plan.removed is None else plan.removed.failed
    print_json(
        {
            "items": items,
            "skipped": sorted(skipped, key=lambda row: row["what"]),
            "removed": yes,
            "files": size.files,
            "bytes": size.bytes,
            "failed": failed,
        }
    )
    return _FAILED if failed else 0


def _shown(item: Item) -> dict[str, Any]:
    return {
        "what": item.what,
        "files": item.files,
        "size": bytes_text(item.bytes),
        "last used": ago(max(0.0, time.time() - item.at_s)),
    }


def _sum(files: int, size: int) -> str:
    return f"{counted(files, 'file')}, {bytes_text(size)},"
