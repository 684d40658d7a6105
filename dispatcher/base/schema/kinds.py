"""Values that entries, methods, hosts and settings share, each a type with its form in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias

from dispatcher.base import values
from dispatcher.base.schema.types import Value

TEXT: Final = {"type": "string", "minLength": 1}
_A_TIME: Final = (
    r"^\s*((\d+(\.\d+)?\s*[dhms]\s*)+|(\d{1,4}-)?\d{1,4}:[0-5]?\d:[0-5]?\d|\d{1,4}-\d{1,2}(:[0-5]?\d)?)\s*$"
)
_MEMORY: Final = {"type": "string", "pattern": r"^\d+(\.\d+)?\s?[KMGT](i?B)?$", "examples": ["64G"]}
ENV: Final = {
    "type": "object",
    "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
    "additionalProperties": {"type": ["string", "integer"]},
}


def one_or_many(part: Mapping[str, Any], least: int = 0) -> Mapping[str, Any]:
    """The JSON schema of one value, or of a list of at least so many."""
    return {"anyOf": [part, {"type": "array", "items": part, "minItems": least}]}


def one_or_many_of(kind: Any) -> Callable[[], Mapping[str, Any]]:
    """As `one_or_many`, for values of a type."""

    def schema() -> Mapping[str, Any]:
        from dispatcher.base.schema.json_schema import of_type

        return one_or_many(of_type(kind))

    return schema


def read_later(schema: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> Value:
    """A value that is read when that is known on which it depends."""
    return Value(lambda value: value, schema)


def number(least: int, most: int, read: values.Reader) -> Value:
    """A whole number from `least` to `most`."""
    return Value(read, {"type": "integer", "minimum": least, "maximum": most})


def duration(read: values.Reader = values.parse_duration, *words: str) -> Value:
    """A time, or one of `words`."""
    forms: list[Mapping[str, Any]] = [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": _A_TIME, "examples": ["90m", "8h", "1h30m", "1-12:00:00"]},
    ]
    return Value(read, {"anyOf": [*forms, {"enum": list(words)}] if words else forms})


Text: TypeAlias = Annotated[str, Value(values.parse_text, TEXT)]
Count: TypeAlias = Annotated[int, number(0, values.MOST, values.parse_count)]
Positive: TypeAlias = Annotated[int, number(1, values.MOST, values.parse_positive)]
Integer: TypeAlias = Annotated[int, number(-values.MOST_BITS, values.MOST_BITS, values.parse_integer)]
Duration: TypeAlias = Annotated[float, duration()]
Memory: TypeAlias = Annotated[int, Value(values.parse_memory, _MEMORY, "{}M".format)]
Command: TypeAlias = Annotated[
    str | tuple[str, ...],
    Value(values.parse_command, {"anyOf": [TEXT, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
Env: TypeAlias = Annotated[Mapping[str, str], Value(values.parse_env, ENV)]
Names: TypeAlias = Annotated[tuple[str, ...], Value(values.parse_names, {"type": "array", "items": {"type": "string"}})]
Words: TypeAlias = Annotated[tuple[str, ...], Value(values.parse_words, one_or_many(TEXT, 1))]
PrivatePath: TypeAlias = Annotated[
    str, Value(values.parse_private_path, {"type": "string", "pattern": "^(/|~/)[^\\n]*$"})
]
