"""The JSON schema of a type: editors complete and check files with it. It accepts all that the readers accept."""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Union

import msgspec

from dispatcher.base.schema.reading import Field, fields
from dispatcher.base.schema.types import bare, value_of

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
# Draft 7 is the newest that editors for YAML support.
_PLAIN: Final[Mapping[Any, Mapping[str, Any]]] = {
    Any: {},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
}
# A link in Markdown: its pages are not there where an editor shows a description. In brackets it is left out.
_ASIDE: Final = r" \(\[[^\]]+\]\([^)]+\)\)"
_LINK: Final = r"\[([^\]]+)\]\([^)]+\)"


def of_type(kind: Any) -> Mapping[str, Any]:
    """The schema of the values that the reader of `kind` accepts."""
    kind = bare(kind)
    value = value_of(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    found: Mapping[str, Any]
    if value is not None:
        found = value.json() if callable(value.json) else value.json
    elif kind in _PLAIN:
        found = _PLAIN[kind]
    elif origin in (Union, types.UnionType):
        found = {"anyOf": [of_type(member) for member in arguments]}
    elif origin is Literal:
        found = {"enum": list(arguments)}
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        found = {"enum": [member.value for member in kind]}
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        found = of_struct(kind)
    elif origin is tuple and arguments[1:] != (...,):
        found = {"type": "array", "items": list(map(of_type, arguments)), "minItems": len(arguments)}
    elif origin in (list, tuple):
        found = {"type": "array", "items": of_type(arguments[0])}
    else:
        found = {"type": "object", "additionalProperties": of_type(arguments[1])}
    return found


def of_struct(
    struct: type[msgspec.Struct], also: Mapping[str, Any] | None = None, *, is_open: bool = False
) -> Mapping[str, Any]:
    """The schema of a mapping with the keys of `struct`, and those of `also`; `is_open`: with any others, too."""
    known = fields(struct)
    found: dict[str, Any] = {
        "type": "object",
        "properties": {**{key: _property(field) for key, field in known.items()}, **(also or {})},
    }
    required = [key for key, field in known.items() if field.is_required]
    if required:
        found["required"] = required
    if not is_open:
        found["additionalProperties"] = False
    short = next((field for field in known.values() if field.key.is_short), None)
    return found if short is None else {"anyOf": [found, of_type(short.type)]}


def _property(field: Field) -> Mapping[str, Any]:
    """The schema of a key's value. A key whose value is null counts as missing."""
    described: dict[str, Any] = {"description": text_of(field.key.doc)}
    if field.key.default:
        described["description"] += f" (default: {text_of(field.key.default)})"
    elif not field.is_required and (default := field.write(field.default)) not in (None, (), [], {}, ""):
        described["default"] = default
    if field.is_required:
        return {**described, **of_type(field.type)}
    return {**described, **nullable(of_type(field.type))}


def nullable(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that accepts null as well, in a form in which faults keep their place."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*kinds, "null"]}
    return {"anyOf": [schema, {"type": "null"}]} if schema else schema


def text_of(markdown: str) -> str:
    """One line of Markdown without its links."""
    return re.sub(_LINK, r"\1", re.sub(_ASIDE, "", markdown))
