"""Fitting a table into the width of a terminal: which columns shrink, and which are left out. Pure.

Columns shrink in the order of their importance, first to a comfortable width, then to the least one. Where that is not
enough, columns are left out in the same order, and a line below the table names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dispatcher.report.terminal import clip, clip_middle, indented, one_line, width_of, wrap

GAP: Final = "  "
# Names and paths, which are told apart by both ends.
_IDS: Final = frozenset({"job", "job_id", "which", "pod", "host", "directory"})
_STATES: Final = frozenset({"state", "claimed"})
# A column first shrinks to the one width, and when all have, to the other.
_COMFORTABLE: Final = 20
_LEAST, _LEAST_ID = 8, 12


@dataclass(frozen=True)
class Column:
    """One column of a table as it is drawn."""

    name: str
    heading: str
    width: int
    is_right: bool


@dataclass(frozen=True)
class Fit:
    """A table that fits. `notes` are the lines that follow it."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def fit(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    right: Sequence[bool],
    width: int | None,
    shrink: Sequence[str] | None,
    wrapped: str = "",
) -> Fit:
    """The table in at most `width` terminal columns; `shrink` and `wrapped`: see tables.render."""
    # Names of columns may come from jobs, too.
    texts = dict(zip(names, zip(map(one_line, names), *cells, strict=True), strict=True))
    natural = {name: max(map(width_of, column)) for name, column in texts.items()}
    numeric = {name for name, is_right in zip(names, right, strict=True) if is_right}
    if width is None:
        widths = natural
    else:
        order = _default_order(names, numeric) if shrink is None else [name for name in shrink if name in natural]
        widths = _fitting(natural, order, width)
    columns = [
        Column(name, _clipped(name, texts[name][0], widths[name]), widths[name], name in numeric) for name in widths
    ]
    rows = [row for number in range(1, len(cells) + 1) for row in _row(texts, widths, number, wrapped)]
    left_out = [name for name in names if name not in widths]
    note = one_line(f"(no room for: {', '.join(left_out)})")
    return Fit(columns, rows, indented([note], width) if left_out else ())


def _default_order(names: Sequence[str], numeric: set[str]) -> list[str]:
    texts = [name for name in reversed(names) if name not in numeric and name not in _STATES]
    return sorted(texts, key=lambda name: name in _IDS)


def _fitting(natural: Mapping[str, int], order: Sequence[str], width: int) -> dict[str, int]:
    """The width of each column that is shown, in the table's order."""
    widths = dict(natural)
    for least in (lambda _: _COMFORTABLE, _least):
        for name in order:
            widths[name] = max(min(widths[name], least(name)), widths[name] - max(0, _total(widths) - width))
    # What cannot shrink goes first from the right, the most important column not at all.
    fixed = [name for name in reversed(list(natural)) if name not in order]
    dropped = [*order[:-1], *fixed] if order else fixed[:-1]
    for name in dropped:
        if _total(widths) <= width:
            break
        del widths[name]
    excess = _total(widths) - width
    if excess > 0:
        last = next(iter(widths))
        widths[last] = max(1, widths[last] - excess)
    # A column that was left out may have made more room than was needed.
    for name in reversed(order):
        if name in widths:
            widths[name] = min(natural[name], widths[name] + max(0, width - _total(widths)))
    return widths


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _least(name: str) -> int:
    return _LEAST_ID if name in _IDS else _LEAST


def _row(texts: Mapping[str, Sequence[str]], widths: Mapping[str, int], number: int, wrapped: str) -> list[list[str]]:
    """The lines of one row: several where a text of the column `wrapped` is too long."""
    parts = wrap(texts[wrapped][number], widths[wrapped]) if wrapped in widths else []
    clipped = {name: _clipped(name, texts[name][number], widths[name]) for name in widths}
    if len(parts) <= 1:
        return [list(clipped.values())]
    first = list({**clipped, wrapped: parts[0]}.values())
    return [first, *([text if name == wrapped else "" for name in widths] for text in parts[1:])]


def _clipped(name: str, text: str, width: int) -> str:
    return (clip_middle if name in _IDS else clip)(text, width)
