"""What an attempt may take, as its own wrapper says it: read from its directory, never from the manifest of today."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dispatcher.workspace import AttemptPaths

# The wrapper keeps its limits itself. This much later its dispatcher looks whether it can.
MARGIN_S: Final = 5.0
_LINE: Final = re.compile(rb"^(time_limit_s|grace_s)=([0-9]{1,12})$", re.M)


class Limits(msgspec.Struct, frozen=True):
    """`time_limit_s` 0: none. `grace_s` is from TERM to KILL."""

    time_limit_s: float = 0.0
    grace_s: float = 0.0


def read_limits(paths: AttemptPaths, default: Limits) -> Limits:
    """The limits in an attempt's wrapper; `default` says what it does not."""
    try:
        found = {name.decode(): float(number) for name, number in _LINE.findall(paths.wrapper.read_bytes())}
    except OSError:
        return default
    return Limits(found.get("time_limit_s", default.time_limit_s), found.get("grace_s", default.grace_s))
