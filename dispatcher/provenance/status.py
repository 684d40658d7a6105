"""The output of `git status --porcelain=v2 -z`, taken in piece by piece: it may be longer than memory should hold."""

from __future__ import annotations

import hashlib
import os
from typing import Final

# Beyond these the rest is counted only.
_MOST_UNTRACKED: Final = 500
_MOST_CHANGED: Final = 5000
# Longer than any path can be.
_LONGEST: Final = 1 << 16


class StatusOutput:
    """What git knows of the working tree. Paths are relative to the top of the repository.

    `changed` are tracked files that differ from the commit, `untracked` files that are neither tracked nor ignored, as
    far as there is room; `changed_more` and `untracked_more` count the others. `submodules` are those that differ.
    """

    def __init__(self) -> None:
        self.commit: str | None = None
        self.branch: str | None = None
        self.changed: list[str] = []
        self.changed_more = 0
        self.untracked: list[str] = []
        self.untracked_more = 0
        self._digest = hashlib.sha256()
        self._rest = b""

    @property
    def is_dirty(self) -> bool:
        return bool(self.changed)

    @property
    def digest(self) -> bytes:
        """Equal for equal output."""
        return self._digest.digest()

    def take(self, data: bytes) -> None:
        """Take in a piece."""
        self._digest.update(data)
        *items, self._rest = (self._rest + data).split(b"\0")
        for item in items:
            self._take(item)
        if len(self._rest) > _LONGEST:
            raise ValueError("git status: an item without an end")

    def _take(self, item: bytes) -> None:
        kind, _, rest = item.partition(b" ")
        if kind == b"#":
            key, _, value = rest.partition(b" ")
            if key == b"branch.oid" and value != b"(initial)":
                self.commit = value.decode()
            elif key == b"branch.head" and value != b"(detached)":
                self.branch = os.fsdecode(value)
        elif kind == b"?":
            if len(self.untracked) < _MOST_UNTRACKED:
                self.untracked.append(os.fsdecode(rest))
            else:
                self.untracked_more += 1
        elif kind in (b"1", b"u"):
            # XY sub mH mI mW hH hI path; unmerged: XY sub m1 m2 m3 mW h1 h2 h3 path.
            if len(self.changed) < _MOST_CHANGED:
                self.changed.append(os.fsdecode(rest.split(b" ", 7 if kind == b"1" else 9)[-1]))
            else:
                self.changed_more += 1
