"""Answers as JSON: encoding, the age of the data, errors."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.errors import DispatcherError

# Lists have bounds that keep answers below this by far; what jobs and people write may be of any length.
MOST_BYTES: Final = 1_000_000
# How an answer is shortened that would be longer, step by step: texts to so many characters, lists and objects within
# the items of a list to so many entries.
_LEVELS: Final = ((20_000, 500), (2_000, 100), (300, 50), (256, 8), (64, 1))
# What requests are made of is left as it is.
_NAMES: Final = frozenset({"job", "scope", "values", "where"})
_JOBS: Final = "jobs"
# How deep in a part the lists and objects are that are shortened: within the items of its list.
_DEPTH: Final = 2

_encoder = msgspec.json.Encoder(enc_hook=lambda value: dict(value) if isinstance(value, Mapping) else list(value))


def encode(value: Any) -> bytes:
    """`value` as JSON; NaN and infinity become null."""
    try:
        return _encoder.encode(value)
    except (OverflowError, ValueError, TypeError):
        # Numbers beyond 64 bits, halves of surrogate pairs, keys that are no text.
        return json.dumps(_plain(value), ensure_ascii=True, skipkeys=True).encode()


def _plain(value: Any) -> Any:
    """`value` in what json writes, without numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, msgspec.Struct):
        return _plain(msgspec.structs.asdict(value))
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value]


def fitted(parts: Mapping[str, Any], most: int = MOST_BYTES) -> dict[str, bytes]:
    """The parts, encoded; texts, and what is within rows, are shortened as far as `most` bytes ask for it."""
    found = {name: encode(value) for name, value in parts.items()}
    for texts, entries in _LEVELS:
        if sum(map(len, found.values())) <= most:
            break
        found = {name: encode(_shortened(value, texts, entries, 0)) for name, value in parts.items()}
    return found


def _shortened(value: Any, texts: int, entries: int, depth: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= texts else value[: texts - 1] + "…"
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    most = entries if depth >= _DEPTH else None
    if isinstance(value, Mapping):
        kept = itertools.islice(value.items(), most)
        # Of several keys that begin alike one is left.
        return {
            _shortened(key, texts, entries, depth): _field(key, one, texts, entries, depth + 1) for key, one in kept
        }
    if isinstance(value, (list, tuple)) and not _is_series(value):
        return [_shortened(one, texts, entries, depth + 1) for one in value[:most]]
    return value


def _field(key: str, value: Any, texts: int, entries: int, depth: int) -> Any:
    if key in _NAMES and not isinstance(value, Mapping):
        return value
    if key == _JOBS and isinstance(value, list):
        return value[:entries]
    return _shortened(value, texts, entries, depth)


def _is_series(value: Sequence[Any]) -> bool:
    """Whether that is a list of numbers, in which each has its place."""
    return not any(isinstance(one, (str, list, tuple, Mapping, msgspec.Struct)) for one in value)


def join(parts: Mapping[str, bytes]) -> bytes:
    """An object of parts that are encoded already."""
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), data) for name, data in parts.items()) + b"}"


class RefusedError(DispatcherError):
    """A request that is answered with an error: the status, and what is wrong."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class LoadingError(RefusedError):
    """The workspace is being read for the first time: ask again soon."""

    def __init__(self, seconds: float) -> None:
        super().__init__(503, f"the workspace is being read, for {seconds:.0f} s now: ask again in a moment")
