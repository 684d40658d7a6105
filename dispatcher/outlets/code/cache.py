"""The archives under run_state/code/: one per content, found by the key of what it holds, removed when unused."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Final

import msgspec

from dispatcher.base import files
from dispatcher.outlets.code import tree
from dispatcher.workspace import Layout

# An archive that nothing refers to is kept for this long after its last use: the next dispatch may need it again.
_KEEP_UNUSED_S: Final = 7 * 86400.0


class Archived(msgspec.Struct, frozen=True):
    """The archive of a key."""

    digest: str
    size: int


class CodeCache:
    """The archived code of one workspace. Writers need no lock: archives are named after their content."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def archived(self, key: str, write: Callable[[IO[bytes]], str]) -> Archived:
        """The archive of what `key` stands for. `write` makes it, and is called only if there is none yet.

        `write` is given the file and returns its digest. Raises StorageError.
        """
        found = self._find(key)
        if found is None:
            found = self._make(write)
            with self._storing():
                files.replace_file(self._layout.code_key(key), msgspec.json.encode(found) + b"\n", durable=False)
        with contextlib.suppress(OSError):
            os.utime(self._layout.code_archive(found.digest))
        return found

    def add(self, write: Callable[[IO[bytes]], str]) -> Archived:
        """The archive that `write` makes; one with the same content is kept."""
        return self._make(write)

    def remove_unused(self, in_use: Iterable[str], now_s: float | None = None) -> list[str]:
        """Remove archives that have not been used for a week, but none whose digest begins with one of `in_use`.

        Nor those that are kept for jobs (copies.py).

        Returns the digests of those that were removed. `now_s` is the time (default: now).
        """
        kept = tuple(filter(None, in_use))
        oldest_s = (time.time() if now_s is None else now_s) - _KEEP_UNUSED_S
        removed = []
        with self._storing():
            tree.remove_leftovers(self._layout.code_dir)
            # Jobs run from these until a person queues them again.
            kept += tuple(path.stem.rpartition("-")[2] for path in self._layout.code_dir.glob("*.kept"))
            for path in sorted(self._layout.code_dir.iterdir()):
                is_old = path.suffix in (".tar", ".json") and path.stat().st_mtime < oldest_s
                if is_old and not (path.suffix == ".tar" and path.stem.startswith(kept or ("-",))):
                    path.unlink(missing_ok=True)
                    removed += [path.stem] if path.suffix == ".tar" else []
        return removed

    def _find(self, key: str) -> Archived | None:
        try:
            found = msgspec.json.decode(self._layout.code_key(key).read_bytes(), type=Archived)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return found if _has_digest(self._layout.code_archive(found.digest), found.digest) else None

    def _make(self, write: Callable[[IO[bytes]], str]) -> Archived:
        with self._storing(), files.shared_umask(self._layout.root):
            self._layout.code_dir.mkdir(parents=True, exist_ok=True)
            temporary = files.temporary_name(self._layout.code_dir / "archive")
            try:
                with open(temporary, "xb") as file:
                    digest = write(file)
                size = temporary.stat().st_size
                os.rename(temporary, self._layout.code_archive(digest))
            finally:
                temporary.unlink(missing_ok=True)
        return Archived(digest, size)

    def _storing(self) -> contextlib.AbstractContextManager[None]:
        return files.storing("archiving the code in", self._layout.code_dir)


def _has_digest(path: Path, digest: str) -> bool:
    """Whether a file has this content: a damaged archive would be refused by every host."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except FileNotFoundError:
        return False
