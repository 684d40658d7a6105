"""`dispatcher job submit NAME CONFIG.yaml`: a job class on a host or cluster, without a manifest written by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher import contract
from dispatcher.cli.common import layout, open_workspace
from dispatcher.cli.submit import SubmissionOptions, submission_options, submit_at_once, submit_jobs
from dispatcher.errors import ConfigError

if TYPE_CHECKING:
    from dispatcher.api import Workspace

# Of entries whose job has no other; it has no settings unless dispatcher.yaml has some.
_METHOD: Final = "job"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("name")
@click.argument("config_file", metavar="CONFIG.yaml", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--name", "job_id", metavar="ID", help="The job's id.  [default: NAME]")
@click.option("--method", default=_METHOD, metavar="METHOD", help="The method whose settings apply.  [default: job]")
@click.option(
    "--import", "imports", multiple=True, metavar="MODULE_OR_FILE",
    help="Import this module or .py file, for the jobs in it, beside the workspace's jobs/*.py; may be repeated.",
)  # fmt: skip
@submission_options
def job_submit(
    name: str,
    config_file: Path,
    overrides: tuple[str, ...],
    job_id: str | None,
    method: str,
    imports: tuple[str, ...],
    options: SubmissionOptions,
) -> int:
    """Submit the job class of CONFIG.yaml (see `dispatcher job configure`) as NAME, once.

    Adds an entry to matrix/submitted.jsonl and submits it like `dispatcher submit -- COMMAND`: status, logs, requeue
    and the other commands work as for any job.
    """
    from dispatcher.matrix.new_jobs import NewJobs
    from dispatcher.submitting import Submission

    config = options.config(layout())
    workspace = open_workspace()
    document = _entry(workspace, config_file, overrides, imports)
    # Also for attempts that others will submit.
    resources = {**document.get("resources", {}), **options.hardware.resources()}
    document = {**document, "method": method, "resources": resources}
    submission = Submission(workspace, NewJobs(common=document, name=job_id or name))
    if options.is_dry_run:
        return submit_jobs(config, options, submission.entries, dict.fromkeys(submission.entries))
    return submit_at_once(submission, config, options)[1]


def _entry(
    workspace: Workspace, config_file: Path, overrides: tuple[str, ...], imports: tuple[str, ...]
) -> dict[str, Any]:
    """The entry of the job as the runtime makes and checks it, in a process that may load what jobs need."""
    words = [sys.executable, "-P", "-m", "dispatcher.runtime", "entry"]
    words += [word for module in imports for word in ("--import", module)]
    ran = subprocess.run(
        [*words, "--", os.fspath(config_file), *overrides],
        env={**os.environ, contract.ROOT: os.fspath(workspace.root)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise ConfigError(ran.stderr.strip().removeprefix("dispatcher: "))
    return dict(json.loads(ran.stdout))
