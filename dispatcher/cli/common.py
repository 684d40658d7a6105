"""What the commands have in common: the workspace's root, and options that several of them take."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dispatcher import contract
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.api import Workspace

F = TypeVar("F", bound=Callable[..., Any])

_ROOT = "dispatcher.root"
FORMATS = ("plain", "github", "latex", "csv", "json")


def _keep_root(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        # `meta` belongs to the whole chain of contexts: --root counts before and after the subcommand.
        ctx.meta[_ROOT] = value


def root_option(function: F) -> F:
    """`--root DIR`, which every command takes, before or after its name."""
    return click.option(
        "--root",
        type=click.Path(exists=True, file_okay=False),
        expose_value=False,
        is_eager=True,
        callback=_keep_root,
        help="The workspace.  [default: $DISPATCHER_ROOT, else the current directory]",
    )(function)


def layout() -> Layout:
    """The layout of the workspace that the running command is about."""
    chosen = click.get_current_context().meta.get(_ROOT)
    return Layout(chosen or os.environ.get(contract.ROOT) or ".")


def workspace() -> Workspace:
    """The workspace that the running command is about."""
    from dispatcher.api import Workspace

    return Workspace(layout().root)


def read_where(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """`key=glob` pairs."""
    pairs = []
    for value in values:
        key, sign, pattern = value.partition("=")
        if not sign or not key:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE, for example lang=spanish or seed=4*")
        pairs.append((key, pattern))
    return tuple(pairs)


def read_list(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """A list with commas."""
    return tuple(part.strip() for part in (value or "").split(",") if part.strip())
