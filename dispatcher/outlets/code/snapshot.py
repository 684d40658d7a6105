"""A snapshot of code."""

from __future__ import annotations

from typing import Final

import msgspec

_SHORT: Final = 12


class Changes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The difference from the commit, as a GitState has it; `problem` is why it is unknown."""

    diff: str | None = None
    diff_stat: str | None = None
    diff_bytes: int = 0
    diff_omitted: bool = False
    problem: str = ""


class CodeSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Archived code. `digest` is the SHA-256 of the archive at the absolute `path`, `size` its bytes.

    `commit` is the full id of HEAD, empty without git; `is_dirty`: the files differ from that commit. `changes` is how,
    of copies that jobs run from.
    """

    digest: str
    commit: str
    is_dirty: bool
    path: str
    size: int
    changes: Changes | None = None

    @property
    def label(self) -> str:
        """The snapshot as records and people have it: `1a2b3c4d5e6f+dirty 0123456789ab`."""
        commit = f"{self.commit[:_SHORT]}{'+dirty' if self.is_dirty else ''}"
        return f"{commit} {self.digest[:_SHORT]}".strip()

    @property
    def commit_text(self) -> str:
        """The commit, with `+dirty` if the files differ from it."""
        return f"{self.commit}{'+dirty' if self.is_dirty else ''}"
