"""What was expected of the week, and what was seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tabulate import tabulate

_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.1
_WIDTHS: Final = [None, 34, 48, 48, None]


@dataclass(frozen=True)
class Row:
    day: str
    what: str
    expected: str
    seen: str
    is_right: bool


class Table:
    """Collects what was expected and seen, day by day."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.day = ""

    @property
    def is_right(self) -> bool:
        return all(row.is_right for row in self.rows)

    def check(self, what: str, seen: Any, expected: Any) -> None:
        """Note something that must be equal."""
        self.note(what, expected, seen, seen == expected)

    def note(self, what: str, expected: Any, seen: Any, is_right: bool) -> None:
        """Note something that was judged already."""
        self.rows.append(Row(self.day, what, _text(expected), _text(seen), bool(is_right)))

    def wait(self, what: str, look: Callable[[], Any], expected: Any) -> None:
        """Note something that will become equal soon."""
        end_s = time.monotonic() + _PATIENCE_S
        while (seen := look()) != expected and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
        self.check(what, seen, expected)

    def text(self) -> str:
        marks = {True: "", False: "WRONG"}
        rows = [(row.day, row.what, row.expected, row.seen, marks[row.is_right]) for row in self.rows]
        headings = ["day", "what", "expected", "seen", ""]
        return tabulate(rows, headings, maxcolwidths=_WIDTHS, disable_numparse=True)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    if isinstance(value, list | tuple | set):
        return "; ".join(map(str, value)) or "nothing"
    return str(value)
