"""One generation of the journal: reading all of it, and creating the first."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dispatcher.base import files
from dispatcher.errors import DamagedJournalError
from dispatcher.run_state import journal
from dispatcher.run_state.journal import Header, Line
from dispatcher.workspace import Layout

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@dataclass(frozen=True)
class Generation:
    """One file of the journal; `start` is the offset at which the header ends."""

    number: int
    path: Path
    header: Header
    data: bytes
    start: int

    @classmethod
    def read(cls, layout: Layout, number: int) -> Generation:
        """Raises FormatError for a foreign or newer file, DamagedJournalError when the header is incomplete."""
        path = layout.journal(number)
        data = journal.read_generation(layout, number)
        start = data.find(b"\n") + 1
        if start == 0:
            raise DamagedJournalError(
                f"{path}: the header is incomplete; `dispatcher doctor --repair` continues without it"
            )
        return cls(number, path, journal.parse_header(data[:start], path), data, start)

    def snapshot(self) -> tuple[list[Line], int]:
        """The lines of the snapshot, and the offset at which they end."""
        end = self.start
        for _ in range(self.header.records):
            end = self.data.find(b"\n", end) + 1
            if end == 0:
                raise DamagedJournalError(f"{self.path}: its snapshot is incomplete")
        return journal.parse_lines(self.data[self.start : end], self.path, self.start), end


def encode_generation(header: Header, lines: Iterable[Line]) -> bytes:
    """A header and the lines after it, as they are in a file."""
    return b"\n".join([journal.encode(header), *map(journal.encode, lines), b""])


def publish(path: Path, data: bytes) -> bool:
    """Create the first generation atomically and durably; False when another process has created it meanwhile."""
    temporary = files.temporary_name(path)
    try:
        with files.creating(temporary) as fd:
            files.write_all(fd, data, 0)
            os.fsync(fd)
        try:
            # Unlike a rename, a link never replaces a journal that this host is not shown.
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.rename(temporary, path)
        files.sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return True
