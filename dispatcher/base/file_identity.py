"""Whether a file was changed, without reading it: its identity, and when a change could have left that as it was."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

# Inode, size and time of the last change of the content (ns).
Identity = tuple[int, int, int]
# The same, and the time of the last change of the inode (ns), which no program can set: a new owner counts as a change.
ExactIdentity = tuple[int, int, int, int]

# The clock of file times ticks every few milliseconds, on a file server maybe every second: of two changes within one
# tick the second one may leave size and times as they were.
_TICK_S: Final = 0.05
SERVER_TICK_S: Final = 2.0


def identity_of(found: os.stat_result) -> Identity:
    return found.st_ino, found.st_size, found.st_mtime_ns


def exact_identity_of(found: os.stat_result) -> ExactIdentity:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def identity_at(path: Path | str) -> Identity | None:
    """The identity of the file at `path`; None where `os.stat` fails."""
    try:
        return identity_of(os.stat(path))
    except OSError:
        return None


def is_settled(mtime_ns: int, *, network: bool) -> bool:
    """Whether another change from now on has another time than `mtime_ns`."""
    return abs(time.time_ns() - mtime_ns) > (SERVER_TICK_S if network else _TICK_S) * 1e9
