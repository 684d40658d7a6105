"""The search space of a study: a distribution for each parameter, in the words of sweep files. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.values import identity, shown
from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import check_condition, holds
from dispatcher.matrix.draw import (
    at_step,
    integer_at,
    is_range,
    log_uniform_at,
    make_drawer,
    parts_of,
    rounded,
    steps_within,
    uniform_at,
)
from dispatcher.matrix.faults import draw_advice
from dispatcher.matrix.new_jobs import check_key

_WHEN: Final = "when"
# Spaces with more combinations count as endless.
_MOST: Final = 10_000


class Distribution(msgspec.Struct, frozen=True):
    """`kind` is a word of matrix.draw; `choices` are the values to choose from, or the two ends of a range.

    `ranges` are the choices that are distributions themselves, by their places. `when`: conditions on parameters before
    this one; a trial that does not meet them has no such parameter.
    """

    kind: str
    choices: Sequence[Any]
    log: bool = False
    step: float | None = None
    ranges: Mapping[int, Distribution] = {}
    when: Mapping[str, Any] = {}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Distribution:
        """From its words in the file. Raises ValueError, which says what was expected."""
        when = document.get(_WHEN, {})
        described = {key: value for key, value in document.items() if key != _WHEN}
        make_drawer(described)
        kind, choices, options = parts_of(described)
        _check_keys(choices)
        ranges = {place: cls.of(one) for place, one in enumerate(choices) if kind == "choice" and is_range(one)}
        return cls(kind, list(choices), options.get("log", False), options.get("step"), ranges, when)

    def saved(self) -> dict[str, Any]:
        """As `of` reads it."""
        options = {"log": self.log or None, "step": self.step, _WHEN: self.when or None}
        return {self.kind: list(self.choices), **{name: value for name, value in options.items() if value is not None}}

    def is_active(self, params: Mapping[str, Any]) -> bool:
        """Whether a trial with these parameters has this one as well."""
        return all(name in params and holds(expected, params[name]) for name, expected in self.when.items())

    def holds(self, value: Any) -> bool:
        """Whether the value could have been drawn."""
        if self.kind == "choice":
            return self.index(value) is not None
        low, high = self.choices
        wanted = (int,) if self.kind == "integer" else (int, float)
        if type(value) not in wanted or not low <= value <= high:
            return False
        return self.step is None or math.isclose(
            (value - low) / self.step, round((value - low) / self.step), abs_tol=1e-6
        )

    def index(self, value: Any) -> int | None:
        """The place of a value among the choices, before the ranges that hold it; None where it is not one."""
        wanted = identity(value)
        for place, choice in enumerate(self.choices):
            if place not in self.ranges and identity(choice) == wanted:
                return place
        return next((place for place, one in self.ranges.items() if one.holds(value)), None)

    def at(self, place: float) -> Any:
        """The value at a place from 0 to 1; choices and whole numbers have equal parts of it."""
        if self.kind == "choice":
            within, index = math.modf(min(place, 1 - 1e-12) * len(self.choices))
            return self.ranges[int(index)].at(within) if int(index) in self.ranges else self.choices[int(index)]
        low, high = self.choices
        if self.log:
            return integer_at(low, high, place)
        values = self.values()
        if values is not None:
            return values[min(int(place * len(values)), len(values) - 1)]
        if self.kind == "log_uniform":
            return log_uniform_at(low, high, place)
        return uniform_at(low, high, place)

    def rounded(self, value: float) -> float:
        """A number of a range as it is written: as in sweep files."""
        low, high = self.choices
        if self.step is not None:
            return at_step(low, high, self.step, round((value - low) / self.step))
        return rounded(value, low, high)

    def values(self) -> Sequence[Any] | None:
        """All values that can be drawn; None where they are endless."""
        if self.kind == "choice":
            return None if self.ranges else self.choices
        low, high = self.choices
        if self.kind == "integer":
            return range(low, high + 1, int(self.step or 1))
        if self.step is None:
            return None
        return [at_step(low, high, self.step, number) for number in range(steps_within(low, high, self.step) + 1)]


Space = Mapping[str, Distribution]


def read_space(document: Mapping[str, Any], faults: list[str]) -> dict[str, Distribution]:
    """The distributions of `space`; what is wrong with them is added to `faults`."""
    space: dict[str, Distribution] = {}
    for name, described in document.items():
        try:
            check_key(name, "space")
            if isinstance(described, Mapping) and _WHEN in described:
                _check_when(described[_WHEN], space)
            elif not isinstance(described, Mapping):
                make_drawer(described)
            space[name] = Distribution.of(described)
        except UsageError as error:
            faults.append(str(error))
        except ValueError as error:
            faults.append(f"space.{name} = {shown(described)}: {error}{draw_advice(name, described)}")
    return space


def _check_keys(value: object) -> None:
    """ValueError for a key that is no text: the journal would make text of it, and so another value."""
    if isinstance(value, Mapping):
        other = next((key for key in value if not isinstance(key, str)), None)
        if other is not None:
            raise ValueError(f"{shown(other)} is no text: put the key in quotes")
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    for part in parts:
        _check_keys(part)


def _check_when(when: object, before: Space) -> None:
    if not isinstance(when, Mapping) or not when:
        raise ValueError("when: expected conditions such as {optimizer: sgd}")
    for name, expected in when.items():
        if name not in before:
            hint = nearest(str(name), before)
            raise ValueError(f"when: {name} is no parameter above this one{hint}")
        check_condition(expected)


def saved(space: Space) -> dict[str, Any]:
    """The space as `read_space` reads it."""
    return {name: one.saved() for name, one in space.items()}


def fits(space: Space, params: Mapping[str, Any]) -> bool:
    """Whether a trial with these parameters could have been suggested in this space."""
    active = {name: one for name, one in space.items() if one.is_active(params)}
    return active.keys() == params.keys() and all(active[name].holds(value) for name, value in params.items())


def params_at(space: Space, places: Mapping[str, float]) -> dict[str, Any]:
    """The parameters of a trial at these places from 0 to 1."""
    params: dict[str, Any] = {}
    for name, one in space.items():
        if one.is_active(params):
            params[name] = one.at(places[name])
    return params


def combinations(space: Space) -> list[dict[str, Any]] | None:
    """All that can be suggested; None where there are endless ones, or too many to try."""
    lists = [one.values() for one in space.values()]
    known = [values for values in lists if values is not None]
    if len(known) < len(lists) or math.prod(map(len, known)) > _MOST:
        return None
    return list(_distinct(space, known))


def _distinct(space: Space, lists: Sequence[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    seen = set()
    for values in itertools.product(*lists):
        params: dict[str, Any] = {}
        for (name, one), value in zip(space.items(), values, strict=True):
            if one.is_active(params):
                params[name] = value
        if (key := identity(params)) not in seen:
            seen.add(key)
            yield params
