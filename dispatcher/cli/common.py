"""What the commands have in common: the workspace's root, and options that several of them take."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from dispatcher import contract
from dispatcher.cli.complete import complete_jobs, complete_words
from dispatcher.matrix.condition import Where
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.api import Workspace

F = TypeVar("F", bound=Callable[..., Any])

FORMATS: Final = ("plain", "github", "latex", "csv", "json")
STATE_WORDS: Final = ("queued", "submitted", "running", "done", "failed", "abandoned", "held")


def _keep_root(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.obj = Layout(value)
    elif ctx.obj is None:
        ctx.obj = Layout(os.environ.get(contract.ROOT) or ".")


def root_option() -> click.Option:
    """`--root DIR`, which every command takes; they find the Layout as the context's object."""
    return click.Option(
        ["--root"],
        type=click.Path(exists=True, file_okay=False),
        expose_value=False,
        is_eager=True,
        callback=_keep_root,
        help="The workspace.  [default: $DISPATCHER_ROOT, else the current directory]",
    )


def add_root_option(command: click.Command) -> None:
    """Let `command` and what is below it take `--root`."""
    if not any(param.name == "root" for param in command.params):
        command.params.append(root_option())
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            add_root_option(inner)


def layout() -> Layout:
    """The layout of the workspace that the running command is about."""
    found = click.get_current_context().obj
    assert isinstance(found, Layout)
    return found


def open_workspace() -> Workspace:
    """The workspace that the running command works on."""
    from dispatcher.api import Workspace

    return Workspace(layout().root)


def read_where(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> Where:
    """`key=glob` or `key!=glob`, all of which must hold."""
    return Where.parse(values)


def read_list(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """A list with commas."""
    return tuple(part.strip() for part in (value or "").split(",") if part.strip())


def where_option(function: F) -> F:
    return click.option(
        "--where",
        multiple=True,
        callback=read_where,
        metavar="KEY=VALUE",
        help="Only jobs with this value (a glob), of their entry or record; several must all match.",
    )(function)


def state_option(function: F) -> F:
    return click.option(
        "--state",
        "states",
        multiple=True,
        metavar="STATE",
        shell_complete=complete_words(STATE_WORDS),
        help="Only jobs in this state; several with commas.",
    )(function)


def format_option(function: F) -> F:
    """`--format` and its short form `--json`; the command gets `style`."""
    json_flag = click.option("--json", "style", flag_value="json", help="The same as --format json.")
    choice = click.option("--format", "style", type=click.Choice(FORMATS), default="plain", help="[default: plain]")
    return json_flag(choice(function))


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="As JSON.")(function)


def jobs_argument(function: F, *, required: bool = False) -> F:
    argument = click.argument("jobs", nargs=-1, required=required, metavar="[JOB]...", shell_complete=complete_jobs)
    return argument(function)
