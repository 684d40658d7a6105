"""Answers as JSON: encoding, the age of the data, errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dispatcher.errors import DispatcherError

# An answer that is longer is a fault of this package: every list has a bound.
MOST_BYTES = 1_000_000

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


def join(parts: Mapping[str, bytes]) -> bytes:
    """An object of parts that are encoded already."""
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), data) for name, data in parts.items()) + b"}"


class RefusedError(DispatcherError):
    """A request that is answered with an error: the status, and what is wrong."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
