"""Digests of files that git does not track: of plain files, within bounds, if they stay as they are meanwhile."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dispatcher.base.file_identity import ExactIdentity, exact_identity_of
from dispatcher.base.messages import first_names, readable
from dispatcher.provenance.programs import Deadline
from dispatcher.provenance.record import UNREAD

LARGEST: Final = 16 << 20
_MOST_BYTES: Final = 128 << 20
_BLOCK: Final = 1 << 20


def stamp_of(path: Path | str) -> ExactIdentity | None:
    """The identity of a file that is not followed when it is a link; None where there is none."""
    try:
        return exact_identity_of(os.lstat(path))
    except OSError:
        return None


def digests(top: Path, names: Sequence[str], deadline: Deadline) -> tuple[dict[str, str], list[str]]:
    """The digest of each file below `top`, UNREAD where there is none, and which are without one and why."""
    found: dict[str, str] = {}
    unread: dict[str, list[str]] = {}
    left = _MOST_BYTES
    for name in names:
        digest, why, size = _digest(top / name, left, deadline)
        left -= size
        found[readable(name)] = digest
        if why:
            unread.setdefault(why, []).append(readable(name))
    return found, [f"untracked, without a hash ({why}): {first_names(listed)}" for why, listed in unread.items()]


def shown(name: str) -> str:
    """A file's name as a record has it: bytes that are no UTF-8 as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _digest(path: Path, left: int, deadline: Deadline) -> tuple[str, str, int]:
    """The digest, why there is none, and how many bytes were read."""
    try:
        before = os.lstat(path)
        if stat.S_ISLNK(before.st_mode):
            # As git does: what it points to, not what is there.
            return hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest(), "", 0
        why = _why_not(before, left)
        if why:
            return UNREAD, why, 0
        # Another kind of file may have taken its place: opening a pipe would block.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            why = _why_not(os.fstat(fd), left)
            return (UNREAD, why, 0) if why else _read(fd, path, before, deadline)
        finally:
            os.close(fd)
    except OSError as error:
        return UNREAD, error.strerror or str(error), 0


def _why_not(found: os.stat_result, left: int) -> str:
    """Why a file is not read; empty when it is."""
    if stat.S_ISDIR(found.st_mode):
        return "a repository of its own"
    if not stat.S_ISREG(found.st_mode):
        return "no plain file"
    if found.st_size > LARGEST:
        return "too large"
    return "too many bytes" if found.st_size > left else ""


def _read(fd: int, path: Path, before: os.stat_result, deadline: Deadline) -> tuple[str, str, int]:
    digest, size = hashlib.sha256(), 0
    while part := os.read(fd, _BLOCK):
        digest.update(part)
        size += len(part)
        if size > LARGEST:
            return UNREAD, "too large", size
        if not deadline.left_s:
            return UNREAD, "too slow", size
    if not exact_identity_of(before) == exact_identity_of(os.fstat(fd)) == stamp_of(path):
        return UNREAD, "it changed while it was read", size
    return digest.hexdigest(), "", size
