"""The types of a configuration's values, and the conversion of values from YAML to them.

bool, int, float, str, Path, Enum, Literal, None, Any, unions of these, and list, tuple and dict of them. A whole number
converts to float; there are no other implicit conversions.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Union

from dispatcher.base.values import BadValueError, shown


class MismatchError(BadValueError):
    """A value that does not have the type of its field.

    `value` is the innermost wrong value, and `place` is where it is inside of the converted one: `[2]`, `.name`, empty.
    """

    def __init__(self, value: object, expected: str, place: str = "") -> None:
        super().__init__(f"expected {expected}")
        self.value = value
        self.expected = expected
        self.place = place

    def at(self, path: str) -> str:
        """The fault of the field at `path`: `training.betas[1] = "x": expected a number`."""
        return f"{path}{self.place} = {shown(self.value)}: {self}"


def convert(kind: Any, value: object) -> Any:
    """`value` converted to the type `kind`; MismatchError names the part that cannot be converted."""
    reader = _PLAIN.get(kind)
    if reader is not None:
        return reader(value)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(kind, value)
    if origin is Literal:
        return _convert_choice(kind, arguments, arguments, value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _convert_choice(kind, tuple(kind), tuple(member.value for member in kind), value)
    if kind in (list, tuple) or origin in (list, tuple):
        return _convert_sequence(kind, value)
    return _convert_mapping(kind, value)


def expected(kind: Any) -> str:
    """The type `kind` in words, for messages; TypeError for a type that a configuration cannot hold."""
    if kind in _NAMES:
        return _NAMES[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(expected(member) for member in arguments))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        origin, arguments = Literal, tuple(member.value for member in kind)
    if origin is Literal:
        return f"one of {', '.join(map(shown, arguments))}"
    return _expected_collection(kind, origin, arguments)


def _expected_collection(kind: Any, origin: Any, arguments: tuple[Any, ...]) -> str:
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        return f"a list, each of it {expected(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)}: {', '.join(map(expected, arguments))}"
    if origin is dict and arguments[0] is str:
        return f"names, each with {expected(arguments[1])}"
    raise TypeError(f"{kind!r} is not a type for a configuration's value (bool, int, float, str, Path, list[int], ...)")


def plain(value: Any) -> Any:
    """`value` as YAML data: paths and enums as text, tuples as lists; the inverse of `convert`."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(member) for member in value]
    if isinstance(value, Mapping):
        return {key: plain(member) for key, member in value.items()}
    return value


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise MismatchError(value, "true or false")
    return value


def _read_int(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        raise MismatchError(value, f"a whole number, written {int(value)}")
    if not isinstance(value, int) or isinstance(value, bool):
        raise MismatchError(value, "a whole number")
    return value


def _read_float(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise MismatchError(value, "a number")


def _read_text(value: object) -> str:
    if isinstance(value, str):
        return value
    hint = "" if isinstance(value, (list, dict)) else " (in quotes, since without them it means something else)"
    raise MismatchError(value, f"text{hint}")


def _read_path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if isinstance(value, str) and value:
        return Path(value)
    raise MismatchError(value, "a path")


def _read_none(value: object) -> None:
    if value is not None:
        raise MismatchError(value, "null")


_PLAIN: Final[Mapping[Any, Callable[[object], Any]]] = {
    Any: lambda value: value,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_text,
    Path: _read_path,
    None: _read_none,
    type(None): _read_none,
}
_NAMES: Final[Mapping[Any, str]] = {
    Any: "any value",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    None: "null",
    type(None): "null",
    list: "a list",
    tuple: "a list",
    dict: "names, each with a value",
}


def _convert_union(kind: Any, value: object) -> Any:
    fitting = []
    deepest: MismatchError | None = None
    for member in typing.get_args(kind):
        try:
            fitting.append(convert(member, value))
        except MismatchError as error:
            if error.place:
                deepest = error
    # A member of the value's own type comes first, so `int | float` and `float | int` both keep 1 an int.
    for found in fitting:
        if type(found) is type(value):
            return found
    if fitting:
        return fitting[0]
    raise deepest or MismatchError(value, expected(kind))


def _convert_choice(kind: Any, members: tuple[Any, ...], values: tuple[Any, ...], value: object) -> Any:
    for member, choice in zip(members, values, strict=True):
        # The types are compared because 1 == True.
        if value is member or (type(value) is type(choice) and value == choice):
            return member
    raise MismatchError(value, expected(kind))


def _convert_sequence(kind: Any, value: object) -> Any:
    make = tuple if kind is tuple or typing.get_origin(kind) is tuple else list
    if not isinstance(value, (list, tuple)):
        raise MismatchError(value, expected(kind))
    arguments = typing.get_args(kind) or (Any, ...)
    if make is list or arguments[1:] == (...,):
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise MismatchError(value, expected(kind))
    return make(_inside(f"[{i}]", kind, value[i]) for i, kind in enumerate(arguments))


def _convert_mapping(kind: Any, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise MismatchError(value, expected(kind))
    member = (typing.get_args(kind) or (str, Any))[1]
    for name in value:
        if not isinstance(name, str):
            raise MismatchError(name, "a name that is text (put it in quotes)", f".{name}")
    return {name: _inside(f".{name}", member, item) for name, item in value.items()}


def _inside(place: str, kind: Any, value: object) -> Any:
    try:
        return convert(kind, value)
    except MismatchError as error:
        raise MismatchError(error.value, error.expected, place + error.place) from None
