"""Printing of tables, JSON and notes; colour on a terminal only."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from dispatcher.report.tables import Rows

_COLOURS: Final = {
    "running": "cyan",
    "submitted": "cyan",
    "done": "green",
    "failed": "red",
    "dead": "red",
    "abandoned": "yellow",
    "held": "yellow",
    "draining": "yellow",
}


def wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def coloured(_column: str, cell: str) -> str:
    """A cell that begins with the name of a state, in that state's colour."""
    colour = _COLOURS.get(cell.partition(" ")[0])
    return click.style(cell, fg=colour) if colour else cell


def print_rows(rows: Rows, style: str, columns: Sequence[str] | None = None, *, none: str = "") -> None:
    """Print rows as a table, or the text `none` when there are no rows."""
    from dispatcher.report.tables import render

    if not rows and none and style not in ("csv", "json"):
        click.echo(none)
        return
    click.echo(render(rows, style, columns, coloured if style == "plain" and wants_colour() else None))


def print_json(value: Any) -> None:
    from dispatcher.report.tables import json_text

    click.echo(json_text(value))


def note(text: str) -> None:
    """Print a note to stderr."""
    click.echo(click.style("note: ", fg="yellow") + text, err=True)
