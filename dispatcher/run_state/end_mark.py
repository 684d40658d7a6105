"""The journal's end as the name of a file, where the content of files cannot be trusted to be current.

FUSE clients (GlusterFS with its defaults) show old content and old sizes for a second or more, also of the locked file.
What they never do is to list or rename a name that is gone. So there one file in `run_state/journal_end/` says by its
name how far the journal goes, and whoever appends renames it, before and after:

    000001.24084.5d41402a                       generation, length, checksum: nothing is being written
    000001.24084.5d41402a.9f86d081884c7d65      somebody is appending behind it, or has died over it

A rename has one winner. Who is shown an old name, or holds a lock that does not exclude, finds it gone and writes
nothing. Whoever died while appending leaves lines that nobody has acted on: they count if they are seen.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.errors import LockLostError

_NAME: Final = re.compile(r"(\d{6,})\.(\d+)\.([0-9a-f]{8})(\..+)?")


class End(msgspec.Struct, frozen=True, order=True):
    """How far the journal goes; `name` is the file that says so."""

    generation: int
    length: int
    checksum: int
    name: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether nobody is appending behind it."""
        return self.name == _text(self)

    @property
    def position(self) -> tuple[int, int, int]:
        return (self.generation, self.length, self.checksum)


class EndMark:
    """Read and moved under the claims lock alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._end: End | None = None
        self._is_ours = False

    def read(self) -> End | None:
        """The journal's end as it is now; None when nobody has said it yet."""
        self._end, self._is_ours = None, False
        with contextlib.suppress(FileNotFoundError):
            files.look_at(self._directory)
            found = [end for end in map(_parse, os.listdir(self._directory)) if end is not None]
            self._end = max(found, default=None)
        return self._end

    def begin(self) -> None:
        """Before an append: LockLostError, and nothing may be written, when this is not the journal's end any more."""
        if self._end is None:
            self._found()
            return
        # Host and pid would not do: containers share names and numbers.
        token = secrets.token_hex(8)
        self._move(msgspec.structs.replace(self._end, name=f"{_text(self._end)}.{token}"))

    def finish(self, generation: int, length: int, checksum: int) -> None:
        """The journal ends here now."""
        end = End(generation, length, checksum)
        end = msgspec.structs.replace(end, name=_text(end))
        if self._end is not None:
            if self._end.name != end.name:
                self._move(end)
            return
        self._found()
        with contextlib.suppress(FileExistsError), files.creating(self._directory / end.name):
            pass
        self._end = end

    def _found(self) -> None:
        """Begin to use the directory; LockLostError when others do, although this host was shown nothing of it."""
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
                f"{self._directory / self._end.name}: {error.strerror}: somebody else has written to the journal since "
                "this host looked; nothing was changed, the step is tried again"
            ) from error
        self._end = end


def _text(end: End) -> str:
    return f"{end.generation:06d}.{end.length}.{end.checksum:08x}"


def _parse(name: str) -> End | None:
    found = _NAME.fullmatch(name)
    return End(int(found[1]), int(found[2]), int(found[3], 16), name) if found else None
