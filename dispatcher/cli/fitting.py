"""Fitting a table into the width of a terminal: which columns shrink, and which are left out. Pure.

Columns shrink in the order of their importance, first to a comfortable width, then to the least one. Columns that a
table can do without are left out before the others become hard to read, further ones where even that is not enough. A
line below the table names what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dispatcher.base.terminal import clip, clip_middle, indented, one_line, width_of

GAP: Final = "  "
# Names and paths, which differ at both ends.
_IDS: Final = frozenset({"job", "job_id", "which", "pod", "host", "directory"})
_STATES: Final = frozenset({"state", "claimed"})
# Sentences, which say little in a few letters.
_SENTENCES: Final = frozenset({"error", "why", "cause", "waiting because", "changes"})
# A long one leaves room for ids in full.
_LONG_SENTENCE, _COMFORTABLE_SENTENCE, _COMFORTABLE = 60, 30, 20
_LEAST, _LEAST_ID, _LEAST_HEADING = 8, 12, 6
# How much of a shortened id is its end, in the order in which they are tried, and how many ids are tried.
_TAILS: Final = (0.4, 0.2, 0.0, 0.6, 0.8)
_TRIED: Final = 500


@dataclass(frozen=True)
class Narrowing:
    """How a table becomes narrower, columns in the order of their importance, the least important first.

    shrink: columns whose texts become shorter, ids in their middle. None: every column with text but the states, the
    last one first, ids after all others.
    drop: columns that are left out before the others become hard to read.
    keep: columns that are never left out, as the first one is where there is none; all others are in the end, those
    that shrink before those that cannot.
    """

    shrink: Sequence[str] | None = None
    drop: Sequence[str] = ()
    keep: Sequence[str] = ()


@dataclass(frozen=True)
class FittedColumn:
    """One column of a table as it is drawn; all headings have the same number of lines."""

    name: str
    heading: Sequence[str]
    width: int
    is_right: bool


@dataclass(frozen=True)
class Fit:
    """A table that fits. `notes` are the lines that follow it."""

    columns: Sequence[FittedColumn]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def fit(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    right: Sequence[bool],
    width: int | None,
    narrowing: Narrowing,
    headings: Mapping[str, Sequence[str]] | None = None,
) -> Fit:
    """The table in at most `width` terminal columns (None: no limit).

    `headings` are the lines above each column, where that is not its name alone.
    """
    # Names of columns may come from jobs, too.
    above = {name: [one_line(line) for line in (headings or {}).get(name, [name])] for name in names}
    depth = len(above[names[0]]) if names else 1
    columns_of_cells = zip(*cells, strict=True) if cells else [()] * len(names)
    texts = {name: (*above[name], *column) for name, column in zip(names, columns_of_cells, strict=True)}
    natural = {name: max(map(width_of, column)) for name, column in texts.items()}
    numeric = {name for name, is_right in zip(names, right, strict=True) if is_right}
    widths = natural if width is None else _Widths(texts, natural, numeric, narrowing, width, depth).fitting()
    shown = {name: _clipped(name, texts[name], widths[name]) for name in widths}
    columns = [FittedColumn(name, shown[name][:depth], widths[name], name in numeric) for name in widths]
    rows = [[column[depth + number] for column in shown.values()] for number in range(len(cells))]
    left_out = [name for name in names if name not in widths]
    note = one_line(f"(no room for: {', '.join(left_out)})")
    return Fit(columns, rows, indented([note], width) if left_out else ())


class _Widths:
    """The widths of a table's columns, which are made to fit."""

    def __init__(
        self,
        texts: Mapping[str, Sequence[str]],
        natural: Mapping[str, int],
        numeric: set[str],
        narrowing: Narrowing,
        width: int,
        depth: int,
    ) -> None:
        self._texts = texts
        self._depth = depth
        self._natural = natural
        self._width = width
        given = _default_order(list(natural), numeric) if narrowing.shrink is None else narrowing.shrink
        self._order = [name for name in given if name in natural]
        self._numeric = [name for name in natural if name in numeric]
        self._drop = narrowing.drop
        self._keep = [name for name in narrowing.keep if name in natural] or list(natural)[:1]
        self._widths = dict(natural)

    def fitting(self) -> dict[str, int]:
        """The width of each column that is shown, in the table's order."""
        self._shrink({name: _LONG_SENTENCE for name in self._order if name in _SENTENCES})
        self._shrink({name: _comfortable(name) for name in self._order})
        self._leave_out(self._drop)
        self._shrink(dict.fromkeys(self._order, _COMFORTABLE))
        # A heading says enough with its first letters; numbers are never shortened.
        self._shrink(
            {name: max(_LEAST_HEADING, *map(width_of, self._texts[name][self._depth :])) for name in self._numeric}
        )
        self._shrink({name: _LEAST_ID if name in _IDS else _LEAST for name in self._order})
        fixed = [name for name in reversed(list(self._widths)) if name not in self._order]
        self._leave_out([*self._order, *fixed])
        self._shrink(dict.fromkeys(sorted(self._keep, key=lambda name: name not in self._order), 1))
        while self._excess and len(self._widths) > 1:
            self._widths.popitem()
        self._give_back()
        return self._widths

    @property
    def _excess(self) -> int:
        return max(0, sum(self._widths.values()) + len(GAP) * (len(self._widths) - 1) - self._width)

    def _shrink(self, least: Mapping[str, int]) -> None:
        for name, width in least.items():
            if name in self._widths:
                self._widths[name] = max(min(self._widths[name], width), self._widths[name] - self._excess)

    def _leave_out(self, names: Iterable[str]) -> None:
        for name in names:
            if self._excess and name in self._widths and name not in self._keep:
                del self._widths[name]

    def _give_back(self) -> None:
        """A column that was left out may have made more room than was needed."""
        for name in [*reversed(self._order), *self._numeric, *self._keep]:
            if name in self._widths:
                room = self._width - sum(self._widths.values()) - len(GAP) * (len(self._widths) - 1)
                self._widths[name] = min(self._natural[name], self._widths[name] + max(0, room))


def _default_order(names: Sequence[str], numeric: set[str]) -> list[str]:
    texts = [name for name in reversed(names) if name not in numeric and name not in _STATES]
    return sorted(texts, key=lambda name: name in _IDS)


def _comfortable(name: str) -> int:
    return _COMFORTABLE_SENTENCE if name in _SENTENCES else _COMFORTABLE


def _clipped(name: str, texts: Sequence[str], width: int) -> list[str]:
    if name not in _IDS:
        return [clip(text, width) for text in texts]
    tail = _telling_tail(texts, width)
    return [clip_middle(text, width, tail) for text in texts]


def _telling_tail(texts: Sequence[str], width: int) -> float:
    """How much of the shortened ids should be their end, so that as many as possible are told apart."""
    long = list({text: None for text in texts[:_TRIED] if width_of(text) > width})
    return max(_TAILS, key=lambda tail: len({clip_middle(text, width, tail) for text in long}))
