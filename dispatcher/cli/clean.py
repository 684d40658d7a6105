"""`dispatcher clean`: remove what old attempts have left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dispatcher.base.messages import bytes_text, counted, first_names
from dispatcher.base.times import ago
from dispatcher.cli.common import jobs_argument, json_option, open_workspace, where_option
from dispatcher.cli.printing import note, print_json, print_rows
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where
from dispatcher.report.columns import Narrowing

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.cleaning.finding import Selection
    from dispatcher.cleaning.plan import Plan
    from dispatcher.run_state.states import Record

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

    def selection(self, jobs: tuple[str, ...], where: Where) -> Selection:
        from dispatcher.cleaning.finding import Selection

        if self.periodic and not self.checkpoints:
            raise UsageError("--periodic says which checkpoints may go: add --checkpoints")
        return Selection(
            jobs,
            where,
            self.keep,
            self.older_than,
            attempts=self.attempts or not (self.blobs or self.checkpoints),
            blobs=self.blobs or not (self.attempts or self.checkpoints or jobs or where),
            checkpoints=self.checkpoints,
            periodic=self.periodic,
        )


@click.command()
@jobs_argument
@click.option("--attempts", is_flag=True, help="Logs and other files of old attempts of jobs that have ended.")
@click.option("--blobs", is_flag=True, help="Recorded differences, package lists and archives that nothing refers to.")
@click.option("--checkpoints", is_flag=True, help="Checkpoints of job classes beyond their retention.")
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Keep the last N attempts.  [default: 1]  With --checkpoints the last N of these.  [default: as the job does]",
)
@click.option("--periodic", is_flag=True, help="With --checkpoints: also those that are kept every so many steps.")
@click.option("--older-than", callback=_read_age, metavar="TIME", help="Only what was over before that time: 14d, 12h.")
@where_option
@click.option("-y", "--yes", is_flag=True, help="Remove it; without this option it is only listed.")
@json_option
def clean(jobs: tuple[str, ...], where: Where, yes: bool, as_json: bool, **options: Any) -> int:
    """List what can be removed, and with --yes remove it.

    Of JOB... (ids, globs) or of all jobs. Without --attempts, --blobs and --checkpoints it is the first two. The last
    attempt of a job, the last one that succeeded, the last checkpoint of a job and what may be running are never
    touched; of the others the records stay, so that show, results and usage go on.
    """
    from dispatcher.cleaning.finding import find

    workspace = open_workspace()
    selection = _Options(**options).selection(jobs, where)
    plan = find(workspace.snapshot(), workspace.store, selection, by=workspace.store.by)
    rows = _rows(plan)
    if as_json:
        removed = plan.remove(lambda: _newest_records(workspace)) if yes else None
        size = plan.size if removed is None else removed.size
        failed = [] if removed is None else removed.failed
        print_json({"items": rows, "removed": yes, "files": size.files, "bytes": size.bytes, "failed": failed})
        return _FAILED if failed else 0
    if rows:
        print_rows([_shown(row) for row in rows], "plain", _COLUMNS, narrowing=_NARROWING)
    for why, names in sorted(plan.skipped.items()):
        note(f"{counted(len(names), 'attempt')} left alone ({first_names(names)}): {why}")
    for why, names in sorted(plan.unlooked.items()):
        note(f"checkpoints of {counted(len(names), 'job')} left alone ({first_names(names)}): {why}")
    if not rows:
        click.echo("nothing to remove")
        return 0
    if not yes:
        click.echo(f"{_sum(plan.size.files, plan.size.bytes)} could be removed: add --yes")
        return 0
    removed = plan.remove(lambda: _newest_records(workspace))
    for line in removed.failed:
        note(f"not removed: {line}")
    click.echo(f"{_sum(removed.size.files, removed.size.bytes)} removed")
    return _FAILED if removed.failed else 0


def _newest_records(workspace: Workspace) -> Mapping[str, Record]:
    workspace.store.refresh()
    return workspace.store.records


def _rows(plan: Plan) -> list[dict[str, Any]]:
    rows = [
        {
            "what": f"jobs/{one.job}/{one.number}",
            "files": one.size.files,
            "bytes": one.size.bytes,
            "at_s": one.over_at_s,
        }
        for one in plan.attempts
    ]
    rows += [
        {
            "what": plan.shown(one),
            "files": one.size.files,
            "bytes": one.size.bytes,
            "at_s": one.saved_at_s,
        }
        for one in plan.checkpoints
    ]
    return rows + [
        {"what": one.path, "files": one.size.files, "bytes": one.size.bytes, "at_s": one.unused_since_s}
        for one in plan.orphans
    ]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "what": row["what"],
        "files": row["files"],
        "size": bytes_text(row["bytes"]),
        "last used": ago(max(0.0, time.time() - row["at_s"])),
    }


def _sum(files: int, size: int) -> str:
    return f"{counted(files, 'file')}, {bytes_text(size)},"
