"""The readers of types, the keys of structs, and the reader of documents with such keys.

A whole number converts to float; there are no other implicit conversions.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union

import msgspec
from msgspec.structs import replace

from dispatcher.base.schema.faults import PartFault, PartsError, faults_of, read_all
from dispatcher.base.schema.types import Key, bare, expected, plain, set_type, value_of
from dispatcher.base.values import BadValueError, Reader
from dispatcher.errors import nearest, similar

T = TypeVar("T")


class Field(msgspec.Struct, frozen=True):
    """A key of a struct: its field, its type, how it is read and written, and whether it must be set."""

    name: str
    key: Key
    type: Any
    read: Reader
    write: Any
    default: Any
    is_required: bool


@functools.cache
def fields(struct: type[msgspec.Struct]) -> Mapping[str, Field]:
    """The keys of a struct in the order of its fields; those of a base class before its own."""
    found = {}
    for info in msgspec.structs.fields(struct):
        key = _key(struct, info.name)
        if key is None:
            continue
        kind = set_type(info.type)
        value = value_of(kind)
        write = plain if value is None or value.write is None else value.write
        name = key.name or info.name.removesuffix("_s").removesuffix("_mib")
        default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
        required = info.required and not key.default
        found[name] = Field(info.name, key, kind, reader(kind), write, default, required)
    return found


def _key(struct: type, name: str) -> Key | None:
    """The Key of a field: in its own annotation, else in that of the same field of a base class."""
    for cls in struct.__mro__:
        for mark in getattr(_hints(cls).get(name), "__metadata__", ()):
            if isinstance(mark, Key):
                return mark
    return None


@functools.cache
def _hints(cls: type) -> Mapping[str, Any]:
    own = vars(cls).get("__annotations__", {})
    # Text takes long to evaluate: what every command loads has none.
    return typing.get_type_hints(cls, include_extras=True) if any(isinstance(one, str) for one in own.values()) else own


def parse(
    struct: type[msgspec.Struct], document: Mapping[Any, Any], place: str = "", also: tuple[str, ...] = ()
) -> tuple[dict[str, Any], list[PartFault]]:
    """The fields that `document` sets, and all its faults; a key without a value counts as missing.

    Unknown keys are faults, but for those in `also`, which others read.
    """
    known = fields(struct)
    faults = [
        PartFault(f"{place}.{key}", None, f"unknown key{nearest(str(key), [*known, *also])}", is_hidden=True)
        for key in document
        if key not in known and key not in also
    ]
    faults += [
        PartFault(f"{place}.{key}", None, "is missing", is_hidden=True)
        for key, field in known.items()
        if field.is_required and document.get(key) is None
    ]
    found: dict[str, Any] = {}
    for key, value in document.items():
        if key in known and value is not None:
            field, here = known[key], f"{place}.{key}"
            try:
                found[field.name] = field.read(value)
            except BadValueError as error:
                for fault in faults_of(error, value, here):
                    is_secret = field.key.is_secret and fault.place == here
                    faults.append(replace(fault, is_hidden=True) if is_secret else fault)
    return found, faults


def make(struct: type[T], value: object) -> T:
    """The struct that `value` describes: a mapping, or the value of its short key. PartsError names every fault."""
    assert issubclass(struct, msgspec.Struct)
    if not isinstance(value, Mapping):
        short = next((key for key, field in fields(struct).items() if field.key.is_short), None)
        if short is None:
            raise _mismatch(struct)
        return struct(**{fields(struct)[short].name: fields(struct)[short].read(value)})
    found, faults = parse(struct, value)
    if faults:
        raise PartsError(faults)
    return struct(**found)


def written(struct: type[msgspec.Struct], made: msgspec.Struct) -> dict[str, Any]:
    """The keys of `made` that are set, as a file has them: those that differ from the defaults of `struct`."""
    words = {}
    for key, field in fields(struct).items():
        value = getattr(made, field.name)
        if value != field.default:
            words[key] = field.write(value)
    return words


def convert(kind: Any, value: object) -> Any:
    """`value` converted to the type `kind`; BadValueError says what was expected, PartsError in which part."""
    return reader(kind)(value)


@functools.cache
def reader(kind: Any) -> Reader:
    """The function that converts a value to the type `kind`."""
    kind = bare(kind)
    value = value_of(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    read: Reader
    if value is not None:
        read = value.read
    elif kind in _PLAIN:
        read = _PLAIN[kind]
    elif origin in (Union, types.UnionType):
        read = functools.partial(_read_union, kind)
    elif origin is Literal:
        read = functools.partial(_read_choice, arguments, arguments)
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        read = functools.partial(_read_choice, tuple(kind), tuple(member.value for member in kind))
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        read = functools.partial(make, kind)
    elif kind in (list, tuple) or origin in (list, tuple):
        read = functools.partial(_read_sequence, kind)
    else:
        read = functools.partial(_read_mapping, kind)
    return read


def _mismatch(kind: Any) -> BadValueError:
    return BadValueError(f"expected {expected(kind)}")


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(bool)
    return value


def _read_int(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        raise BadValueError(f"expected a whole number, written {int(value)}")
    if not isinstance(value, int) or isinstance(value, bool):
        raise _mismatch(int)
    return value


def _read_float(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _mismatch(float)


def _read_text(value: object) -> str:
    if isinstance(value, str):
        return value
    hint = "" if isinstance(value, (list, dict)) else " (in quotes, since without them it means something else)"
    raise BadValueError(f"expected text{hint}")


def _read_path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if isinstance(value, str) and value:
        return Path(value)
    raise _mismatch(Path)


def _read_none(value: object) -> None:
    if value is not None:
        raise _mismatch(None)


_PLAIN: Final[Mapping[Any, Reader]] = {
    Any: lambda value: value,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_text,
    Path: _read_path,
    None: _read_none,
    type(None): _read_none,
}


def _read_union(kind: Any, value: object) -> Any:
    fitting = []
    deepest: PartsError | None = None
    for member in typing.get_args(kind):
        try:
            fitting.append(convert(member, value))
        except PartsError as error:
            deepest = error
        except BadValueError:
            pass
    # A member of the value's own type comes first, so `int | float` and `float | int` both keep 1 an int.
    for found in fitting:
        if type(found) is type(value):
            return found
    if fitting:
        return fitting[0]
    raise deepest or _mismatch(kind)


def _read_choice(found: tuple[Any, ...], choices: tuple[Any, ...], value: object) -> Any:
    for member, choice in zip(found, choices, strict=True):
        # The types are compared because 1 == True.
        if value is member or (type(value) is type(choice) and value == choice):
            return member
    hint = similar(value, [one for one in choices if isinstance(one, str)]) if isinstance(value, str) else ""
    raise BadValueError(f"expected {expected(Literal[choices])}{hint}")


def _read_sequence(kind: Any, value: object) -> Any:
    collect = tuple if kind is tuple or typing.get_origin(kind) is tuple else list
    if not isinstance(value, (list, tuple)):
        raise _mismatch(kind)
    arguments = typing.get_args(kind) or (Any, ...)
    if collect is list or arguments[1:] == (...,):
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise _mismatch(kind)
    return collect(read_all((f"[{i}]", value[i], reader(member)) for i, member in enumerate(arguments)))


def _read_mapping(kind: Any, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _mismatch(kind)
    unnamed = [name for name in value if not isinstance(name, str)]
    if unnamed:
        raise PartsError([PartFault(f".{unnamed[0]}", unnamed[0], "expected a name that is text (put it in quotes)")])
    read = reader((typing.get_args(kind) or (str, Any))[1])
    return dict(zip(value, read_all((f".{name}", item, read) for name, item in value.items()), strict=True))
