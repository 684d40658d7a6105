"""`dispatcher init --adopt FILE`: the records of a lab's own status file become the run state."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dispatcher.base.messages import counted, first_names
from dispatcher.cli.printing import print_json
from dispatcher.errors import StateError

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.run_state.edits.changes import Edit
    from dispatcher.workspace import Layout

_REFUSED_SHOWN: Final = 20
_EXTERNAL: Final = "running (external)"
_REFUSED: Final = "refused, held"


def adopt_file(layout: Layout, file: Path, *, as_json: bool) -> None:
    """Adopt the records of `file` and print the result. A second call changes nothing."""
    from dispatcher.api import Workspace
    from dispatcher.run_state import journal
    from dispatcher.run_state.adoption import read_lab_file

    if not layout.root.is_dir():
        raise StateError(f"{layout.root}: no such directory; name the workspace that has your manifest")
    file = file.absolute()
    workspace = Workspace(layout.root)
    if journal.generations(workspace.layout):
        _report_adopted(workspace, as_json=as_json)
        return
    if os.path.lexists(workspace.layout.status_file) and not os.path.samefile(workspace.layout.status_file, file):
        raise StateError(
            f"{workspace.layout.status_file} exists already, and the next dispatcher will use it; to use "
            f"{file} instead, move it away. Nothing was changed"
        )
    # Raises before anything is created if the file cannot be used.
    read_lab_file(workspace.layout, file)
    if _take_over(workspace, file):
        _report(workspace, file, as_json=as_json)
    else:
        _report_adopted(workspace, as_json=as_json)


def _take_over(workspace: Workspace, file: Path) -> bool:
    """Create the run state from `file`; False when another process was faster."""
    from dispatcher.base import files

    layout, store = workspace.layout, workspace.store
    with files.shared_umask(layout.root), files.storing("laying the workspace in", layout.root):
        for directory in (layout.matrix_dir, layout.templates_dir, layout.scripts_dir):
            os.makedirs(directory, exist_ok=True)
    store.first.adopt_from = file
    with workspace.transaction():
        pass
    return store.first.began_with == file


def _report_adopted(workspace: Workspace, *, as_json: bool) -> None:
    workspace.store.refresh(to_the_end=True)
    count = len(workspace.store.records)
    if as_json:
        print_json({"workspace": workspace.layout.root, "adopted": {}, "refused": {}, "jobs": count})
        return
    click.echo(
        f"{workspace.layout.root}: already adopted: the run state has {counted(count, 'job')}. "
        "Nothing was changed; see `dispatcher status`"
    )


def _report(workspace: Workspace, file: Path, *, as_json: bool) -> None:
    from dispatcher.cli.printing import print_rows
    from dispatcher.run_state.adoption import read_lab_file

    found = read_lab_file(workspace.layout, file)
    jobs = [edit.job for edit in found.edits]
    refused = {one.job: one.why for one in found.refusals}
    if as_json:
        adopted = dict(_rows(found.edits, refused))
        root, count = workspace.layout.root, len(workspace.store.records)
        print_json({"workspace": root, "adopted": adopted, "refused": refused, "jobs": count})
        return
    click.echo(f"{file}: {counted(len(jobs), 'job')} adopted into {workspace.layout.run_state}")
    rows = _rows(found.edits, refused)
    unknown = _unknown(workspace, jobs)
    if unknown:
        rows.append(("in no manifest, not claimed", unknown))
    print_rows([{"state": word, "jobs": len(names), "which": first_names(names)} for word, names in rows], "plain")
    if unknown and not workspace.config.matrix.exists():
        click.echo(f"{workspace.config.matrix}: no such manifest; write `matrix: FILE` into dispatcher.yaml")
    for job, why in list(refused.items())[:_REFUSED_SHOWN]:
        click.echo(f"refused: {job}: {why}")
    if len(refused) > _REFUSED_SHOWN:
        click.echo(f"... and {len(refused) - _REFUSED_SHOWN} more: `dispatcher status` lists them")
    if not file.samefile(workspace.layout.status_file):
        click.echo(
            f"{file} is left as it is and no longer read: stop the script that writes it, or let it write "
            f"{workspace.layout.status_file}"
        )


def _rows(edits: Iterable[Edit], refused: Collection[str]) -> list[tuple[str, list[str]]]:
    """The jobs of each resulting state, in the order of the states; refused ones last."""
    from dispatcher.run_state.states import IN_FLIGHT, State

    words = {state: _EXTERNAL if state in IN_FLIGHT else state.value for state in State}
    jobs: dict[str, list[str]] = {word: [] for word in (*words.values(), _REFUSED)}
    for edit in edits:
        word = _REFUSED if edit.job in refused else words[State(str(edit.change.state))]
        jobs[word].append(edit.job)
    return [(word, names) for word, names in jobs.items() if names]


def _unknown(workspace: Workspace, jobs: Iterable[str]) -> list[str]:
    entries = workspace.snapshot().entries
    return [job for job in jobs if job not in entries]
