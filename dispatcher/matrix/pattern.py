"""Text with `{key}` fields, as in `"{method}_{lang}_s{seed:03d}"`, filled from an entry."""

from __future__ import annotations

import glob
import re
import string
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from dispatcher.base.values import shown, text_of
from dispatcher.errors import nearest

# The longest id.
_WIDEST: Final = 200

_Part = tuple[str, str | None, str]


def fill(pattern: str, values: Mapping[str, Any], escape_globs: bool = False) -> str:
    """`pattern` with its fields filled; ValueError names a field that `values` lacks.

    Text is inserted unchanged, anything else as JSON, or by the format after a colon (`{lr:.0e}`). Doubled braces are
    braces. `escape_globs`: values match literally in a pattern with `*`, `?` or `[...]`.
    """
    pieces = []
    for literal, key, form in _parts(pattern):
        pieces.append(literal)
        if key is not None:
            text = _formatted(key, values, form)
            pieces.append(glob.escape(text) if escape_globs else text)
    return "".join(pieces)


@lru_cache(maxsize=256)
def _parts(pattern: str) -> tuple[_Part, ...]:
    try:
        parsed = list(string.Formatter().parse(pattern))
    except ValueError as error:
        raise ValueError(f"{shown(pattern)} is not a pattern: {error}") from None
    for _, key, form, conversion in parsed:
        if key == "" or conversion or (form and "{" in form):
            raise ValueError(f"{shown(pattern)} is not a pattern: expected fields such as {{lang}} or {{seed:03d}}")
        # A width of a billion would fill the memory.
        if any(len(number) > 3 or int(number) > _WIDEST for number in re.findall(r"[0-9]+", form or "")):
            raise ValueError(f"{shown(pattern)} is not a pattern: {{{key}:{form}}} is wider than {_WIDEST} letters")
    return tuple((literal, key, form or "") for literal, key, form, _ in parsed)


def _formatted(key: str, values: Mapping[str, Any], form: str) -> str:
    if key not in values:
        raise ValueError(f"{{{key}}} is not a key of the entry{nearest(key, values)}")
    value = values[key]
    if not form:
        return text_of(value)
    try:
        return format(value, form)
    except (ValueError, TypeError):
        raise ValueError(f"{{{key}:{form}}}: {shown(value)} cannot be written in the format {form!r}") from None
