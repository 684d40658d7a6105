"""Beginning a new generation of the journal, and compressing the old one.

The new file is written outside the lock, under the next free number, with everything up to some line S. Under the lock
the lines after S follow, and then one line at the end of the old file puts the new one in force. A process that dies
before that line leaves a file that no other process reads, and that the next rotation removes. One that dies after it
has done enough: all others find that line, with or without the head.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import time
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.run_state import journal
from dispatcher.run_state.checksum import RunningChecksum
from dispatcher.run_state.events import Continued, Event
from dispatcher.run_state.fold import snapshot
from dispatcher.run_state.generations import encode_generation
from dispatcher.run_state.journal import Line
from dispatcher.run_state.locked_journal import LockedJournal
from dispatcher.workspace import Layout

# A new generation is worth its snapshot when reading the old one costs several times as much as reading that.
_LINES_PER_RECORD: Final = 4
_LEAST_LINES: Final = 50_000


def is_worthwhile(lines: int, records: int) -> bool:
    """Whether a generation of so many lines about so many records should be replaced."""
    return lines > _LINES_PER_RECORD * records + _LEAST_LINES


def rotate(locked: LockedJournal) -> bool:
    """Begin a new generation; False when another process has done so meanwhile."""
    locked.refresh()
    replica, layout = locked.replica, locked.layout
    old = replica.generation
    if old is None:
        return False
    begun = journal.generations(layout)[-1] + 1
    path = layout.journal(begun)
    with files.shared_umask(layout.root), files.storing("beginning a new generation of the journal in", path):
        try:
            new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            # Another process prepares the same generation.
            return False
        # Once the line that puts it in force may have been written, the new file stays.
        may_be_in_force = False
        try:
            since, base_seq = replica.offset, replica.fold.seq
            header, checksum = _write_snapshot(locked, new, begun)
            with locked.held() as fd:
                if replica.generation == old:
                    tail = files.read_fd(fd, since)
                    files.write_all(new, tail, checksum.length)
                    checksum.add(tail)
                    os.fsync(new)
                    files.sync_directory(layout.journal_dir)
                    locked.begin_append()
                    may_be_in_force = True
                    continue_with(fd, replica.fold.seq + 1, locked.by, begun)
                    locked.begin_generation(begun, header, base_seq, checksum)
        finally:
            os.close(new)
            if not may_be_in_force:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        if may_be_in_force:
            _tidy(layout, old, begun)
    return may_be_in_force


def continue_with(fd: int, seq: int, by: str, generation: int) -> None:
    """Under the lock, and up to date: end a generation with the line that puts the next one in force."""
    end = os.fstat(fd).st_size
    at = journal.now_text(time.time())
    line = Line(seq=seq, at=at, by=by, event=Event.CONTINUED, data=Continued(generation=generation).as_json())
    try:
        files.write_all(fd, journal.encode(line) + b"\n", end)
        os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, end)
        raise


def _write_snapshot(locked: LockedJournal, fd: int, generation: int) -> tuple[bytes, RunningChecksum]:
    """The first line of the new file, and the checksum of all of it."""
    now_s = time.time()
    fold = locked.fold
    lines = list(snapshot(fold, journal.now_text(now_s), locked.by))
    header = journal.new_header(
        generation,
        base_seq=fold.seq,
        records=len(lines),
        lock=fold.lock_kind or locked.lock_kind,
        seconds=now_s,
        after=locked.replica.generation or 0,
    )
    data = encode_generation(header, lines)
    files.write_all(fd, data, 0)
    # The bulk goes to the disk before the lock is taken.
    os.fsync(fd)
    return data[: data.find(b"\n") + 1], RunningChecksum(data)


def _tidy(layout: Layout, old: int, begun: int) -> None:
    """Compress the generations that are not read any more, and remove those that never came into force.

    Another process may do so at the same time.
    """
    for number in journal.generations(layout):
        path = layout.journal(number)
        with contextlib.suppress(FileNotFoundError):
            if number <= old and path.exists():
                _compress(path)
            elif old < number < begun:
                os.unlink(path)


def _compress(path: Path) -> None:
    with open(path, "rb") as file:
        files.replace_file(journal.compressed(path), gzip.compress(file.read(), compresslevel=3))
    os.unlink(path)
