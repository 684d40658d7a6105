"""Rows as text: tables for people (plain, github, latex) and for programs (csv, json)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

Rows = Sequence[Mapping[str, Any]]
# From a column's name and a cell's text to the text with colour.
Colour = Callable[[str, str], str]

_TABULATE: Final = {"plain": "simple", "github": "github", "latex": "latex"}


def render(rows: Rows, style: str, columns: Sequence[str] | None = None, colour: Colour | None = None) -> str:
    """The rows in `style` (plain, github, latex, csv, json), without a newline at the end.

    `columns` are chosen and ordered by the caller; without them all that occur, in the order of their first appearance.
    json has the rows with everything in them, whatever `columns` says.
    """
    if style == "json":
        return json_text(list(rows))
    names = list(columns) if columns is not None else list(dict.fromkeys(name for row in rows for name in row))
    if style == "csv":
        return _csv(rows, names)
    from tabulate import tabulate

    cells = [[_cell(row.get(name), style) for name in names] for row in rows]
    if colour is not None:
        cells = [[colour(name, cell) for name, cell in zip(names, row, strict=True)] for row in cells]
    align = ["right" if _is_numeric(rows, name) else "left" for name in names]
    # Job ids such as 1e5 are no numbers, so tabulate must not look for any.
    return tabulate(
        cells, headers=names, tablefmt=_TABULATE[style], colalign=align if rows else None, disable_numparse=True
    )


def json_text(value: Any) -> str:
    """`value` as indented JSON; numbers that JSON does not have become null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def number_text(value: float) -> str:
    """Four digits where they say something."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def one_line(text: str) -> str:
    """What cannot be printed is shown as `?`: values come from jobs, and a terminal obeys control characters."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


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
