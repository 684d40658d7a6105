"""Rows as text: tables for people (plain, github, latex) and for programs (csv, json)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.messages import number_text
from dispatcher.base.terminal import clip, one_line, width_of
from dispatcher.cli.fitting import GAP, Fit, Narrowing, fit

Rows = Sequence[Mapping[str, Any]]
# Maps a column's name and a cell's text to coloured text.
Colour = Callable[[str, str], str]

# Of a screen that no terminal bounds: a message of a program may be a page long. JSON and `show` have all of it.
_WIDEST_CELL: Final = 300
_BY_DEFAULT: Final = Narrowing()


def render(
    rows: Rows,
    style: str,
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    colour: Colour | None = None,
    *,
    width: int | None = None,
    narrowing: Narrowing = _BY_DEFAULT,
    bare: bool = False,
    numbers: Collection[str] = (),
) -> str:
    """The rows in `style` (plain, github, latex, csv, json), without a newline at the end.

    `columns` selects and orders the columns; by default all of them in the order of their first appearance. A mapping
    has the lines above each of them in a plain table, where they are not its name. json has all values in any case.

    A plain table takes at most `width` columns of a terminal (None: no limit); `narrowing` says how. `bare`: without
    the dashes below the headings and the line about columns that have no room, and no cell is a page long; for a screen
    with several tables.
    `numbers`: columns whose texts are numbers, too.
    """
    if style == "json":
        return json_text(list(rows))
    names = list(columns) if columns is not None else list(dict.fromkeys(name for row in rows for name in row))
    if style == "csv":
        return _csv(rows, names)
    cells = [[_cell(row.get(name), style) for name in names] for row in rows]
    right = [name in numbers or _is_numeric(rows, name) for name in names]
    if bare:
        cells = [[clip(cell, _WIDEST_CELL) for cell in row] for row in cells]
    if style == "plain":
        headings = columns if isinstance(columns, Mapping) else None
        fitted = fit(names, cells, right, width, narrowing, headings)
        return _plain(fitted, colour, bare=bare)
    from tabulate import tabulate

    align = ["right" if is_right else "left" for is_right in right]
    # Job ids such as 1e5 are not numbers, so tabulate must not parse any.
    return tabulate(
        cells,
        headers=[one_line(name) for name in names],
        tablefmt=style,
        colalign=align if rows else None,
        disable_numparse=True,
    )


def json_text(value: Any) -> str:
    """`value` as indented JSON; NaN and infinity become null, a path is text."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=os.fspath), indent=2).decode()


def _plain(table: Fit, colour: Colour | None, *, bare: bool) -> str:
    """Like tabulate's `simple` format. Importing tabulate would cost a sixth of the time of `dispatcher status`."""

    def line(texts: Sequence[str], paint: Colour | None) -> str:
        padded = []
        for column, text in zip(table.columns, texts, strict=True):
            space = " " * (column.width - width_of(text))
            painted = paint(column.name, text) if paint else text
            padded.append(space + painted if column.is_right else painted + space)
        return GAP.join(padded).rstrip()

    lines = [line(texts, None) for texts in zip(*(column.heading for column in table.columns), strict=True)]
    lines += [] if bare else [GAP.join("-" * column.width for column in table.columns)]
    lines += [line(row, colour) for row in table.rows]
    return "\n".join(lines if bare else [*lines, *table.notes])


def _cell(value: Any, style: str) -> str:
    if value is None:
        return ""
    text = number_text(value) if isinstance(value, float) else one_line(_text(value))
    return text.replace("|", "\\|") if style == "github" else text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_numeric(rows: Rows, name: str) -> bool:
    values = [value for row in rows if (value := row.get(name)) is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _csv(rows: Rows, names: Sequence[str]) -> str:
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if (value := row.get(name)) is None else _text(value) for name in names])
    return out.getvalue().rstrip("\n")
