"""This process's copy of what the journal says, and how it keeps up with the files."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dispatcher.base import files
from dispatcher.base.mounts import Mount, mount_of
from dispatcher.errors import DamagedJournalError, DispatcherError, LockLostError, StaleViewError
from dispatcher.run_state import journal
from dispatcher.run_state.checksum import RunningChecksum
from dispatcher.run_state.events import Event
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.generations import Generation
from dispatcher.run_state.head import Head
from dispatcher.run_state.journal import Line
from dispatcher.workspace import Layout

_BULK: Final = 2_000
STALE_PAUSES_S: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.2, 0.2, 0.5, 1.0, 2.0)
# How often the journal is compared with what was read from it where no cut-off host can write late: on a local disk.
LOCAL_CHECK_S: Final = 1.0
# What a write gets whose lock a file server has taken away.
_REFUSED: Final = frozenset({errno.EIO, errno.EBADF, errno.ESTALE})


class _ReplacedError(Exception):
    """A file of the same number has taken the journal's place: a start from nothing, a copy of another workspace."""


class Replica:
    """The fold of the journal up to byte `offset` of `generation` (None before anything was read).

    `reloads` counts how often the records were built anew: then all of them count as touched.
    """

    def __init__(self, layout: Layout, mount: Mount) -> None:
        self.layout = layout
        self.network = mount.is_network
        self.shows_old_content = mount.shows_old_content
        self.fold = Fold()
        self.generation: int | None = None
        self.base_seq = 0
        # Of the bytes that `fold` shows.
        self.checksum = RunningChecksum()
        self.reloads = 0
        # Whether the last append failed and could not be cut off again: the next reader may find it written.
        self.in_doubt = False
        self._successor: int | None = None
        self._next_check_s = 0.0
        self._path = layout.journal(0)
        self._header = b""

    @property
    def offset(self) -> int:
        return self.checksum.length

    def shows(self, generation: int, length: int, checksum: int) -> bool:
        """Whether what was read goes as far as another host has read, and says the same up to there."""
        if self.generation is None or generation != self.generation:
            return self.generation is not None and generation < self.generation
        if length >= self.offset:
            return (length, checksum) == (self.offset, self.checksum.value)
        fd = self._open_to_read()
        try:
            return self.checksum.at(fd, length) == checksum
        finally:
            os.close(fd)

    def follow(self, head: Head | None, *, to_the_end: bool) -> None:
        """Without the lock: take in what is certain to stay, or also what stands beyond the head.

        Raises DamagedJournalError, and takes nothing in, when the journal does not say what it must.
        """
        try:
            self._follow(head, to_the_end=to_the_end)
        except FileNotFoundError:
            if self._newest_instead(head) is not None:
                self.generation = None
                self._follow(None, to_the_end=to_the_end)

    def _follow(self, head: Head | None, *, to_the_end: bool) -> None:
        newest = head.generation if head is not None else journal.newest_generation(self.layout)
        if newest is None:
            return
        if self.generation is None or newest > self.generation:
            self._load(newest, head, to_the_end=to_the_end or head is None)
        fd = self._open_to_read()
        try:
            if files.read_fd(fd, 0, len(self._header)) != self._header:
                self._load(newest, head, to_the_end=to_the_end)
                return
            self._follow_file(fd, head, to_the_end=to_the_end)
        finally:
            os.close(fd)
        while self._successor is not None:
            self._load(self._successor, None, to_the_end=True)

    def _follow_file(self, fd: int, head: Head | None, *, to_the_end: bool) -> None:
        end = None
        if head is not None and not to_the_end:
            end = head.length if head.generation == self.generation else self.offset
        data = files.read_fd(fd, self.offset, None if end is None else max(0, end - self.offset))
        problem = self._mismatch(fd, head if head is not None and head.generation == self.generation else None, data)
        if problem is not None:
            raise problem
        if data:
            self._take_in(data, *journal.parse_consecutive(data, self.fold.seq))

    def catch_up(self, head: Head | None, guard: Callable[[int], None]) -> int | None:
        """Under the lock: take in everything and cut off what was never finished. `guard` locks the journal, too.

        The journal's descriptor, opened for writing; None when there is no journal. Raises StaleViewError when this
        host is shown less than the head says, DamagedJournalError when the journal cannot be read in the middle.
        """
        self.in_doubt = False
        try:
            return self._catch_up(head, guard)
        except FileNotFoundError:
            if self._newest_instead(head) is None:
                return None
            # Its writer died before the head named it.
            self.generation = None
            return self._catch_up(None, guard)

    def _catch_up(self, head: Head | None, guard: Callable[[int], None]) -> int | None:
        newest = head.generation if head is not None else journal.newest_generation(self.layout)
        if newest is None:
            return None
        if newest != self.generation:
            self._load_patiently(newest, head)
        try:
            fd = self._read_until_whole(head, guard)
        except _ReplacedError:
            self._load_patiently(newest, head)
            fd = self._read_until_whole(head, guard)
        while self._successor is not None:
            # Its writer died before the head named it.
            os.close(fd)
            self._load_patiently(self._successor, None)
            fd = self._read_until_whole(None, guard)
        return fd

    def _newest_instead(self, head: Head | None) -> int | None:
        """The generation to go on with when the expected file is not there; None without any."""
        newest = journal.newest_generation(self.layout)
        if newest is not None and head is not None and newest < head.generation:
            raise DamagedJournalError(
                f"{self.layout.journal(head.generation)} is gone, and {self.layout.journal(newest)} is older; nothing "
                "was changed. Restore the file from a backup, or let `dispatcher doctor --repair` go on without it"
            )
        return newest

    def append(self, fd: int, lines: list[Line]) -> None:
        """Under the lock: make changes that the fold already has durable, or leave the journal as it was."""
        lines[0].batch = len(lines)
        data = b"".join([journal.encode(line) + b"\n" for line in lines])
        self.in_doubt = True
        try:
            files.write_all(fd, data, self.offset)
            os.fsync(fd)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _REFUSED and self.network:
                # Others may have written since: what stands here is theirs, and not to be cut off.
                raise LockLostError(f"{self._path}: the file server refused the write ({error.strerror})") from error
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self.offset)
                self.in_doubt = False
            if not isinstance(error, OSError):
                raise
            raise files.storage_error(error, "writing to the journal", self._path) from error
        self.checksum.add(data)
        self.in_doubt = False

    def move_to(self, generation: int, header: bytes, base_seq: int, checksum: RunningChecksum) -> None:
        """This process has begun a new generation, which says what the fold says."""
        self.generation, self.base_seq, self.checksum = generation, base_seq, checksum
        self._path = self.layout.journal(generation)
        self._header = header

    def _open_to_read(self) -> int:
        if not self.shows_old_content:
            return self._open()
        files.look_at(self.layout.journal_dir)
        return files.open_uncached(self._path)

    def _size(self, fd: int) -> int:
        # A client that shows old sizes is told by what can be read that it does.
        return self.offset if self.shows_old_content else os.fstat(fd).st_size

    def _open(self, flags: int = os.O_RDONLY) -> int:
        if self.network:
            files.look_at(self.layout.journal_dir)
        return files.open_existing(self._path, flags)

    def _read_until_whole(self, head: Head | None, guard: Callable[[int], None]) -> int:
        """The journal's descriptor, everything taken in; looks again where a filesystem may show old data."""
        for pause_s in STALE_PAUSES_S:
            if pause_s:
                time.sleep(pause_s)
                files.look_at(self.layout.journal_dir)
            fd = self._open(os.O_RDWR)
            try:
                guard(fd)
                with self._reading(fd) as reader:
                    problem = self._read_to_the_end(fd, reader, head)
            except BaseException:
                os.close(fd)
                raise
            if problem is None:
                return fd
            os.close(fd)
            last = problem
            if not self.network:
                break
        raise last

    @contextlib.contextmanager
    def _reading(self, fd: int) -> Iterator[int]:
        """The descriptor to read from while `fd` is open for writing."""
        if not self.shows_old_content:
            yield fd
            return
        reader = self._open_to_read()
        try:
            yield reader
        finally:
            os.close(reader)

    def _read_to_the_end(self, fd: int, reader: int, head: Head | None) -> DispatcherError | None:
        """Take in the rest of the journal; what is wrong when this cannot be the journal that the head names."""
        path = self._path
        header = files.read_fd(reader, 0, len(self._header))
        if header != self._header and not self._header.startswith(header):
            raise _ReplacedError
        data = files.read_fd(reader, self.offset)
        size = self.offset + len(data) if data else min(self.offset, self._size(reader))
        if head is not None and size < head.length:
            return self._too_short(f"{path}: {size} bytes, but the lock file says that {head.length} were written")
        if size < self.offset:
            return self._too_short(f"{path}: {size} bytes, but {self.offset} were there before")
        certain = 0 if head is None else max(0, head.length - self.offset)
        try:
            lines = journal.parse_lines(data[:certain], path, self.offset) if certain else []
        except DamagedJournalError as error:
            return error
        problem = self._mismatch(reader, head, data)
        if problem is not None or not data:
            return problem
        self._take_in(data[:certain], lines, certain)
        # Beyond the head: whole lines count (their writer died before it could say so), the rest was never finished.
        rest = data[certain:]
        lines, length = journal.parse_consecutive(rest, self.fold.seq)
        if lines:
            os.fsync(fd)
        self._take_in(rest, lines, length)
        if length < len(rest):
            self._check_unfinished(rest[length:], head)
            with files.storing("cutting off an unfinished line of", path):
                os.ftruncate(fd, self.offset)
        return None

    def _mismatch(self, fd: int, head: Head | None, data: bytes) -> DamagedJournalError | None:
        """What is wrong when the file no longer says what was read from it, or not what the head was written for.

        `data` is what follows on what was read. A host that was cut off may write late, over the lines of others.
        """
        now_s = time.monotonic()
        if self.network or now_s >= self._next_check_s:
            differs = self.checksum.differs_at(fd)
            if differs is not None:
                return self._overwritten(*differs, "what they were when they were read")
            self._next_check_s = now_s + LOCAL_CHECK_S
        if head is None or head.length > self.offset + len(data):
            return None
        if head.length >= self.offset:
            found = self.checksum.followed_by(data[: head.length - self.offset])
        else:
            found = self.checksum.at(fd, head.length)
        if found != head.checksum:
            return self._overwritten(min(self.offset, head.length), head.length, "what the lock file was written for")
        return None

    def _overwritten(self, start: int, end: int, expected: str) -> DamagedJournalError:
        mount = mount_of(self.layout.journal_dir)
        shown = f"; if other hosts are shown something else: {mount.cure}" if mount.is_network else ""
        return DamagedJournalError(
            f"{self._path}: bytes {start} to {end} are not {expected}: somebody has written over them; nothing was "
            f"changed. Let `dispatcher doctor --repair` go on from what is whole{shown}"
        )

    def _too_short(self, problem: str) -> StaleViewError:
        mount = mount_of(self.layout.journal_dir)
        repair = (
            "if the file was cut (a damaged disk, a restored copy), `dispatcher doctor --repair` goes on from what is "
            "there and from the newer lines of matrix_status.json"
        )
        cure = f"{mount.cure}; {repair}" if mount.is_network else repair
        return StaleViewError(f"{problem}. This host is shown old data by {mount}, or the file was cut. Cure: {cure}")

    def _check_unfinished(self, rest: bytes, head: Head | None) -> None:
        """Raise DamagedJournalError when `rest` is more than one write that was never finished."""
        later = journal.later_lines(rest)
        if later and later[0].seq == self.fold.seq + 1 and later[0].batch > 1:
            later = [line for line in later if line.seq >= later[0].seq + later[0].batch]
        # All lines of one transaction bear one time. Without a head nothing says that these were not finished.
        if later and (head is None or len({line.at for line in later}) > 1):
            raise DamagedJournalError(
                f"{self._path}: cannot be read from byte {self.offset} on, but whole "
                f"lines stand behind it (up to {later[-1].seq}); nothing was changed. Restore the file from a backup, "
                "or let `dispatcher doctor --repair` go on from what is whole"
            )

    def _take_in(self, data: bytes, lines: list[Line], length: int) -> None:
        """The first `length` bytes of `data`, which say `lines`."""
        checked = self._checked([lines])
        if len(lines) > _BULK:
            self.fold.extend_in_bulk(checked)
        else:
            self.fold.extend(checked)
        self.checksum.add(memoryview(data)[:length])

    def _checked(self, parts: Iterable[list[Line]]) -> Iterator[Line]:
        """The lines, as long as they follow one another, without the one that ends the generation."""
        seq = self.fold.seq
        for lines in parts:
            if lines and (lines[0].seq != seq + 1 or lines[-1].seq != seq + len(lines)):
                raise DamagedJournalError(
                    f"{self._path}: after line {seq} come {len(lines)} lines, {lines[0].seq} to {lines[-1].seq}; "
                    "nothing was changed. Restore the file from a backup, or let `dispatcher doctor --repair` go on "
                    "from what is whole"
                )
            seq += len(lines)
            if lines and lines[-1].event is Event.CONTINUED:
                self._successor = journal.named_by(lines.pop())
            yield from lines

    def _load_patiently(self, number: int, head: Head | None) -> None:
        """As `_load`, looking again where a filesystem may show old data."""
        for pause_s in STALE_PAUSES_S[1:] if self.network else ():
            with contextlib.suppress(DamagedJournalError):
                self._load(number, head, to_the_end=True)
                return
            time.sleep(pause_s)
        self._load(number, head, to_the_end=True)

    def _load(self, number: int, head: Head | None, *, to_the_end: bool) -> None:
        """Build the records anew from one generation; a generation that cannot be read changes nothing."""
        generation = Generation.read(self.layout, number)
        before = self.fold, self.base_seq, self.checksum, self._path, self._header, self._successor
        try:
            self._build(generation, head, to_the_end)
        except BaseException:
            self.fold, self.base_seq, self.checksum, self._path, self._header, self._successor = before
            # What is known is what was known, but it is read again by the next try.
            self.generation = None
            raise
        self.fold.touched |= before[0].records.keys()
        self.generation = number
        self.reloads += 1

    def _build(self, generation: Generation, head: Head | None, to_the_end: bool) -> None:
        snapshot, start = generation.snapshot()
        self.fold = Fold()
        self.fold.lock_kind = generation.header.lock
        self.fold.seq = self.base_seq = generation.header.base_seq
        self.fold.extend_in_bulk(snapshot)
        self._successor = None
        self._path = generation.path
        self._header = generation.data[: generation.start]
        rest = journal.complete_part(generation.data[start:])
        certain = 0
        if head is not None and head.generation == generation.number:
            certain = len(journal.complete_part(rest[: max(0, head.length - start)]))
            parts = journal.parse_in_parts(rest[:certain], generation.path, start)
            self.fold.extend_in_bulk(self._checked(parts))
            whole = memoryview(generation.data)[: head.length]
            if len(whole) == head.length and RunningChecksum(whole).value != head.checksum:
                raise self._overwritten(0, head.length, "what the lock file was written for")
        self.checksum = RunningChecksum(memoryview(generation.data)[: start + certain])
        if to_the_end:
            rest = rest[certain:]
            self._take_in(rest, *journal.parse_consecutive(rest, self.fold.seq))
