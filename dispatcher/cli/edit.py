"""`dispatcher edit`: change status lines in an editor; they are checked before they are applied, as with visudo."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import click

from dispatcher.base.messages import counted
from dispatcher.cli.common import jobs_argument, open_workspace, state_option, where_option
from dispatcher.errors import StateError, StatusFileError, UsageError
from dispatcher.matrix.condition import Where

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.run_state.edits.changes import Changes
    from dispatcher.run_state.states import Record


@click.command()
@jobs_argument
@state_option
@where_option
@click.option("--clear-refused", is_flag=True, help="Only clear refused hand edits, of these jobs or of all.")
def edit(jobs: tuple[str, ...], states: tuple[str, ...], where: Where, clear_refused: bool) -> None:
    """Edit status lines in $EDITOR, and apply the changes.

    Select jobs by ids, globs, --state and --where; by default all. You can change state (queued, held, abandoned; done
    or failed if the job is not running), priority, and fields of your own.
    """
    from dispatcher.doctor.fitness import refuse_read_only

    workspace = open_workspace()
    refuse_read_only(workspace.layout)
    if clear_refused:
        cleared = workspace.clear_refused(jobs)
        click.echo(f"{counted(len(cleared), 'refused hand edit')} cleared")
        return
    from dispatcher.query.selection import parse_states, select
    from dispatcher.run_state.edits import status_file

    editor = _editor()
    snapshot = workspace.snapshot()
    chosen = [job for job in select(snapshot, jobs, parse_states(states), where) if job in workspace.store.records]
    if not chosen:
        raise UsageError("nothing to edit: no such job has a status line")
    shown = {job: workspace.store.records[job] for job in chosen}
    before = status_file.render(shown)
    after = _edit_until_valid(workspace, editor, before, shown)
    if after is None:
        click.echo("nothing was changed")
    else:
        _apply(workspace, after)


def _editor() -> str:
    """The person's own editor, else vi. Raises UsageError without a terminal, where vi would wait for keys for ever."""
    own = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if own:
        # It may need no terminal: a script, or an editor in a window of its own.
        return own
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "there is no terminal for vi, and EDITOR is not set: set EDITOR to a program that needs none "
            "(EDITOR='sed -i s/held/queued/'), or use `dispatcher requeue`, `hold`, `cancel` or `mark`"
        )
    return "vi"


def _edit_until_valid(workspace: Workspace, editor: str, before: bytes, shown: Mapping[str, Record]) -> bytes | None:
    """The saved file, free of faults; None when nothing was changed or the person gave up."""
    with _copy(before) as path:
        while True:
            _open(editor, path)
            after = _read(editor, path)
            if after == before:
                return None
            faults = _faults(workspace, after, shown)
            if not faults:
                return after
            for fault in faults:
                click.echo(f"dispatcher: {fault}", err=True)
            if not sys.stdin.isatty():
                raise StateError("nothing was applied: correct the lines and edit again")
            if not click.confirm("Edit again?", default=True, err=True):
                return None


@contextlib.contextmanager
def _copy(data: bytes) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="dispatcher-edit-") as directory:
        path = os.path.join(directory, "matrix_status.json")
        with open(path, "wb") as file:
            file.write(data)
        yield path


def _open(editor: str, path: str) -> None:
    try:
        code = subprocess.run([*shlex.split(editor), path], check=False).returncode
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot start the editor {editor!r} ({error}): set EDITOR") from None
    if code != 0:
        raise UsageError(f"the editor {editor!r} exited with status {code}: nothing was changed")


def _read(editor: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        problem = f"the editor {editor!r} left no file to read ({error.strerror})"
        raise UsageError(f"{problem}: nothing was changed. Set EDITOR to a program that saves its file") from None


def _faults(workspace: Workspace, after: bytes, shown: Collection[str]) -> list[str]:
    """What is wrong with the saved file."""
    from dispatcher.run_state.edits import status_file

    try:
        lines = status_file.parse(after, "the edited copy")
    except StatusFileError as error:
        return [str(error)]
    gone = [job for job in shown if job not in lines]
    faults = [f"{job}: the line was removed; `dispatcher delete {job}` removes a record" for job in gone[:5]]
    if len(gone) > len(faults):
        faults.append(f"... and {len(gone) - len(faults)} more lines")
    return faults + [f"{one.job}: {one.why}" for one in _changes(workspace, after).refusals]


def _changes(workspace: Workspace, after: bytes) -> Changes:
    """The changes that the edited lines make to the current records."""
    store = workspace.store
    problem = store.problem
    found = store.find_edits(after, is_whole=False)
    # A fault of the copy is not a fault of the status file.
    store.problem = problem
    return found


def _apply(workspace: Workspace, after: bytes) -> None:
    with workspace.transaction() as tx:
        found = _changes(workspace, after)
        for edit in found.edits:
            tx.change(edit.job, edit.event, edit.change, extra=edit.extra)
    for edit in found.edits:
        click.echo(f"{edit.job}: {edit.event}")
    if found.refusals:
        raise StateError("\n".join(f"{one.job}: changed while you were editing: {one.why}" for one in found.refusals))
    if not found.edits:
        click.echo("nothing was changed")
