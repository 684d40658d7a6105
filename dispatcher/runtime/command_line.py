"""The program that runs inside a job: `python -m dispatcher.runtime attempt`, and the commands of `dispatcher job`.

It turns errors into messages and exit codes. The CLI starts it as a process, so that it never loads JAX itself;
commands that need no device import JAX late for the same reason.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dispatcher import contract
from dispatcher.base.yaml_text import dump
from dispatcher.errors import INTERRUPTED, ConfigError, DispatcherError, UsageError
from dispatcher.runtime import launching
from dispatcher.runtime.job_file import JobFile, read_job_file, write_job_file
from dispatcher.runtime.registry import find_job, import_jobs, job_keys, summary

_import_option = click.option(
    "--import", "imports", multiple=True, metavar="MODULE_OR_FILE",
    help="Import this module or .py file, for the jobs in it, beside the workspace's jobs/*.py; may be repeated.",
)  # fmt: skip
_overrides_argument = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def program() -> None:
    """Make and run jobs (classes with @job) outside of a matrix.

    `dispatcher job submit NAME CONFIG.yaml` runs one on a host or cluster: see its --help.
    """


@program.command(hidden=True)
def attempt() -> int:
    """Run the job of the attempt in $DISPATCHER_ATTEMPT_DIR; exit status 0: done, 75: preempted."""
    directory = contract.attempt_dir()
    if directory is None:
        raise UsageError(f"{contract.ATTEMPT_DIR} is not set: by hand use `dispatcher job run`")
    return launching.call(launching.attempt_job(directory, launching.workspace_root()))


@program.command(hidden=True)
def check() -> None:
    """Read entries from the standard input and print their faults by job id, as JSON."""
    root = launching.workspace_root()
    entries = json.load(sys.stdin)
    faults = {entry["job_id"]: launching.entry_faults(entry, root) for entry in entries}
    click.echo(json.dumps({job_id: found for job_id, found in faults.items() if found}))


@program.command(hidden=True)
@click.argument("config", metavar="CONFIG.yaml", type=click.Path(path_type=Path))
@_overrides_argument
@_import_option
def entry(config: Path, overrides: tuple[str, ...], imports: tuple[str, ...]) -> None:
    """Print the entry of a manifest that runs the job in CONFIG.yaml, without its id, as JSON."""
    file = read_job_file(config)
    values = launching.with_overrides(file.config, overrides)
    document: dict[str, Any] = {"job": file.job, "config": values}
    if imports:
        document["import"] = list(imports)
    faults = launching.entry_faults(document, launching.workspace_root())
    if faults:
        raise ConfigError.of(config, faults)
    asked = {"chip": file.request.chip, "min_chips": file.request.min_chips}
    document["resources"] = {key: value for key, value in asked.items() if value is not None}
    if file.request.tensor_shards is not None:
        document["tensor_shards"] = file.request.tensor_shards
    click.echo(json.dumps(document))


@program.command("list")
@_import_option
def list_jobs(imports: tuple[str, ...]) -> None:
    """List all jobs with the first line of their descriptions."""
    import_jobs(launching.workspace_root(), imports)
    keys = job_keys()
    width = max(map(len, keys))
    for key in keys:
        click.echo(f"{key:<{width}}  {summary(key)}".rstrip())


@program.command()
@click.argument("key")
@click.argument("out", metavar="OUT.yaml", type=click.Path(dir_okay=False, path_type=Path))
@_overrides_argument
@_import_option
@click.option("--force", is_flag=True, help="Replace OUT.yaml if it exists.")
def configure(key: str, out: Path, overrides: tuple[str, ...], imports: tuple[str, ...], force: bool) -> None:
    """Write the configuration of the job KEY to OUT.yaml.

    It has the defaults, the overrides, and `...` where a value is required.
    """
    import_jobs(launching.workspace_root(), imports)
    cls = find_job(key)
    if out.exists() and not force:
        raise UsageError(f"{out}: already exists; --force replaces it")
    values = launching.with_overrides({}, overrides)
    document = launching.file_config(cls, cls.checked_config(values, where="overrides", complete=False), values)
    write_job_file(out, JobFile(job=key, config=document))
    click.echo(dump(document), nl=False)
    click.echo(f"written to {out}", err=True)


@program.command()
@click.argument("name")
@click.argument("config", metavar="CONFIG.yaml", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@_overrides_argument
@click.option(
    "--restore",
    metavar="REL_PATH",
    help="Start from this checkpoint, a path below the checkpoints: default/default/NAME/best.",
)
@click.option(
    "--from",
    "rewind_to",
    metavar="CHECKPOINT",
    help="Rewind NAME to this checkpoint, such as step-00000032; later ones are moved to set-aside/.",
)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Resume NAME although its data differ from those of its last checkpoint.",
)
@click.option("--project", help="The folder above the group's.  [default: default]")
@click.option("--group", help="The folder above the run's.  [default: default]")
@click.option("--checkpoints", metavar="URL", help="Where checkpoints are kept.  [default: OUT/checkpoints]")
@_import_option
def run(name: str, config: Path, out: Path, overrides: tuple[str, ...], **given: Any) -> int:
    """Run the job in CONFIG.yaml as NAME, with its files below OUT."""
    if given["restore"] is not None and given["rewind_to"] is not None:
        raise UsageError("--from takes a checkpoint of this run, --restore one of another run: choose one of them")
    if given["rewind_to"] is not None and contract.attempt_dir() is not None:
        # Every attempt after a preemption would rewind again and make no progress.
        raise UsageError(
            f"--from {given['rewind_to']}: not possible inside an attempt of a dispatcher. Run `dispatcher job run ... "
            "--from` by hand once, then requeue the job"
        )
    file = read_job_file(config)
    launching.join_others()
    import_jobs(launching.workspace_root(), given["imports"])
    cls = find_job(file.job)
    values = launching.with_overrides(file.config, overrides)

    from dispatcher.runtime.execution import local

    spec = local(
        out,
        name,
        given["project"],
        given["group"],
        tensor_shards=file.request.tensor_shards or 1,
        checkpoints=given["checkpoints"],
    )
    job = launching.make_job(cls, spec, values, restore=given["restore"], where=str(config))
    if given["rewind_to"] is not None:
        launching.rewind(job, given["rewind_to"])
    if given["accept_changes"]:
        launching.accept_changes(job)
    return launching.call(job)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return the exit code; unexpected errors of a job keep their traceback."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("dispatcher").setLevel(logging.INFO)
    try:
        code = program.main(
            args=None if argv is None else list(argv), prog_name="dispatcher job", standalone_mode=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "dispatcher job"
        click.echo(f"{command}: {error.format_message()}\nTry '{command} --help'.", err=True)
        return error.exit_code
    except (DispatcherError, click.ClickException) as error:
        click.echo(f"dispatcher: {error}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
