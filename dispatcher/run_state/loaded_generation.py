"""One generation of the journal, as far as it was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from dispatcher.base.mounts import mount_of
from dispatcher.errors import DamagedJournalError
from dispatcher.run_state import journal
from dispatcher.run_state.checksum import RunningChecksum
from dispatcher.run_state.events import Event
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.generations import Generation
from dispatcher.run_state.head import Head
from dispatcher.run_state.journal import Line

_BULK: Final = 2_000


class LoadedGeneration:
    """The fold of the first `offset` bytes of the file at `path`, and their checksum.

    `header` is the first line of the file, which tells it from any other of the same number. `successor` is the
    generation that continues this one, once its last line was read.
    """

    def __init__(self, path: Path, header: bytes = b"", base_seq: int = 0, fold: Fold | None = None) -> None:
        self.path = path
        self.header = header
        self.base_seq = base_seq
        self.fold = Fold() if fold is None else fold
        self.checksum = RunningChecksum()
        self.successor: int | None = None

    @classmethod
    def load(cls, generation: Generation, head: Head | None, *, to_the_end: bool) -> LoadedGeneration:
        """The fold of a generation that was read as a whole: as far as `head` goes, or to the end.

        Raises DamagedJournalError when it cannot be read or is not what the head was written for.
        """
        snapshot, start = generation.snapshot()
        loaded = cls(generation.path, generation.data[: generation.start], generation.header.base_seq)
        fold = loaded.fold
        fold.lock_kind = generation.header.lock
        fold.seq = loaded.base_seq
        fold.extend_in_bulk(snapshot)
        rest = journal.whole_lines(generation.data[start:])
        certain = 0
        if head is not None and head.generation == generation.number:
            certain = len(journal.whole_lines(rest[: max(0, head.length - start)]))
            parts = journal.parse_in_parts(rest[:certain], generation.path, start)
            fold.extend_in_bulk(loaded._consecutive(parts))
            whole = memoryview(generation.data)[: head.length]
            if len(whole) == head.length and RunningChecksum(whole).value != head.checksum:
                raise loaded.overwritten(0, head.length, "what the lock file was written for")
        loaded.checksum = RunningChecksum(memoryview(generation.data)[: start + certain])
        if to_the_end:
            rest = rest[certain:]
            loaded.extend(rest, *journal.parse_consecutive(rest, fold.seq))
        return loaded

    @property
    def offset(self) -> int:
        return self.checksum.length

    def extend(self, data: bytes, lines: list[Line], length: int) -> None:
        """Add the first `length` bytes of `data`, which follow on what was read and hold `lines`."""
        consecutive = self._consecutive([lines])
        if len(lines) > _BULK:
            self.fold.extend_in_bulk(consecutive)
        else:
            self.fold.extend(consecutive)
        self.checksum.add(memoryview(data)[:length])

    def differs(self, fd: int) -> DamagedJournalError | None:
        """What is wrong when the open file is no longer what was read from it; examines two blocks of it."""
        found = self.checksum.differs_at(fd)
        return None if found is None else self.overwritten(*found, "what they were when they were read")

    def differs_from_head(self, fd: int, head: Head, data: bytes) -> DamagedJournalError | None:
        """What is wrong when the file is not what `head` was written for; `data` is what follows on what was read."""
        if head.length > self.offset + len(data):
            return None
        if head.length >= self.offset:
            found = self.checksum.followed_by(data[: head.length - self.offset])
        else:
            found = self.checksum.at(fd, head.length)
        if found == head.checksum:
            return None
        return self.overwritten(min(self.offset, head.length), head.length, "what the lock file was written for")

    def check_unfinished(self, rest: bytes, head: Head | None) -> None:
        """Raise DamagedJournalError when `rest`, behind what was read, is more than one write that was not finished."""
        later = journal.readable_lines(rest)
        if later and later[0].seq == self.fold.seq + 1 and later[0].batch > 1:
            later = [line for line in later if line.seq >= later[0].seq + later[0].batch]
        # All lines of one transaction have one time. Without a head nothing shows that these were not finished.
        if later and (head is None or len({line.at for line in later}) > 1):
            raise DamagedJournalError(
                f"{self.path}: cannot be read from byte {self.offset} on, but complete lines follow (up to "
                f"{later[-1].seq}); nothing was changed. Restore the file from a backup, or let "
                "`dispatcher doctor --repair` continue with the lines that can be read"
            )

    def overwritten(self, start: int, end: int, expected: str) -> DamagedJournalError:
        """The error for bytes that are not what they were or should be."""
        mount = mount_of(self.path.parent)
        shown = f"; if other hosts are shown something else: {mount.cure}" if mount.is_network else ""
        return DamagedJournalError(
            f"{self.path}: bytes {start} to {end} are not {expected}: another process has overwritten them; nothing "
            f"was changed. Let `dispatcher doctor --repair` continue with the lines that can be read{shown}"
        )

    def _consecutive(self, parts: Iterable[list[Line]]) -> Iterator[Line]:
        """The lines, as long as they follow one another, without the one that ends the generation."""
        seq = self.fold.seq
        for lines in parts:
            if lines and (lines[0].seq != seq + 1 or lines[-1].seq != seq + len(lines)):
                raise DamagedJournalError(
                    f"{self.path}: after line {seq} come {len(lines)} lines, {lines[0].seq} to {lines[-1].seq}; "
                    "nothing was changed. Restore the file from a backup, or let `dispatcher doctor --repair` "
                    "continue with the lines that can be read"
                )
            seq += len(lines)
            if lines and lines[-1].event is Event.CONTINUED:
                self.successor = journal.continued_by(lines.pop())
            yield from lines
