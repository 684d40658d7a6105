"""Faults of a value, each with its place in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dispatcher.base.values import BadValueError, Reader, shown_at


class PartFault(msgspec.Struct, frozen=True):
    """A fault within a value: its place there (`[1].name`), the value at that place, and what was expected.

    `is_hidden`: there is no value to show, or it may be a secret.
    """

    place: str
    value: object
    message: str
    is_hidden: bool = False

    def line(self, before: str = "") -> str:
        """The fault as a line, its place below `before`."""
        place = (before + self.place).removeprefix(".")
        if self.is_hidden:
            return f"{place}: {self.message}"
        return f"{place} = {shown_at(place, self.value)}: {self.message}"


class PartsError(BadValueError):
    """A value with faults in its parts."""

    def __init__(self, faults: Sequence[PartFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.line() for fault in faults))


def faults_of(error: BadValueError, value: object, place: str = "") -> list[PartFault]:
    """The faults that a reader has raised for `value`, which is found at `place`."""
    if isinstance(error, PartsError):
        return [msgspec.structs.replace(fault, place=place + fault.place) for fault in error.faults]
    return [PartFault(place, value, str(error))]


def lines_of(error: BadValueError, value: object, place: str = "") -> list[str]:
    """As `faults_of`, as lines."""
    return [fault.line() for fault in faults_of(error, value, place)]


def read_all(parts: Iterable[tuple[str, object, Reader]]) -> list[Any]:
    """What the readers return for the parts of a value (place, value, reader); PartsError with the faults of all."""
    found, faults = [], []
    for place, value, read in parts:
        try:
            found.append(read(value))
        except BadValueError as error:
            faults += faults_of(error, value, place)
    if faults:
        raise PartsError(faults)
    return found
