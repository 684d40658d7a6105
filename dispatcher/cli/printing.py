"""Printing of tables, JSON and notes; colour on a terminal only."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from dispatcher.run_state.states import STATES

if TYPE_CHECKING:
    from dispatcher.cli.fitting import Narrowing
    from dispatcher.cli.tables import Rows

_COLOURS: Final = {
    **{state.value: row.colour for state, row in STATES.items()},
    "dead": "red",
    "stalled": "yellow",
    "idle": "yellow",
    "draining": "yellow",
}


def wants_colour(stream: TextIO | None = None) -> bool:
    """Whether colours are written to stdout, or to another stream."""
    return (stream or sys.stdout).isatty() and not os.environ.get("NO_COLOR")


def coloured(_column: str, cell: str) -> str:
    """A cell that begins with the name of a state, in that state's colour; jobs that stall or idle have one, too."""
    colour = _COLOURS.get("idle" if cell.startswith("GPU idle ") else cell.partition(" ")[0].rstrip(":"))
    return click.style(cell, fg=colour) if colour else cell


def terminal_size() -> os.terminal_size | None:
    """The size of the terminal that stdout is (COLUMNS and LINES, if they are set); None where it is no terminal."""
    if not sys.stdout.isatty():
        return None
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        size = os.terminal_size((0, 0))
    # A terminal that does not know its size says 0.
    return os.terminal_size((_given("COLUMNS") or size.columns or 80, _given("LINES") or size.lines or 24))


def _given(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


def terminal_width() -> int | None:
    """The width of the terminal that stdout is; None where it is none, and nothing has to fit."""
    size = terminal_size()
    return None if size is None else size.columns


def table_text(
    rows: Rows,
    style: str,
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    *,
    narrowing: Narrowing | None = None,
    bare: bool = False,
    numbers: Collection[str] = (),
) -> str:
    """Rows as a table for stdout: a plain one has colour and fits where that is a terminal; see `tables.render`."""
    from dispatcher.cli.fitting import Narrowing
    from dispatcher.cli.tables import render

    colour = coloured if style == "plain" and wants_colour() else None
    return render(
        rows,
        style,
        columns,
        colour,
        width=terminal_width(),
        narrowing=narrowing or Narrowing(),
        bare=bare,
        numbers=numbers,
    )


def print_rows(
    rows: Rows,
    style: str,
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    *,
    none: str = "",
    narrowing: Narrowing | None = None,
    numbers: Collection[str] = (),
) -> None:
    """Print rows as a table, or the text `none` when there are no rows; `narrowing`: how it fits a terminal."""
    if not rows and none and style not in ("csv", "json"):
        # Of the styles for documents, stdout has the table and nothing else.
        click.echo(none, err=style != "plain")
        return
    # click would remove the colours of other texts too, where stdout is no terminal: those of values are data.
    click.echo(table_text(rows, style, columns, narrowing=narrowing, numbers=numbers), color=True)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one per line; long values continue below. None is left out."""
    from dispatcher.base.terminal import indented, one_line, width_of
    from dispatcher.query.selection import cell_text

    named = [(one_line(name), value) for name, value in facts.items()]
    room = max((width_of(name) for name, _ in named), default=0) + 2
    for name, value in named:
        if value is not None:
            first = name + " " * (room - width_of(name))
            lines = indented([one_line(cell_text(value))], terminal_width(), first, " " * room)
            click.echo("\n".join(line.rstrip() for line in lines))


def print_text(text: str) -> None:
    """Print a line of text; one that is longer than the terminal continues below, indented."""
    from dispatcher.base.terminal import indented, one_line

    click.echo("\n".join(indented([one_line(text)], terminal_width(), rest="  ")))


def draw_line(data: bytes) -> None:
    """Show a line that is not finished on the terminal that stdout is, in place of the one before."""
    from dispatcher.base.terminal import clip, one_line
    from dispatcher.cli.streams import draw

    text = one_line(click.unstyle(data.decode(errors="replace")).expandtabs())
    draw(f"\r\x1b[K{clip(text, (terminal_width() or 80) - 1)}")


def print_json(value: Any) -> None:
    from dispatcher.cli.tables import json_text

    click.echo(json_text(value))


def note(text: str) -> None:
    """Print a note to stderr; it fits where that is a terminal."""
    for line in note_lines([text], terminal_width() if sys.stderr.isatty() else None):
        is_painted = line.startswith("note: ") and wants_colour(sys.stderr)
        click.echo(line.replace("note: ", click.style("note: ", fg="yellow"), 1) if is_painted else line, err=True)


def note_lines(texts: Iterable[str], width: int | None) -> list[str]:
    """Notes in lines of at most `width` columns (None: any)."""
    from dispatcher.base.terminal import indented, one_line

    lines = []
    for text in texts:
        first, *others = map(one_line, text.splitlines() or [""])
        lines += indented([first], width, "note: ", "      ")
        lines += indented(others, width, "      ", "      ")
    return lines
