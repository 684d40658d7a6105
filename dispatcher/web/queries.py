"""What requests ask for, checked: filters, keys, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import QueryParams

from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import Condition, Where
from dispatcher.report.selection import parse_states
from dispatcher.web.columns import Filter

_MOST_FILTERS: Final = 20
_LONGEST: Final = 2_000
_MOST_KEYS: Final = 5


class Query:
    """The parameters of a request. Raises UsageError for one that is not among `allowed` or makes no sense."""

    def __init__(self, params: QueryParams, *allowed: str) -> None:
        self._params = params
        for name, value in params.multi_items():
            if name not in allowed:
                raise UsageError(f"unknown parameter {name!r}{nearest(name, allowed)}")
            if len(value) > _LONGEST:
                raise UsageError(f"{name}: {len(value)} characters, at most {_LONGEST}")

    def filter(self) -> Filter:
        """`where=key=value`, `state=` and `methods=`, as in `dispatcher status`."""
        options = self._params.getlist("where")
        if len(options) > _MOST_FILTERS:
            raise UsageError(f"where: {len(options)} conditions, at most {_MOST_FILTERS}")
        methods = ",".join(filter(None, self._params.getlist("methods")))
        conditions = Where.parse(options).conditions
        if methods:
            conditions = (*conditions, Condition("method", methods))
        states = [word for word in self._params.getlist("state") if word]
        failure, waiting = self.text("failure") or "", self.text("waiting") or ""
        return Filter(parse_states(states), Where(conditions), failure, waiting)

    def text(self, name: str) -> str | None:
        return self._params.get(name) or None

    def one_of(self, name: str, known: Sequence[str]) -> str:
        """One of these words, the first where none is given."""
        found = self.text(name) or known[0]
        if found not in known:
            raise UsageError(f"{name}={found[:50]!r}: expected {' or '.join(known)}")
        return found

    def keys(self, name: str) -> tuple[str, ...]:
        """A list with commas."""
        found = self.words(name)
        if len(found) > _MOST_KEYS:
            raise UsageError(f"{name}: {len(found)} keys, at most {_MOST_KEYS}")
        return found

    def words(self, name: str) -> tuple[str, ...]:
        parts = (part.strip() for value in self._params.getlist(name) for part in value.split(","))
        return tuple(part for part in parts if part)

    def number(self, name: str, default: int | None, bounds: Sequence[int]) -> int | None:
        """A whole number between two bounds."""
        text = self._params.get(name)
        if text is None or text == "":
            return default
        least, most = bounds
        if not (text.isascii() and text.isdecimal()) or len(text) > 18 or not least <= int(text) <= most:
            raise UsageError(f"{name}={text[:50]!r}: expected a whole number from {least} to {most}")
        return int(text)

    def count(self, name: str, default: int, bounds: Sequence[int]) -> int:
        found = self.number(name, default, bounds)
        assert found is not None
        return found
