"""The records of the journal in the memory of one process, and how they are kept up to date."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from typing import Final

from dispatcher.base import files
from dispatcher.base.mounts import Mount, mount_of
from dispatcher.errors import DamagedJournalError, DispatcherError, LockLostError, StaleViewError
from dispatcher.run_state import journal
from dispatcher.run_state.checksum import RunningChecksum
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.head import Head
from dispatcher.run_state.journal import Line
from dispatcher.run_state.loaded_generation import LoadedGeneration
from dispatcher.run_state.open_journal import OpenJournal
from dispatcher.workspace import Layout

STALE_PAUSES_S: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.2, 0.2, 0.5, 1.0, 2.0)
# How many generations in a row may be replaced while one is opened.
_FOLLOW_TRIES: Final = 5
# How often the journal is compared with what was read from it: its last block and one other, under the name that the
# directory has now. On network filesystems, where a host that was cut off may write late, the last page is compared in
# every step.
_WHOLE_CHECK_S: Final = 1.0
# What a write gets whose lock a file server has taken away.
_REFUSED: Final = frozenset({errno.EIO, errno.EBADF, errno.ESTALE})


class _ReplacedError(Exception):
    """Another file of the same number has replaced the journal: a new start, a copy of another workspace."""


class Replica:
    """The fold of the journal up to byte `offset` of `generation` (None: to be read from its beginning).

    `reloads` counts how often the records were rebuilt: then all of them count as touched.
    """

    def __init__(self, layout: Layout, mount: Mount, clock: Callable[[], float] = time.monotonic) -> None:
        self.layout = layout
        self._clock = clock
        self.network = mount.is_network
        self.shows_old_content = mount.shows_old_content
        self.generation: int | None = None
        self.reloads = 0
        # Whether the last append failed and could not be cut off again: the next reader may find it written.
        self.in_doubt = False
        # What transactions write to.
        self.file = OpenJournal(network=self.network)
        self._loaded = LoadedGeneration(layout.journal(0))
        self._next_check_s = 0.0

    @property
    def fold(self) -> Fold:
        return self._loaded.fold

    @property
    def base_seq(self) -> int:
        """The `seq` with which the generation began."""
        return self._loaded.base_seq

    @property
    def checksum(self) -> RunningChecksum:
        """Of the bytes that `fold` shows."""
        return self._loaded.checksum

    @property
    def offset(self) -> int:
        return self._loaded.offset

    def shows(self, generation: int, length: int, checksum: int) -> bool:
        """Whether this process has read as far as another host has, with the same content up to there."""
        if self.generation is None or generation != self.generation:
            return self.generation is not None and generation < self.generation
        if length >= self.offset:
            return (length, checksum) == (self.offset, self.checksum.value)
        fd = self._open_to_read()
        try:
            return self.checksum.at(fd, length) == checksum
        finally:
            os.close(fd)

    # Without the lock.

    def follow(self, head: Head | None, *, to_the_end: bool, for_display: bool = False) -> None:
        """Read what is certain to stay, or also what follows beyond the head. `for_display`: see LoadedGeneration.load.

        Raises DamagedJournalError, and reads nothing, when the journal is not what the head or an earlier read showed.
        """
        for is_last in (*[False] * (_FOLLOW_TRIES - 1), True):
            try:
                self._follow(head, to_the_end=to_the_end, for_display=for_display)
                return
            except FileNotFoundError:
                # Another process has begun a new generation, and compressed the one that was to be opened.
                if is_last:
                    raise
                if self._newest_instead(head) is None:
                    return
                head = self.generation = None

    def follow_open_file(self, head: Head) -> None:
        """As `follow`, only of the file that is open for the next transaction: cheap, but not certain to be current."""
        if head.generation == self.generation and head.length > self.offset:
            self._follow_file(self.file.fd, head, to_the_end=False)

    def shortage(self, head: Head | None) -> StaleViewError | None:
        """What is wrong when the journal, which was read to its end after this head, is shorter than the head says."""
        if head is None or head.generation != self.generation or self.offset >= head.length:
            return None
        fd = self._open_to_read()
        try:
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        return self._shortage(size, head)

    def check(self) -> None:
        """Before anything is changed: read what was not read of the journal. Where it differs, it is loaded anew."""
        if self._loaded.is_checked:
            return
        # Where it is gone, the next transaction opens another one, or says what is wrong.
        with files.storing("reading", self._loaded.path), contextlib.suppress(FileNotFoundError):
            fd = self._open_to_read()
            try:
                self._loaded.check(fd)
            finally:
                os.close(fd)

    def _follow(self, head: Head | None, *, to_the_end: bool, for_display: bool) -> None:
        newest = head.generation if head is not None else journal.newest_generation(self.layout)
        if newest is None:
            return
        # Without a head nothing says how far the journal goes.
        to_its_end = to_the_end or head is None
        if self.generation is None or newest > self.generation:
            self._load(newest, head, to_the_end=to_its_end, for_display=for_display)
        fd = self._open_to_read()
        try:
            header = self._loaded.header
            if files.read_fd(fd, 0, len(header)) != header:
                self._load(newest, head, to_the_end=to_its_end, for_display=for_display)
                return
            self._follow_file(fd, head, to_the_end=to_the_end)
        finally:
            os.close(fd)
        while self._loaded.successor is not None:
            self._load(self._loaded.successor, None, to_the_end=True)

    def _follow_file(self, fd: int, head: Head | None, *, to_the_end: bool) -> None:
        end = None
        if head is not None and not to_the_end:
            end = head.length if head.generation == self.generation else self.offset
        data = files.read_fd(fd, self.offset, None if end is None else max(0, end - self.offset))
        head = head if head is not None and head.generation == self.generation else None
        problem = self._mismatch(fd, head, data, is_whole=self._whole_check_is_due())
        if problem is not None:
            raise problem
        if data:
            self._loaded.extend(data, *journal.parse_consecutive(data, self.fold.seq))

    # Under the lock.

    def catch_up(self, head: Head | None, guard: Callable[[int], None]) -> int | None:
        """Read everything and cut off what was never finished. `guard` locks the journal, too.

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
        if newest != self.generation or not self._loaded.is_checked:
            self._load_patiently(newest, head)
        try:
            fd = self._read_until_whole(head, guard)
        except _ReplacedError:
            self._load_patiently(newest, head)
            fd = self._read_until_whole(head, guard)
        while self._loaded.successor is not None:
            # Its writer died before the head named it.
            self.file.close()
            self._load_patiently(self._loaded.successor, None)
            fd = self._read_until_whole(None, guard)
        return fd

    def append(self, fd: int, lines: list[Line]) -> None:
        """Make changes durable that the fold has already, or leave the journal as it was."""
        path, offset = self._loaded.path, self.offset
        lines[0].batch = len(lines)
        data = b"".join([journal.encode(line) + b"\n" for line in lines])
        self.in_doubt = True
        try:
            files.write_all(fd, data, offset)
            os.fsync(fd)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _REFUSED and self.network:
                # Others may have written since: what is there now is theirs and must not be cut off.
                raise LockLostError(f"{path}: the file server refused the write ({error.strerror})") from error
            with contextlib.suppress(OSError):
                os.ftruncate(fd, offset)
                self.in_doubt = False
            if not isinstance(error, OSError):
                raise
            raise files.storage_error(error, "writing to the journal", path) from error
        self.checksum.add(data)
        self.in_doubt = False

    def begin_save(self) -> Callable[[], None] | None:
        """To save the fold of a long journal for those who read it later; see saved_fold.begin."""
        if self.generation is None or self.in_doubt:
            return None
        return self._loaded.begin_save(self.layout)

    def move_to(self, generation: int, header: bytes, base_seq: int, checksum: RunningChecksum) -> None:
        """Continue with a generation that this process has begun, with the content of the fold."""
        # The old file is about to be removed; where one is open, NFS keeps it under another name.
        self.file.close()
        self.generation = generation
        self._loaded = LoadedGeneration(self.layout.journal(generation), header, base_seq, self.fold)
        self._loaded.checksum = checksum

    def _newest_instead(self, head: Head | None) -> int | None:
        """The generation to continue with when the expected file is missing; None without any."""
        newest = journal.newest_generation(self.layout)
        if newest is not None and head is not None and newest < head.generation:
            raise DamagedJournalError(
                f"{self.layout.journal(head.generation)} is gone, and {self.layout.journal(newest)} is older; nothing "
                "was changed. Restore the file from a backup, or let `dispatcher doctor --repair` continue without it"
            )
        return newest

    def _read_until_whole(self, head: Head | None, guard: Callable[[int], None]) -> int:
        """The journal's descriptor, after everything was read; reads again where a filesystem may show old data."""
        is_whole = self._whole_check_is_due()
        for pause_s in STALE_PAUSES_S:
            if pause_s:
                time.sleep(pause_s)
                files.refresh_names(self.layout.journal_dir)
            # Only a person replaces a journal. Lines that were written to the old file are then missing from the
            # length in the head.
            fd = self.file.open(self._loaded.path, names_are_fresh=not is_whole)
            reader = fd
            try:
                guard(fd)
                if self.shows_old_content:
                    reader = self._open_to_read()
                problem = self._read_to_the_end(fd, reader, head, is_whole=is_whole)
            except BaseException:
                self.file.close()
                raise
            finally:
                if reader != fd:
                    os.close(reader)
            if problem is None:
                return fd
            self.file.close()
            last = problem
            if not self.network:
                break
        raise last

    def _read_to_the_end(self, fd: int, reader: int, head: Head | None, *, is_whole: bool) -> DispatcherError | None:
        """Read the rest of the journal; what is wrong when this cannot be the journal that the head names."""
        # The checks that follow elsewhere tell this file from any other as well.
        if not (self.network or is_whole):
            self._check_header(reader)
        problem = self._read_rest(fd, reader, head, is_whole=is_whole)
        if problem is not None:
            self._check_header(reader)
        return problem

    def _check_header(self, reader: int) -> None:
        """Raise _ReplacedError when the first line is not that of the journal that was read."""
        known = self._loaded.header
        header = files.read_fd(reader, 0, len(known))
        if header != known and not known.startswith(header):
            raise _ReplacedError

    def _read_rest(self, fd: int, reader: int, head: Head | None, *, is_whole: bool) -> DispatcherError | None:
        loaded = self._loaded
        path = loaded.path
        data, size = self._read_new(reader)
        problem = self._shortage(size, head)
        if problem is not None:
            return problem
        certain = 0 if head is None else max(0, head.length - loaded.offset)
        try:
            lines = journal.parse_lines(data[:certain], path, loaded.offset) if certain else []
        except DamagedJournalError as error:
            return error
        mismatch = self._mismatch(reader, head, data, is_whole=is_whole)
        if mismatch is not None or not data:
            return mismatch
        loaded.extend(data[:certain], lines, certain)
        # Beyond the head: whole lines count (their writer died before it could say so), the rest was never finished.
        rest = data[certain:]
        lines, length = journal.parse_consecutive(rest, loaded.fold.seq)
        if lines:
            os.fsync(fd)
        loaded.extend(rest, lines, length)
        if length < len(rest):
            loaded.check_unfinished(rest[length:], head)
            with files.storing("cutting off an unfinished line of", path):
                os.ftruncate(fd, loaded.offset)
        return None

    def _mismatch(self, fd: int, head: Head | None, data: bytes, *, is_whole: bool) -> DamagedJournalError | None:
        """What is wrong when the file is no longer what was read from it, or not what the head was written for.

        `data` is what follows on what was read. A host that was cut off may write late, over the lines of others.
        """
        if is_whole or self.network:
            problem = self._loaded.differs(fd, is_whole=is_whole)
            if problem is not None:
                return problem
        if is_whole:
            self._next_check_s = self._clock() + _WHOLE_CHECK_S
        return None if head is None else self._loaded.differs_from_head(fd, head, data)

    def _whole_check_is_due(self) -> bool:
        # On FUSE nothing refuses a late write.
        return self.shows_old_content or self._clock() >= self._next_check_s

    def _read_new(self, reader: int) -> tuple[bytes, int]:
        """What follows on what was read; and how long the file is, as far as that is shown."""
        offset = self.offset
        if self.shows_old_content:
            # Only reading says how long the file is.
            data = files.read_fd(reader, offset)
            return data, offset + len(data)
        size = os.fstat(reader).st_size
        data = files.read_fd(reader, offset, size - offset) if size > offset else b""
        return data, offset + len(data) if data else min(offset, size)

    def _shortage(self, size: int, head: Head | None) -> StaleViewError | None:
        """What is wrong when the file is shorter than it must be."""
        path, offset = self._loaded.path, self.offset
        if head is not None and size < head.length:
            problem = f"{path}: {size} bytes, but the lock file says that {head.length} were written"
        elif size < offset:
            problem = f"{path}: {size} bytes, but {offset} were there before"
        else:
            return None
        mount = mount_of(self.layout.journal_dir)
        repair = (
            "if the file was cut (a damaged disk, a restored copy), `dispatcher doctor --repair` continues from what "
            "is there and from the newer lines of matrix_status.json"
        )
        cure = f"{mount.cure}; {repair}" if mount.is_network else repair
        return StaleViewError(f"{problem}. This host is shown old data by {mount}, or the file was cut. Cure: {cure}")

    # Opening the file, past the caches of clients that show old content.

    def _open_to_read(self) -> int:
        if not self.shows_old_content:
            return self._open()
        files.refresh_names(self.layout.journal_dir)
        return files.open_uncached(self._loaded.path)

    def _open(self) -> int:
        if self.network:
            files.refresh_names(self.layout.journal_dir)
        return files.open_existing(self._loaded.path, os.O_RDONLY)

    # Reading a whole generation.

    def _load_patiently(self, number: int, head: Head | None) -> None:
        """As `_load`, several times where a filesystem may show old data."""
        for pause_s in STALE_PAUSES_S[1:] if self.network else ():
            with contextlib.suppress(DamagedJournalError):
                self._load(number, head, to_the_end=True)
                return
            time.sleep(pause_s)
        self._load(number, head, to_the_end=True)

    def _load(self, number: int, head: Head | None, *, to_the_end: bool, for_display: bool = False) -> None:
        """Rebuild the records from one generation; a generation that cannot be read changes nothing."""
        known = self.fold.records.keys()
        # Until the new one is complete the records stay as they were, but the next try reads them again.
        self.generation = None
        self._loaded = LoadedGeneration.load(self.layout, number, head, to_the_end=to_the_end, for_display=for_display)
        self.fold.touched |= known
        self.generation = number
        self.reloads += 1
