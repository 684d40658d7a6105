"""What requests ask for, checked: filters, keys, numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import QueryParams

from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import Condition, Where
from dispatcher.query.selection import parse_states
from dispatcher.run_state.states import State
from dispatcher.web.board import Filter, FilterError

_MOST_FILTERS: Final = 20
_LONGEST: Final = 2_000
# Of the ids of chosen jobs; the request as a whole has 16 KiB.
_LONGEST_IDS: Final = 12_000
_IDS: Final = frozenset({"jobs", "ids"})
_GLOB: Final = re.compile(r"[*?[]")


class Query:
    """The parameters of a request. Raises UsageError for one that is not among `allowed` or makes no sense."""

    def __init__(self, params: QueryParams, *allowed: str) -> None:
        self._params = params
        for name, value in params.multi_items():
            if name not in allowed:
                raise UsageError(f"unknown parameter {name!r}{nearest(name, allowed)}")
            most = _LONGEST_IDS if name in _IDS else _LONGEST
            if len(value) > most:
                raise UsageError(f"{name}: {len(value)} characters, at most {most}")

    def filter(self) -> Filter:
        """`where=key=value`, `state=`, `methods=` as in `dispatcher status`; `where=WORD` is part of an id, or a glob.

        Raises FilterError for one that makes no sense.
        """
        options = self._params.getlist("where")
        if len(options) > _MOST_FILTERS:
            raise UsageError(f"where: {len(options)} conditions, at most {_MOST_FILTERS}")
        conditions = tuple(_condition(option, number) for number, option in enumerate(options))
        if methods := ",".join(filter(None, self._params.getlist("methods"))):
            conditions = (*conditions, Condition("method", methods))
        failure, waiting = self.text("failure") or "", self.text("waiting") or ""
        return Filter(self._states(), Where(conditions), failure, waiting)

    def _states(self) -> frozenset[State]:
        found: frozenset[State] = frozenset()
        for number, words in enumerate(self._params.getlist("state")):
            try:
                found |= parse_states([words]) if words else frozenset()
            except UsageError as error:
                raise FilterError(str(error), "state", number) from error
        return found

    def text(self, name: str) -> str | None:
        return self._params.get(name) or None

    def texts(self, name: str) -> list[str]:
        """All values of a name that may be there several times."""
        return [value for value in self._params.getlist(name) if value]

    def one_of(self, name: str, known: Sequence[str]) -> str:
        """One of these words, the first where none is given."""
        found = self.text(name) or known[0]
        if found not in known:
            raise UsageError(f"{name}={found[:50]!r}: expected {' or '.join(known)}")
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


def _condition(option: str, number: int) -> Condition:
    if "=" not in option and option.strip():
        words = [word.strip() for word in option.split(",")]
        return Condition("job_id", ",".join(word if _GLOB.search(word) else f"*{word}*" for word in words if word))
    try:
        return Where.parse([option]).conditions[0]
    except UsageError as error:
        raise FilterError(str(error), "where", number) from error
