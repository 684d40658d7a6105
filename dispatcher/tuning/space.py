"""The search space of a study: a distribution for each parameter, in the words of sweep files. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.base.values import identity, shown
from dispatcher.errors import UsageError
from dispatcher.matrix.draw import log_uniform_at, make_drawer, rounded, uniform_at
from dispatcher.matrix.faults import Faults, draw_advice
from dispatcher.matrix.new_jobs import check_key


class Distribution(msgspec.Struct, frozen=True):
    """`kind` is a word of matrix.draw; `choices` are the values to choose from, or the two ends of a range."""

    kind: str
    choices: Sequence[Any]

    def holds(self, value: Any) -> bool:
        """Whether the value could have been drawn."""
        if self.kind == "choice":
            return self.index(value) is not None
        low, high = self.choices
        wanted = (int,) if self.kind == "integer" else (int, float)
        return type(value) in wanted and low <= value <= high

    def index(self, value: Any) -> int | None:
        """The place of a value among the choices; None where it is not one."""
        wanted = identity(value)
        return next((place for place, choice in enumerate(self.choices) if identity(choice) == wanted), None)

    def at(self, place: float) -> Any:
        """The value at a place from 0 to 1; choices and whole numbers have equal parts of it."""
        if self.kind == "choice":
            return self.choices[min(int(place * len(self.choices)), len(self.choices) - 1)]
        low, high = self.choices
        if self.kind == "integer":
            return min(low + int(place * (high - low + 1)), high)
        if self.kind == "log_uniform":
            return log_uniform_at(low, high, place)
        return uniform_at(low, high, place)

    def rounded(self, value: float) -> float:
        """A number of a range as it is written, rounded as in sweep files."""
        return rounded(value, *self.choices)


Space = Mapping[str, Distribution]


def read_space(document: Mapping[str, Any], faults: Faults) -> dict[str, Distribution]:
    """The distributions of `space`; what is wrong with them is added to `faults`."""
    space = {}
    for name, described in document.items():
        try:
            check_key(name, "space")
            make_drawer(described)
        except UsageError as error:
            faults.append(str(error))
        except ValueError as error:
            faults.append(f"space.{name} = {shown(described)}: {error}{draw_advice(name, described)}")
        else:
            ((kind, choices),) = described.items()
            space[name] = Distribution(str(kind).replace("-", "_"), list(choices))
    return space


def saved(space: Space) -> dict[str, Any]:
    """The space as `read_space` reads it."""
    return {name: {one.kind: list(one.choices)} for name, one in space.items()}


def fits(space: Space, params: Mapping[str, Any]) -> bool:
    """Whether a trial with these parameters could have been suggested in this space."""
    return space.keys() == params.keys() and all(space[name].holds(value) for name, value in params.items())
