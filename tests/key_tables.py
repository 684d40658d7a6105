"""The rows of the tables in docs/: the keys of a struct, what they mean, and what applies where one is missing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from dispatcher.base.schema.reading import Field, fields
from dispatcher.base.times import duration_text
from dispatcher.base.values import text_of

_NONE: Final = "none"


def table(struct: type[msgspec.Struct], of_method: Collection[str] = ()) -> str:
    """A table in Markdown, a row for each key of `struct`. Of keys in `of_method` a missing one is the method's."""
    rows = []
    for key, field in fields(struct).items():
        default = _default(field)
        if key in of_method:
            default = "the method's" if default == _NONE else f"the method's, else {default}"
        rows.append(f"| `{key}` | {field.key.doc} | {default} |")
    return "\n".join(["| key | meaning | default |", "|---|---|---|", *rows]) + "\n"


def _default(field: Field) -> str:
    """What applies where a key is missing, in words or as a file would have it."""
    if field.is_required:
        return "required"
    if field.key.default:
        return field.key.default
    value = field.default
    if value is None or (not isinstance(value, (bool, int, float)) and not value):
        return _NONE
    if field.name.endswith("_s"):
        return duration_text(value).replace("m00s", "m").replace("h00m", "h")
    text = text_of(field.write(value))
    return text if type(value) is int else f"`{text}`"
