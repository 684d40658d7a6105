"""`dispatcher export`: results and metrics for TensorBoard and Weights & Biases, after the fact."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

import click

from dispatcher.base.messages import counted
from dispatcher.cli.common import json_option, open_workspace, state_option, where_option
from dispatcher.cli.printing import note, print_json, print_text
from dispatcher.matrix.condition import Where

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.query.export.runs import Run


class _Export(Protocol):
    def export(self, run: Run) -> bool: ...

    def close(self) -> None: ...


@click.group()
def export() -> None:
    """Write results and metrics for TensorBoard or Weights & Biases, a run per job.

    Parameters are those that the jobs ran with. A later export writes only what has changed since; one that was
    interrupted can be run again.
    """


@export.command()
@click.argument("directory", type=click.Path(file_okay=False))
@where_option
@state_option
@json_option
def tensorboard(directory: str, where: Where, states: tuple[str, ...], as_json: bool) -> None:
    """Write event files for TensorBoard.

    There is a directory for each job in DIRECTORY; `tensorboard --logdir DIRECTORY` shows them.
    """
    from dispatcher.outlets.batch.identity import workspace_id
    from dispatcher.query.export.tensorboard import TensorBoardExport

    workspace = open_workspace()
    target = TensorBoardExport(directory, workspace_id(workspace.layout))
    _export(workspace, target, where, states, os.path.abspath(directory), as_json=as_json)


@export.command()
@click.option("--project", required=True, metavar="NAME", help="The project on Weights & Biases.")
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False), default=".", metavar="DIR",
    help="Where W&B keeps its files, in wandb/.  [default: the current directory]",
)  # fmt: skip
@where_option
@state_option
@json_option
def wandb(project: str, directory: str, where: Where, states: tuple[str, ...], as_json: bool) -> None:
    """Write runs of a project on Weights & Biases.

    With WANDB_MODE=offline they are written into files, which `wandb sync` uploads.
    """
    from dispatcher.outlets.batch.identity import workspace_id
    from dispatcher.query.export.wandb import WandbExport

    workspace = open_workspace()
    target = WandbExport(project, directory, workspace_id(workspace.layout))
    _export(workspace, target, where, states, f"project {project}", as_json=as_json)
    if target.is_offline:
        note(f"offline: `wandb sync {os.path.join(directory, 'wandb')}/offline-run-*` uploads them")


def _export(
    workspace: Workspace, target: _Export, where: Where, states: tuple[str, ...], into: str, *, as_json: bool
) -> None:
    from dispatcher.query.export.runs import runs_of

    found = workspace.results(states=states, where=where, every_job=True)
    runs = runs_of(workspace.layout, workspace.records(), found)
    written = unchanged = 0
    try:
        for run in runs:
            if target.export(run):
                written += 1
            else:
                unchanged += 1
            for fault in run.faults:
                note(fault)
    finally:
        target.close()
        left = len(runs) - written - unchanged
        rest = f", {left} not reached: run it again" if left else ""
        if as_json:
            print_json({"into": into, "written": written, "unchanged": unchanged, "left": left})
        else:
            print_text(f"{into}: {counted(written, 'run')} written, {unchanged} unchanged{rest}")
