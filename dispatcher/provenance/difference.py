"""The difference between the working tree and the commit, as `git diff` shows it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from dispatcher.provenance.git import SafeGit

# Of one difference. What is longer has its digest, its size and its stat.
_MOST_KEPT: Final = 1 << 20
# Contents of binary files are part of the difference up to this size of all changed files; beyond, only their hashes.
_MOST_BINARY: Final = 4 << 20
# The stat is the first line.
_STAT: Final = re.compile(rb" \d+ files? changed[^\n]*\n\n?")
_LONGEST_STAT: Final = 200


class Difference(NamedTuple):
    """`data` None: it is longer than _MOST_KEPT."""

    stat: str
    digest: str
    size: int
    data: bytes | None


class _Output:
    """The patch, without the stat before it: all of it counted and hashed, kept as far as there is room."""

    def __init__(self) -> None:
        self.stat = ""
        self.size = 0
        self.kept = bytearray()
        self.digest = hashlib.sha256()
        self._head: bytes | None = b""

    def take(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            if len(self._head) < _LONGEST_STAT:
                return
            data, self._head = self._split(self._head), None
        self.size += len(data)
        self.digest.update(data)
        self.kept += data[: max(0, _MOST_KEPT + 1 - len(self.kept))]

    def end(self) -> None:
        """There is no more."""
        if self._head is not None:
            head, self._head = self._head, None
            self.take(self._split(head))

    def _split(self, head: bytes) -> bytes:
        """What follows the stat, which is kept."""
        found = _STAT.match(head)
        if found is None:
            return head
        self.stat = found[0].decode().strip()
        return head[found.end() :]


def take_difference(
    git: SafeGit, pathspecs: Sequence[str], changed_bytes: int, commits: Sequence[str] = ("HEAD",)
) -> Difference | None:
    """The difference of the files that `pathspecs` name; None when there is none. Raises ProgramError.

    It is that of the working tree from a commit, or that between two. `changed_bytes` is the size of the changed
    files. The same changes give the same bytes.
    """
    words = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--full-index", "-O/dev/null"]
    words += [
        "--ignore-submodules=dirty",
        "--unified=3",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        "--shortstat",
        "--patch",
    ]
    words += ["--binary"] if changed_bytes <= _MOST_BINARY else []
    out = _Output()
    with git.index_copied():
        git.feed([*words, *commits, "--", *pathspecs], out.take)
    out.end()
    if not out.size:
        return None
    return Difference(out.stat, out.digest.hexdigest(), out.size, bytes(out.kept) if out.size <= _MOST_KEPT else None)
