"""The options of `dispatcher submit -- COMMAND...`: what a new job is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dispatcher.base.values import MOST, MOST_BITS, NAME_EXPECTED, is_name, shown
from dispatcher.cli.common import WholeNumber, number_or_text
from dispatcher.cli.complete import complete_jobs, complete_methods
from dispatcher.cli.one_argument import one_argument
from dispatcher.cli.printing import note
from dispatcher.errors import UsageError

if TYPE_CHECKING:
    from dispatcher.cli.hardware import HardwareOptions
    from dispatcher.matrix.new_jobs import NewJobs
    from dispatcher.workspace import Layout

# Where click keeps the words after `--`.
_META: Final = "dispatcher.command"


class CommandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was given on the command line; None or empty: nothing."""

    name: str | None = None
    method: str | None = None
    params: tuple[str, ...] = ()
    rows_file: Path | None = None
    gpu_memory: str | None = None
    needs: tuple[str, ...] = ()
    priority: int | None = None
    time_limit: str | None = None
    retries: int | None = None
    env: tuple[str, ...] = ()
    env_file: str | None = None
    cwd: str | None = None
    snapshot: bool | None = None

    def first_given(self) -> str:
        """An option that was given; empty when none was."""
        fields = msgspec.structs.fields(self)
        words = {"params": "param", "rows_file": "from", "time_limit": "time-limit", "env_file": "env-file"}
        words["gpu_memory"] = "gpu-memory"
        given = (f.encode_name for f in fields if getattr(self, f.encode_name) != f.default)
        return next((f"--{words.get(name, name)}" for name in given), "")

    def new_jobs(self, words: tuple[str, ...], layout: Layout, hardware: HardwareOptions) -> NewJobs:
        """The jobs of the command `words`. Raises UsageError."""
        from dispatcher.matrix.new_jobs import METHOD, new_jobs, read_params

        for option, name in (("--name", self.name), ("--method", self.method)):
            if name is not None and not is_name(name):
                raise UsageError(f"{option} {shown(name)}: {NAME_EXPECTED}")
        resources = hardware.resources()
        gpus = resources.pop("min_chips", None)
        common = {
            "method": self.method or METHOD,
            "gpus": gpus,
            "gpu_memory": self.gpu_memory,
            "resources": resources or None,
            "needs": _needs(self.needs) or None,
            "priority": self.priority,
            "time_limit": read_time_limit(self.time_limit),
            "retries": self.retries,
            "env": _environment(self.env) or None,
            "env_file": None if self.env_file is None else _private_file(self.env_file),
            "cwd": _directory(self.cwd, layout),
            "snapshot": self.snapshot,
        }
        return new_jobs(
            words,
            name=self.name,
            params=read_params(self.params),
            rows=None if self.rows_file is None else _rows(self.rows_file),
            common={key: value for key, value in common.items() if value is not None},
        )


class TakesCommand(click.Command):
    """A command whose words after `--` are another command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_META] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def given_command() -> tuple[str, ...] | None:
    """The words after `--`; None without it."""
    found: tuple[str, ...] | None = click.get_current_context().meta.get(_META)
    return found


# As one argument `job`.
command_options: Final = one_argument("job", CommandOptions, (
    click.option("--name", metavar="ID", help="The job's id, or what ids begin with.  [default: the program's name]"),
    click.option(
        "--param", "params", multiple=True, metavar="KEY=VALUES",
        help="Values for {KEY} in the command: lr=1e-3,1e-4 or seed=1..3; a job for each combination of several.",
    ),
    click.option(
        "--from", "rows_file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), metavar="FILE.csv",
        help="A job for each line; the header names the parameters, a column `name` has the ids. `-` is stdin.",
    ),
    click.option(
        "--gpu-memory", metavar="SIZE",
        help="What it takes of its GPU, such as 20G: jobs that say so share a GPU as long as their sum fits.",
    ),
    click.option(
        "--needs", multiple=True, metavar="JOB", shell_complete=complete_jobs,
        help="Run only when this job is done; may be repeated.",
    ),
    click.option(
        "--priority", type=WholeNumber(-MOST_BITS, MOST_BITS), metavar="N",
        help="Jobs with a higher one are claimed first.  [default: 0]",
    ),
    click.option("--time-limit", metavar="TIME", help="Stop the job after this time: 90m, 8h, or seconds."),
    click.option("--retries", type=WholeNumber(0, MOST), metavar="N", help="How often a failed job is tried again."),
    click.option(
        "--env", multiple=True, metavar="NAME[=VALUE]",
        help="An environment variable, with its value here unless one is given. Others can read it: no secrets.",
    ),
    click.option(
        "--env-file", metavar="FILE",
        help="Variables that others must not read: lines NAME=VALUE of a file where the job runs, of mode 600.",
    ),
    click.option(
        "--cwd", metavar="DIR",
        help="Where the command runs.  [default: the current directory, if it is in the workspace, else its root]",
    ),
    click.option(
        "--snapshot/--no-snapshot", default=None,
        help="Run a copy of the tracked files as they are now, also when the job is tried again.",
    ),
    click.option(
        "--method", metavar="METHOD", shell_complete=complete_methods,
        help="The method whose settings apply.  [default: command]",
    ),
))  # fmt: skip


def _needs(options: tuple[str, ...]) -> list[str]:
    """The jobs that are needed, each once. An empty word is refused: the variable that names the job is unset."""
    for option in options:
        if "" in option.split(","):
            raise UsageError(
                f"--needs {shown(option)}: names no job there: expected a job's id, or several with commas"
            )
    return list(dict.fromkeys(need for option in options for need in option.split(",")))


def read_time_limit(text: str | None) -> str | float | None:
    """The value of `--time-limit`. Raises UsageError."""
    if text is None:
        return None
    from dispatcher.base.values import BadValueError, parse_duration

    found = number_or_text(text)
    try:
        parse_duration(found)
    except BadValueError as error:
        raise UsageError(f"--time-limit {shown(text)}: {error}") from None
    return found


def _environment(options: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals and name not in os.environ:
            raise UsageError(f"--env {option}: there is no such variable here: expected NAME=VALUE, or the name of one")
        found[name] = value if equals else os.environ[name]
    return found


def _private_file(given: str) -> str:
    """The path as entries have it. Raises UsageError for a file of this host that others can read."""
    path = Path(given).expanduser()
    if path.exists():
        found = path.stat()
        if not path.is_file():
            raise UsageError(f"--env-file {given}: is {'a directory' if path.is_dir() else 'no file'}: expected a file")
        if found.st_mode & 0o077:
            raise UsageError(f"--env-file {given}: others can read or change it: chmod 600 it")
        if fault := _fault_of(path):
            raise UsageError(f"--env-file {given}: {fault}")
    elif not given.startswith(("/", "~/")):
        raise UsageError(f"--env-file {given}: there is no such file")
    # It may be one of another host.
    return given if given.startswith("~/") else os.fspath(path.absolute())


def _fault_of(path: Path) -> str:
    """What the wrapper will say of the content of a file; empty where only the user of the job can read it."""
    from dispatcher.outlets.env_file import fault_in

    try:
        return fault_in(path.read_bytes())
    except OSError:
        return ""


def _directory(given: str | None, layout: Layout) -> str | None:
    """Where the command runs, as entries have it; None for the workspace's root."""
    if given is not None and not given.strip():
        raise UsageError(f"--cwd {shown(given)}: expected a directory")
    # What the shell calls the current directory may lead through links.
    path, root = Path(os.path.realpath(given or ".")), Path(os.path.realpath(layout.root))
    if not path.is_relative_to(root):
        if given is not None and not path.is_dir():
            note(f"--cwd {given}: there is no such directory here: the host that runs the job must have it")
        return os.fspath(path) if given is not None else None
    if given is not None and not path.is_dir():
        raise UsageError(f"--cwd {given}: there is no such directory")
    return None if path == root else os.fspath(path.relative_to(root))


def _rows(path: Path) -> list[dict[str, Any]]:
    from dispatcher.matrix.new_jobs import read_csv

    try:
        data = sys.stdin.buffer.read() if os.fspath(path) == "-" else path.read_bytes()
    except OSError as error:
        raise UsageError(f"--from {path}: cannot be read: {error.strerror}") from None
    return read_csv(data, f"--from {path}")
