"""Repairing a damaged or cut journal, for `dispatcher doctor --repair`: nothing is lost, everything is reported."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dispatcher.base import files
from dispatcher.base.messages import first_names
from dispatcher.config import LockKind
from dispatcher.errors import DamagedJournalError, FormatError, StaleViewError, StatusFileError
from dispatcher.run_state import journal
from dispatcher.run_state.checksum import RunningChecksum
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.events import Event
from dispatcher.run_state.fold import Fold, snapshot
from dispatcher.run_state.generations import encode_generation
from dispatcher.run_state.head import Head
from dispatcher.run_state.journal import Line
from dispatcher.run_state.lock import ClaimsLock
from dispatcher.run_state.lock_choice import choose_lock, hardlink_is_in_force
from dispatcher.run_state.rotation import continue_with
from dispatcher.run_state.states import make_record
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def repair(store: Store) -> list[str]:
    """Begin a new generation from the lines that can be read and newer lines of the status file; a report in sentences.

    Empty when the journal is intact. The damaged file is kept in rejected/. Raises FormatError for a journal of a newer
    version. Where a host is merely shown old data by its filesystem, there is nothing to repair: use another host.
    """
    try:
        with store.held():
            return []
    except (DamagedJournalError, StaleViewError):
        # This is what is repaired.
        pass
    layout = store.layout
    with files.shared_umask(layout.root), files.storing("repairing the journal in", layout.journal_dir):
        lock = _lock(store)
        lock.acquire(120.0)
        try:
            report = _Repair(layout, store.by).run(lock)
        finally:
            lock.release()
            lock.close()
    store.close()
    store.refresh()
    return report


def _lock(store: Store) -> ClaimsLock:
    try:
        return choose_lock(store.layout, "auto", store.by)
    except DamagedJournalError:
        # The header, which names the kind of lock, cannot be read.
        kind = LockKind.HARDLINK if hardlink_is_in_force(store.layout) else LockKind.FLOCK
        return ClaimsLock(store.layout.lock_file, kind, store.by)


@dataclass
class _Repair:
    layout: Layout
    by: str
    report: list[str] = field(default_factory=list)
    fold: Fold = field(default_factory=Fold)
    last_seq: int = 0

    def run(self, lock: ClaimsLock) -> list[str]:
        head = lock.read_head()
        numbers = journal.generations(self.layout)
        damaged = head.generation if head is not None and head.generation in numbers else numbers[-1] if numbers else 0
        if head is not None:
            self.last_seq = head.seq
        if head is not None and head.generation not in numbers:
            self.report.append(f"{self.layout.journal(head.generation)} is gone")
        elif damaged:
            self._keep(self.layout.journal(damaged))
        header_is_whole = self._fold_whole_lines(numbers, damaged)
        self._adopt_newer()
        after = head.generation if head is not None else damaged
        begun = max([after, *numbers]) + 1
        checksum = self._write(begun, after, lock.kind)
        if after in numbers:
            self._end(after, begun, header_is_whole)
        lock.finish_append(begun, checksum.length, checksum.value)
        lock.write_head(Head(generation=begun, length=checksum.length, seq=self.last_seq, checksum=checksum.value))
        self.report.append(f"{len(self.fold.records)} records are now in {self.layout.journal(begun)}")
        return self.report

    def _keep(self, path: Path) -> None:
        os.makedirs(self.layout.rejected_dir, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            kept = files.write_unique(self.layout.rejected_dir / path.name, path.read_bytes())
            self.report.append(f"{path} was copied to {kept}")

    def _fold_whole_lines(self, numbers: list[int], damaged: int) -> bool:
        """Fold the newest generation whose first line can be read; whether that is the damaged one."""
        for number in reversed([n for n in numbers if n <= damaged]):
            path = self.layout.journal(number)
            data = journal.read_generation(self.layout, number)
            start = data.find(b"\n") + 1
            try:
                header = journal.parse_header(data[:start], path)
            except DamagedJournalError:
                self.report.append(f"{path}: its first line cannot be read, so nothing of it was used")
                continue
            self.fold.lock_kind = header.lock
            self.fold.seq = header.base_seq
            unread = self._fold_lines(data[start:])
            self.last_seq = max(self.last_seq, self.fold.seq)
            self.report.append(f"{path}: read up to line number {self.fold.seq}")
            if unread:
                self.report.append(f"{path}: {unread} of its lines could not be read or used")
            return number == damaged
        return False

    def _fold_lines(self, data: bytes) -> int:
        """Fold every line that can be read; the number of those that cannot."""
        unread, base_seq = 0, self.fold.seq
        for raw in data.split(b"\n"):
            if not raw:
                continue
            try:
                line = msgspec.json.decode(raw, type=Line)
                if line.event is Event.CONTINUED:
                    continue
                if line.seq < self.fold.seq or base_seq < line.seq == self.fold.seq:
                    raise FormatError("a line number that was used before")
                self.fold.extend((line,))
            except (msgspec.DecodeError, FormatError, KeyError, TypeError, ValueError):
                unread += 1
        return unread

    def _adopt_newer(self) -> None:
        """Adopt lines of the status file that are newer than what is left of the journal."""
        data = files.read_fresh(self.layout.status_file)
        if not data or not data.strip():
            return
        try:
            lines = status_file.parse(data, str(self.layout.status_file))
        except StatusFileError as error:
            self.report.append(f"{error}. Nothing was taken from it")
            return
        adopted = [job for job, line in lines.items() if self._adopt(job, line)]
        if adopted:
            names = first_names(adopted, 5)
            self.report.append(f"{len(adopted)} newer records were taken from {self.layout.status_file}: {names}")

    def _adopt(self, job: str, line: Mapping[str, Any]) -> bool:
        rev = line.get("rev")
        known = self.fold.records.get(job)
        if type(rev) is not int or rev >= 2**53 or (known is not None and rev <= known.rev):
            return False
        try:
            self.fold.records.put(job, make_record(line), self.fold.records.born(job) or rev)
        except FormatError as error:
            self.report.append(f"{self.layout.status_file}: {job!r}: {error}; the line was left out")
            return False
        self.last_seq = max(self.last_seq, rev)
        return True

    def _write(self, begun: int, after: int, lock_kind: str) -> RunningChecksum:
        self.fold.seq = self.last_seq
        now_s = time.time()
        lines = list(snapshot(self.fold, journal.now_text(now_s), self.by))
        header = journal.new_header(
            begun, base_seq=self.last_seq, records=len(lines), lock=lock_kind, seconds=now_s, after=after
        )
        data = encode_generation(header, lines)
        os.makedirs(self.layout.journal_dir, exist_ok=True)
        with files.creating(self.layout.journal(begun)) as fd:
            files.write_all(fd, data, 0)
            os.fsync(fd)
        files.sync_directory(self.layout.journal_dir)
        return RunningChecksum(data)

    def _end(self, damaged: int, begun: int, header_is_whole: bool) -> None:
        """Put the new generation in force."""
        path = self.layout.journal(damaged)
        if not header_is_whole:
            # A generation counts without the `continued` of the one before only if that is gone; it is in rejected/.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, len(journal.whole_lines(files.read_fd(fd))))
            continue_with(fd, self.last_seq + 1, self.by, begun)
        finally:
            os.close(fd)
