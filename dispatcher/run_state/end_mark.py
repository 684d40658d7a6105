"""The end of the journal as the name of a file, for filesystems that may show old file content.

FUSE clients (GlusterFS with its defaults) show old content and old sizes for a second or more, even of the locked file,
but they never list or rename a name that no longer exists. There, the name of the one file in `run_state/journal_end/`
says how far the journal goes. Each append renames it, before and after:

    000001.24084.5d41402a                       generation, length, checksum: no append is in progress
    000001.24084.5d41402a.9f86d081884c7d65      a process is appending behind it, or died while it did

A rename has one winner. A process that was shown an old name, or that holds a lock that does not exclude, cannot rename
it and writes nothing. A process that died while appending leaves lines on which no other has acted: they count where
they are seen.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.errors import LockLostError

_NAME: Final = re.compile(r"(\d{6,})\.(\d+)\.([0-9a-f]{8})(\..+)?")


class End(msgspec.Struct, frozen=True, order=True):
    """How far the journal goes, as the file `name` shows it."""

    generation: int
    length: int
    checksum: int
    name: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether no append is in progress."""
        return self.name == _text(self)

    @property
    def position(self) -> tuple[int, int, int]:
        return (self.generation, self.length, self.checksum)


class EndMark:
    """To be used under the claims lock only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._end: End | None = None
        self._is_ours = False

    def read(self) -> End | None:
        """The current end of the journal; None when there is no such file yet."""
        self._end, self._is_ours = None, False
        with contextlib.suppress(FileNotFoundError):
            files.refresh_names(self._directory)
            found = [end for end in map(_parse, os.listdir(self._directory)) if end is not None]
            self._end = max(found, default=None)
        return self._end

    def begin(self) -> None:
        """Call before an append; LockLostError when the journal no longer ends there, and nothing may be written."""
        if self._end is None:
            self._make_directory()
            return
        # Not host and pid: containers share names and numbers.
        token = os.urandom(8).hex()
        self._move(msgspec.structs.replace(self._end, name=f"{_text(self._end)}.{token}"))

    def finish(self, generation: int, length: int, checksum: int) -> None:
        """Call after an append, with the new end of the journal."""
        end = End(generation, length, checksum)
        end = msgspec.structs.replace(end, name=_text(end))
        if self._end is not None:
            if self._end.name != end.name:
                self._move(end)
            return
        self._make_directory()
        with contextlib.suppress(FileExistsError), files.creating(self._directory / end.name):
            pass
        self._end = end

    def _make_directory(self) -> None:
        """Make the directory; LockLostError when others use it already, which this host was not shown before."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory)
            self._is_ours = True
        if not self._is_ours and self.read() is not None:
            raise LockLostError(f"{self._directory}: this host was shown old names; the step is tried again")

    def _move(self, end: End) -> None:
        assert self._end is not None
        try:
            os.rename(self._directory / self._end.name, self._directory / end.name)
        except OSError as error:
            raise LockLostError(
                f"{self._directory / self._end.name}: {error.strerror}: another process has written to the journal "
                "since this one read it; nothing was changed, the step is tried again"
            ) from error
        self._end = end


def _text(end: End) -> str:
    return f"{end.generation:06d}.{end.length}.{end.checksum:08x}"


def _parse(name: str) -> End | None:
    found = _NAME.fullmatch(name)
    return End(int(found[1]), int(found[2]), int(found[3], 16), name) if found else None
