"""Which generation of the journal is in force, and how the next one begins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dispatcher.errors import DamagedJournalError
from dispatcher.run_state import files, journal
from dispatcher.run_state.journal import Header, Line
from dispatcher.workspace import Layout

_HEADER_LIMIT = 4096


@dataclass(frozen=True)
class Generation:
    """One file of the journal, read whole."""

    number: int
    header: Header
    data: bytes
    start: int

    @classmethod
    def read(cls, layout: Layout, number: int) -> Generation:
        """Raises FormatError for a foreign or newer file, DamagedJournalError when the header is not whole."""
        with files.storing("reading the journal", layout.journal(number)):
            data = journal.read_generation(layout, number)
        start = data.find(b"\n") + 1
        if start == 0:
            raise DamagedJournalError(f"{layout.journal(number)}: the header is not whole")
        return cls(number, journal.parse_header(data[:start], layout.journal(number)), data, start)

    @staticmethod
    def read_header(layout: Layout, number: int) -> Header:
        """The first line alone; the newest generation is never compressed."""
        path = layout.journal(number)
        with files.storing("reading the journal", path):
            fd = files.open_existing(path)
        try:
            line = files.read_fd(fd, 0, _HEADER_LIMIT).partition(b"\n")[0]
        finally:
            os.close(fd)
        return journal.parse_header(line, path)

    def snapshot(self) -> tuple[list[Line], int]:
        """The lines that say how things stood at the start, and where they end."""
        end = self.start
        for _ in range(self.header.records):
            end = self.data.find(b"\n", end) + 1
            if end == 0:
                raise DamagedJournalError(f"generation {self.number} of the journal: its snapshot is not whole")
        return journal.parse_lines(self.data[self.start : end], Path(f"generation {self.number}"), self.start), end

    def continues(self, layout: Layout) -> bool:
        """Whether the generation before this one ends by naming it, or is gone because nobody needs it any more."""
        if self.number - 1 not in journal.generations(layout):
            return True
        last = journal.complete_part(journal.read_generation(layout, self.number - 1)).rstrip(b"\n")
        return b'"event":"continued"' in last[last.rfind(b"\n") + 1 :]


def newest_generation(layout: Layout) -> int | None:
    """The generation in force as the files themselves tell it, for when the head does not."""
    for number in reversed(journal.generations(layout)):
        try:
            generation = Generation.read(layout, number)
            generation.snapshot()
        except DamagedJournalError:
            # Its writer died before it was whole, so it never came into force.
            continue
        if generation.continues(layout):
            return number
    return None
