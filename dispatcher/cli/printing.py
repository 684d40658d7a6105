"""Printing of tables, JSON and notes; colour on a terminal only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from dispatcher.report.tables import Rows

_USUAL_WIDTH: Final = 80
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


def terminal_width() -> int | None:
    """The columns of the terminal that stdout is (COLUMNS, if it is set); None where stdout is no terminal."""
    if not sys.stdout.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    try:
        width = int(given) if given.isdecimal() else os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        return _USUAL_WIDTH
    # A terminal that does not know its size says 0.
    return width or _USUAL_WIDTH


def table_text(
    rows: Rows,
    style: str,
    columns: Sequence[str] | None = None,
    *,
    shrink: Sequence[str] | None = None,
    wrap: str = "",
) -> str:
    """Rows as a table for stdout: a plain one has colour and fits where that is a terminal; see `tables.render`."""
    from dispatcher.report.tables import render

    colour = coloured if style == "plain" and wants_colour() else None
    return render(rows, style, columns, colour, width=terminal_width(), shrink=shrink, wrap=wrap)


def print_rows(
    rows: Rows,
    style: str,
    columns: Sequence[str] | None = None,
    *,
    none: str = "",
    shrink: Sequence[str] | None = None,
    wrap: str = "",
) -> None:
    """Print rows as a table, or the text `none` when there are no rows; `shrink` and `wrap`: see `tables.render`."""
    if not rows and none and style not in ("csv", "json"):
        click.echo(none)
        return
    click.echo(table_text(rows, style, columns, shrink=shrink, wrap=wrap))


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one per line; long values continue below. None is left out."""
    from dispatcher.report.selection import cell_text
    from dispatcher.report.terminal import indented, one_line, width_of

    room = max(map(width_of, facts), default=0) + 2
    for name, value in facts.items():
        if value is not None:
            first = name + " " * (room - width_of(name))
            lines = indented([one_line(cell_text(value))], terminal_width(), first, " " * room)
            click.echo("\n".join(line.rstrip() for line in lines))


def print_text(text: str) -> None:
    """Print a line of text; one that is longer than the terminal continues below, indented."""
    from dispatcher.report.terminal import indented, one_line

    click.echo("\n".join(indented([one_line(text)], terminal_width(), rest="  ")))


def print_json(value: Any) -> None:
    from dispatcher.report.tables import json_text

    click.echo(json_text(value))


def note(text: str) -> None:
    """Print a note to stderr."""
    click.echo(click.style("note: ", fg="yellow") + text, err=True)
