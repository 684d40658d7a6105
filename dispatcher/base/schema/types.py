"""The types of values in files, and what annotates them: Value, and Key for the fields of structs.

bool, int, float, str, Path, Enum, Literal, None, Any, unions of these, lists, tuples and mappings of them, structs, and
`Annotated[type, Value(...)]` for a value whose text has a form of its own.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Union

import msgspec

from dispatcher.base.values import Reader, shown


class Value(msgspec.Struct, frozen=True, eq=False):
    """How values of an annotated type are written in files.

    `read` parses one, or raises BadValueError with what was expected. `json` is their JSON schema, which accepts all
    that `read` accepts and, where it can, nothing else. `write` is the inverse of `read`; None: see `plain`.
    """

    read: Reader
    json: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    write: Callable[[Any], Any] | None = None


def value_of(kind: Any) -> Value | None:
    """The Value that `kind` is annotated with; None: the type itself says which values there are."""
    marks = getattr(kind, "__metadata__", ())
    return next((mark for mark in reversed(marks) if isinstance(mark, Value)), None)


def bare(kind: Any) -> Any:
    """`kind` without annotations other than a Value."""
    return kind.__origin__ if hasattr(kind, "__metadata__") and value_of(kind) is None else kind


def members(kind: Any) -> tuple[Any, ...]:
    """The types of a union; `kind` alone when it is none."""
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)


def set_type(kind: Any) -> Any:
    """The type of a key that is set: `kind` without None."""
    rest = tuple(bare(member) for member in members(bare(kind)) if member is not type(None))
    return Union[rest] if rest else kind  # noqa: UP007 # a union of a tuple has no other form


class Key(msgspec.Struct, frozen=True, eq=False):
    """That a field is a key in files.

    `doc` is one line of Markdown, with links from docs/; `default` says what applies where the key is missing, '': the
    field's default. A field without a default and without these words is required.
    `name` is the key, '': the field without its unit. `is_short`: a value that is no mapping is that of this key.
    `is_secret`: no message shows the value as a whole. `is_digested`: entries that differ in it are different jobs.
    """

    doc: str
    default: str = ""
    name: str = ""
    is_short: bool = False
    is_secret: bool = False
    is_digested: bool = True


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
        return " or ".join(map(str, arguments)) if len(arguments) == 2 else f"one of {listed(arguments)}"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"keys such as {example(kind)}"
    return _expected_collection(kind, origin, arguments)


def example(struct: type[msgspec.Struct]) -> str:
    """An example of a mapping with the keys of a struct: its EXAMPLE, else its first fields."""
    return str(getattr(struct, "EXAMPLE", ", ".join(struct.__struct_fields__[:3])))


def listed(choices: tuple[Any, ...]) -> str:
    """Choices in a message, in quotes only where they are not all text."""
    return ", ".join(choices if all(isinstance(one, str) for one in choices) else map(shown, choices))


def _expected_collection(kind: Any, origin: Any, arguments: tuple[Any, ...]) -> str:
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        if isinstance(arguments[0], type) and issubclass(arguments[0], msgspec.Struct):
            return f"a list such as [{example(arguments[0])}]"
        return f"a list, each of it {expected(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)}: {', '.join(map(expected, arguments))}"
    if origin is dict and arguments[0] is str:
        return f"names, each with {expected(arguments[1])}"
    raise TypeError(f"{kind!r} is not a type for a configuration's value (bool, int, float, str, Path, list[int], ...)")


def plain(value: Any) -> Any:
    """`value` as YAML data: paths and enums as text, tuples as lists, structs as mappings; the inverse of `convert`."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(member) for member in value]
    if isinstance(value, Mapping):
        return {key: plain(member) for key, member in value.items()}
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value


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
