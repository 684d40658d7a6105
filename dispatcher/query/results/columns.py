"""The kind of a column's values, so that integers stay integers and a NaN is not a missing value. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.times import parse_time
from dispatcher.base.values import number_of, text_of


class ColumnType(enum.Enum):
    """What a column holds; of each kind of values that of a frame's columns."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    TEXT = "text"
    TIME = "time"


class TypedColumn(msgspec.Struct, frozen=True, eq=False):
    """Values of one kind, None where one is missing. Times are microseconds since 1970."""

    kind: ColumnType
    values: list[Any]


_KINDS: Final = {bool: ColumnType.BOOL, int: ColumnType.INT, float: ColumnType.FLOAT, str: ColumnType.TEXT}
_INT64: Final = range(-(2**63), 2**63)
_ABSENT: Final = object()


def column_of(rows: Sequence[Mapping[str, Any]], name: str, kind: ColumnType | None = None) -> TypedColumn:
    """The column `name` of rows; of this kind, else of the one that suits all its values.

    A null is a NaN among floats, because `report_result` writes a NaN so; elsewhere it is missing.
    """
    values = [row.get(name, _ABSENT) for row in rows]
    if kind is ColumnType.TIME:
        return TypedColumn(kind, [None if value is _ABSENT else _microseconds(value) for value in values])
    kind = kind or kind_of(values)
    return TypedColumn(kind, [_converted(value, kind) for value in values])


def kind_of(values: Sequence[Any]) -> ColumnType:
    """The kind that suits all these values. Integers among floats are floats; other mixtures are text."""
    types = set(map(type, values)) - {type(None), object}
    kinds = {_KINDS.get(one, ColumnType.TEXT) for one in types}
    if kinds == {ColumnType.INT, ColumnType.FLOAT}:
        return ColumnType.FLOAT
    if kinds == {ColumnType.INT} and not all(value in _INT64 for value in values if type(value) is int):
        return ColumnType.TEXT
    if not kinds:
        # Nulls alone: results that were NaN in all jobs.
        return ColumnType.FLOAT
    return kinds.pop() if len(kinds) == 1 else ColumnType.TEXT


def _converted(value: Any, kind: ColumnType) -> Any:
    if value is _ABSENT:
        return None
    if kind is ColumnType.FLOAT:
        return number_of(value)
    return text_of(value) if kind is ColumnType.TEXT and value is not None else value


def _microseconds(value: Any) -> int | None:
    seconds = parse_time(value) if isinstance(value, str) else None
    return None if seconds is None else round(seconds * 1e6)
