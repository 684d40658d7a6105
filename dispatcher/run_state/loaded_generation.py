"""One generation of the journal, as far as it was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.errors import DamagedJournalError
from dispatcher.run_state import journal, saved_fold
from dispatcher.run_state.checksum import BLOCK, RunningChecksum
from dispatcher.run_state.events import Event
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.head import Head
from dispatcher.run_state.journal import Line
from dispatcher.workspace import Layout

_BULK: Final = 2_000
# A fold is saved when so many lines would have to be folded again.
_WORTHWHILE: Final = 50_000


class LoadedGeneration:
    """The fold of the first `offset` bytes of the file at `path`, and their checksum.

    `header` is the first line of the file, which tells it from any other of the same number. `successor` is the
    generation that continues this one, once its last line was read. `is_checked`: all these bytes were read, and not
    only the fold that another process has saved of them.
    """

    def __init__(self, path: Path, header: bytes = b"", base_seq: int = 0, fold: Fold | None = None) -> None:
        self.path = path
        self.header = header
        self.base_seq = base_seq
        self.fold = Fold() if fold is None else fold
        self.checksum = RunningChecksum()
        self.successor: int | None = None
        self.is_checked = True
        # The lines that are in no saved fold: of the snapshot, and those after this one.
        self._unsaved = len(self.fold.records)
        self._saved_seq = base_seq

    @classmethod
    def load(
        cls, layout: Layout, number: int, head: Head | None, *, to_the_end: bool, for_display: bool = False
    ) -> LoadedGeneration:
        """The fold of a whole generation, as far as `head` goes, or to the end.

        `for_display`: what was saved of it counts without all bytes being read again.

        What the head covers is read in parts, so that a large journal takes no memory beside its records; what follows
        is read at once, also where the head is lost.

        Raises FormatError for a foreign or newer file, DamagedJournalError when it cannot be read or is not what the
        head was written for.
        """
        path = layout.journal(number)
        if head is not None and head.generation != number:
            head = None
        with journal.opened(layout, number) as file:
            line = file.readline()
            if not line.endswith(b"\n"):
                raise DamagedJournalError(
                    f"{path}: the header is incomplete; `dispatcher doctor --repair` continues without it"
                )
            header = journal.parse_header(line, path)
            loaded = cls(path, line, header.base_seq)
            parts = journal.Parts(file)
            if not loaded._resume(layout, file, head, for_display=for_display):
                file.seek(len(line))
                loaded._unsaved = header.records
                loaded.fold.lock_kind, loaded.fold.seq = header.lock, header.base_seq
                loaded._add(line, head)
                loaded.fold.extend_in_bulk(loaded._snapshot(parts, header.records, head))
            loaded.fold.extend_in_bulk(loaded._consecutive(loaded._certain(parts, head)))
            if to_the_end or (head is not None and head.length > loaded.offset):
                data = b"".join(parts)
                loaded._compare(data, head)
                if to_the_end:
                    loaded.extend(data, *journal.parse_consecutive(data, loaded.fold.seq))
        return loaded

    def _resume(self, layout: Layout, file: BinaryIO, head: Head | None, *, for_display: bool) -> bool:
        """Continue with the fold that was saved, if there is one of what the open file says up to there."""
        with saved_fold.opened(layout, self.header) as found:
            if found is None:
                return False
            saved, records = found
            if head is not None and head.length < saved.length:
                return False
            is_heads = head is None or head.length > saved.length or head.checksum == saved.checksum
            checksum = RunningChecksum.resumed(saved.length, saved.checksum, saved.marks)
            is_checked = not (for_display and head is not None and _leads_to(checksum, head, file))
            if is_checked:
                checksum = RunningChecksum()
                for data in _beginning(file, saved.length):
                    checksum.add(data)
            is_same = (checksum.length, checksum.value) == (saved.length, saved.checksum)
            fold = saved_fold.read(saved, records) if is_same and is_heads else None
        if fold is None:
            return False
        self.fold, self.checksum, self.is_checked = fold, checksum, is_checked
        self._saved_seq = saved.seq
        file.seek(saved.length)
        return True

    def begin_save(self, layout: Layout) -> Callable[[], None] | None:
        """To save the fold for later readers of this generation, if that spares them enough; see saved_fold.begin."""
        lines = self._unsaved + self.fold.seq - self._saved_seq
        if self.successor is None and self.is_checked and lines >= max(_WORTHWHILE, len(self.fold.records) // 4):
            self._unsaved, self._saved_seq = 0, self.fold.seq
            return saved_fold.begin(layout, self.header, self.checksum, self.fold)
        return None

    def _snapshot(self, parts: journal.Parts, records: int, head: Head | None) -> Iterator[Line]:
        """So many lines."""
        while records:
            data = next(parts, b"")
            if not data.endswith(b"\n"):
                raise DamagedJournalError(f"{self.path}: its snapshot is incomplete")
            lines, count = journal.first_lines(data, records)
            parts.put_back(data[len(lines) :])
            records -= count
            yield from journal.parse_lines(lines, self.path, self.offset)
            self._add(lines, head)

    def _certain(self, parts: journal.Parts, head: Head | None) -> Iterator[list[Line]]:
        """The whole lines that the head covers."""
        if head is None:
            return
        for data in parts:
            certain = journal.whole_lines(data[: max(0, head.length - self.offset)])
            parts.put_back(data[len(certain) :])
            if not certain:
                return
            yield journal.parse_lines(certain, self.path, self.offset)
            self._add(certain, head)

    def _add(self, data: bytes, head: Head | None) -> None:
        """Add what was folded to the checksum, and compare it with the head's where that ends."""
        self._compare(data, head)
        self.checksum.add(data)

    def _compare(self, data: bytes, head: Head | None) -> None:
        """Raise DamagedJournalError when the head ends in `data`, which follows, and was written for something else."""
        if head is None or not self.offset < head.length <= self.offset + len(data):
            return
        if self.checksum.followed_by(data[: head.length - self.offset]) != head.checksum:
            raise self.overwritten(0, head.length, "what the lock file was written for")

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

    def check(self, fd: int) -> None:
        """Read all bytes of the open file that `fold` shows: `is_checked` if they are what was saved."""
        checksum = RunningChecksum()
        while left := self.offset - checksum.length:
            data = files.read_fd(fd, checksum.length, min(left, journal.PART))
            if not data:
                return
            checksum.add(data)
        self.is_checked = checksum.value == self.checksum.value

    def differs(self, fd: int, *, is_whole: bool) -> DamagedJournalError | None:
        """What is wrong when the open file is no longer what was read from it.

        Examines two blocks of it if `is_whole`, else the last page.
        """
        found = self.checksum.differs_at(fd) if is_whole else self.checksum.differs_at_end(fd)
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


def _beginning(file: BinaryIO, length: int) -> Iterator[bytes]:
    """The first `length` bytes, in parts; fewer if the file is shorter."""
    file.seek(0)
    while length and (data := file.read(min(length, journal.PART))):
        yield data
        length -= len(data)


def _leads_to(checksum: RunningChecksum, head: Head, file: BinaryIO) -> bool:
    """Whether what follows on the bytes of `checksum` in the open file, up to where the head ends, has its checksum.

    And whether the last block of these bytes is what it was. All before it is not read.
    """
    start = max(0, checksum.length - 1) // BLOCK * BLOCK
    file.seek(start)
    last = file.read(checksum.length - start)
    following = file.read(head.length - checksum.length)
    return (
        checksum.length + len(following) == head.length
        and checksum.of_block(start // BLOCK, last) == checksum.value
        and checksum.followed_by(following) == head.checksum
    )
