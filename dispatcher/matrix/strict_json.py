"""JSON in files that people write: duplicate keys and other things that parsers accept silently are faults here.

msgspec is several times as fast as the standard library, but it does not notice a duplicate key, and its messages
count bytes. So msgspec decodes, a count of colons shows whether a key may have been lost, and only in that case, or
after an error, the standard library parses the text again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from dispatcher.base.lazy import pattern
from dispatcher.base.values import shown

# Deeper than any parameter needs. With this bound, functions on decoded values may recurse.
_DEEPEST = 64

# How many members of a list or object are decoded at once.
_AT_ONCE = 500
_split = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw]).decode
_CONSTANT = pattern(r"-?(NaN|Infinity|inf|nan)\b")
_HALF_PAIR = pattern(r"[\ud800-\udfff]")


def decode(data: bytes) -> tuple[Any, list[str]]:
    """The value in `data`, and its faults (duplicate keys). ValueError says where it is not JSON."""
    _check_text(data)
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise ValueError(f"is nested more than {_DEEPEST} levels deep") from None
    except msgspec.DecodeError as error:
        raise ValueError(_syntax_fault(data, str(error))) from None
    keys = _count_keys(value)
    # Every key is followed by a colon, so as many colons as keys means that no key was lost. A colon inside text only
    # makes that number larger, so a duplicate never passes.
    return value, _duplicates(data) if _written_keys(data) != keys else []


class Members:
    """The members of a JSON list or object, decoded some at a time: all at once take ten times as much memory as text.

    `keys` are those of an object, None for a list. `scalar` is what the text holds instead of both. ValueError, also
    while the values are read, says where it is not JSON.
    """

    def __init__(self, data: bytes) -> None:
        _check_text(data)
        self.keys: Collection[str] | None = None
        self.scalar: str | None = None
        self._data = data
        self._count = 0
        self._raw: Sequence[msgspec.Raw] = ()
        try:
            raw = _split(data)
        except (RecursionError, msgspec.DecodeError):
            self.scalar = shown(self._decoded_as_a_whole())
            return
        if isinstance(raw, dict):
            self.keys, raw = raw.keys(), list(raw.values())
            self._count = len(raw)
        self._raw = raw

    def has_text(self, key: str) -> bool:
        """Whether the object has text under `key`."""
        return any(
            raw[:1] == b'"' for name, raw in zip(self.keys or (), map(bytes, self._raw), strict=True) if name == key
        )

    def values(self) -> Iterator[Any]:
        """The decoded members, in their order; to be read to the end once."""
        for start in range(0, len(self._raw), _AT_ONCE):
            try:
                part = msgspec.json.decode(b"[%s]" % b",".join(self._raw[start : start + _AT_ONCE]))
            except (RecursionError, msgspec.DecodeError):
                self._decoded_as_a_whole()
                raise
            self._count += _count_keys(part)
            yield from part

    def duplicates(self) -> list[str]:
        """The duplicate keys, after all values were read."""
        return _duplicates(self._data) if _written_keys(self._data) != self._count else []

    def _decoded_as_a_whole(self) -> Any:
        """Only to find out what is wrong, and where."""
        return decode(self._data)[0]


def _written_keys(data: bytes) -> int:
    """At least the number of the keys in `data`."""
    return data.count(b'":') + sum(data.count(space + b":") for space in (b" ", b"\t", b"\n", b"\r"))


def _check_text(data: bytes) -> None:
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError("begins with a byte-order mark (BOM): save it as UTF-8 without BOM")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("is UTF-16: save it as UTF-8")
    if not data or data.isspace():
        raise ValueError("is empty: expected JSON")
    try:
        if not data.isascii():
            data.decode()
    except UnicodeDecodeError as error:
        place = _place(data[: error.start].decode())
        raise ValueError(f"{place}: the byte {data[error.start]:#04x} is not UTF-8: save the file as UTF-8") from None


def _place(before: str) -> str:
    """The line and column after `before`, both counted from 1."""
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def _syntax_fault(data: bytes, message: str) -> str:
    text = data.decode()
    position = re.search(r"\(byte (\d+)\)", message)
    if position:
        before = data[: int(position[1])].decode(errors="ignore")
        # For -Infinity the parser stops after the sign.
        constant = _CONSTANT.match(text, len(before)) or _CONSTANT.match(text, max(len(before) - 1, 0))
        if constant:
            return f"{_place(text[: constant.start()])}: {constant[0]} is not JSON: expected a number or null"
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, column {error.colno}: {error.msg}: not valid JSON from here"
    except RecursionError:
        return f"is nested more than {_DEEPEST} levels deep"
    except ValueError:
        return "holds a number with too many digits"
    if _HALF_PAIR.search(json.dumps(value, ensure_ascii=False)):
        return rf"{_place_of_half_pair(value)}holds half of a surrogate pair (\ud800 to \udfff), which is no character"
    entry = re.search(r"\$\[(\d+)\]", message)
    where = f"entry {int(entry[1]) + 1}: " if entry else ""
    key, number = _too_large(json.loads(text, parse_float=_Float), "")
    return f"{where}{key} = {number[:40]}: a number that is too large for 64 bits" if number else f"{where}{message}"


class _Float(float):
    """A number that knows how it is written."""

    text: str

    def __new__(cls, text: str) -> _Float:
        made = super().__new__(cls, text)
        made.text = text
        return made


def _too_large(value: Any, key: str) -> tuple[str, str]:
    """The key of the first number that no float can hold, and how it is written; empty where there is none."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        # The message has the number of the entry already.
        path = f"{key}.{name}" if key else str(name) if isinstance(value, dict) else ""
        if isinstance(item, _Float) and math.isinf(item):
            return path, item.text
        if (found := _too_large(item, path))[1]:
            return found
    return "", ""


def _place_of_half_pair(value: Any) -> str:
    """The entry of a list, or the key of an object, that contains it."""
    items = value.items() if isinstance(value, dict) else enumerate(value, 1) if isinstance(value, list) else ()
    for place, item in items:
        if _HALF_PAIR.search(json.dumps(item, ensure_ascii=False)):
            return f"{_HALF_PAIR.sub('?', place)}: " if isinstance(place, str) else f"entry {place}: "
    return ""


def _count_keys(value: Any) -> int:
    """The number of keys in all decoded objects; ValueError beyond `_DEEPEST` levels."""
    count = 0
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(_DEEPEST):
        deeper: list[Any] = []
        for container in level:
            members: Collection[Any] = container
            if isinstance(container, dict):
                count += len(container)
                members = container.values()
            kinds = set(map(type, members))
            if dict in kinds or list in kinds:
                deeper += [member for member in members if type(member) in (dict, list)]
        if not deeper:
            return count
        level = deeper
    raise ValueError(f"is nested more than {_DEEPEST} levels deep")


class _Object(dict[str, Any]):
    """An object and its duplicate keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.duplicates: list[str] = []
        if len(self) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen and key not in self.duplicates:
                    self.duplicates.append(key)
                seen.add(key)


def _duplicates(data: bytes) -> list[str]:
    value = json.loads(data, object_pairs_hook=_Object)
    return [
        f"{place}: duplicate key {shown(key)}: remove one"
        for place, item in _objects(value, "the file")
        for key in item.duplicates
    ]


def _objects(value: Any, place: str) -> Iterator[tuple[str, _Object]]:
    """Every object, with its place for a message: the entry's job_id if it has one, else its position."""
    if isinstance(value, _Object):
        yield place, value
        for key, member in value.items():
            yield from _objects(member, key if place == "the file" else f"{place}: {key}")
    elif isinstance(value, list):
        for position, member in enumerate(value, 1):
            name = member.get("job_id") if isinstance(member, _Object) else None
            here = str(name) if name and place == "the file" else f"entry {position}"
            yield from _objects(member, here if place == "the file" else f"{place}[{position - 1}]")
