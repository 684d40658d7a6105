"""`matrix/submitted.jsonl`: the jobs that `dispatcher submit -- COMMAND` has added, one entry a line, appended only.

A line counts when the record of its job is `ad_hoc`. The submission appends that record to the journal in the same
transaction, after the line: so one that was killed or undone has added nothing, whatever it has left here, and neither
has the line of a job that was deleted, also where a manifest lists a job of the same name later. Of several lines with
one job the last counts. Every pod reads the file beside its manifest.

The entries of the first lines of a long file are also kept in another, as those of a large manifest are. It counts only
if it was written by the same version, and if the bytes of those lines have the same checksum; a reader then decodes
what was appended since. It may be removed at any time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.base import files, parts
from dispatcher.base.file_identity import Identity, identity_of
from dispatcher.base.messages import first_texts
from dispatcher.base.mounts import mount_of
from dispatcher.matrix import strict_json
from dispatcher.matrix.entries import Entries
from dispatcher.matrix.entry import Entry, form, read_entry
from dispatcher.matrix.saved_entries import packed_parts, read_packed

# Jobs of a manifest come first among those of one priority.
_FIRST_ORDER: Final = 1 << 40
# Kinds of submitted jobs have other numbers than those of manifests, to which they are joined.
_FIRST_KIND: Final = 1 << 20
# A rewritten file differs from one that was appended to in the bytes before the place where reading goes on.
_TAIL: Final = 4096
_GROWTH: Final = 1.25
# Fewer are read in less time than the file of saved entries saves.
_LEAST_BYTES: Final = 200_000
# To be raised with every change of what lines are read as.
_VERSION: Final = 1
_JOB: Final = re.compile(rb'"job_id"\s*:\s*"([A-Za-z0-9._-]+)"')


class _Head(msgspec.Struct, frozen=True):
    """Of the file of saved entries: `lines` lines of `length` bytes have this checksum, and so many entries."""

    form: str
    length: int
    checksum: int
    lines: int
    entries: int


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode


class SubmittedChanges(msgspec.Struct, frozen=True):
    """What a look at the file has found: the jobs of appended lines; or it has to be taken in as a whole.

    `replaced` are those of `added` that have had a line before.
    """

    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    is_rewritten: bool = False


class SubmittedJobs:
    """The entries of the file at `path`, of which only what was appended is read again.

    `entries` has each job's last line. `problem` says which lines cannot be read, all of which are in `faults`; the
    others count, and jobs that were read before keep their entries.
    """

    def __init__(self, path: Path, saved: Path | None = None) -> None:
        """`saved`: the file in which a pod keeps the entries of the first lines, which need not be read then."""
        self.path = path
        self.entries = Entries(first_kind=_FIRST_KIND)
        self._saved = saved
        self._saved_offset = 0
        self.problem = ""
        self._offset = 0
        self._lines = 0
        self._inode = 0
        self._tail = b""
        self._checksum = 0
        self.faults: list[str] = []
        self._stamp: Identity | None = None

    def read(self, *, thoroughly: bool = False) -> SubmittedChanges:
        """Take in what has changed. `thoroughly`: also changes before the end, such as those of an editor.

        Without a file, and where it cannot be read, the entries stay as they are, and `problem` says so.
        """
        try:
            return self._look(thoroughly=thoroughly)
        except FileNotFoundError:
            known = "jobs that were read from it go on" if self.entries else "the jobs in it are not known"
            self.problem = f"{self.path} is missing: {known}. Restore it, or `dispatcher delete` them"
            self._inode = 0
            return SubmittedChanges()
        except OSError as error:
            self.problem = f"{self.path} cannot be read, so jobs in it may be missing: {error.strerror or error}"
            self.faults = [f"cannot be read: {error.strerror or error}"]
            # All of it is read again when it can be.
            self._inode = 0
            return SubmittedChanges()

    def _look(self, *, thoroughly: bool) -> SubmittedChanges:
        fd = self._open()
        try:
            found = os.fstat(fd)
            stamp = identity_of(found)
            if not self._inode:
                self._stamp = stamp
                return self._replace(files.read_fd(fd), found.st_ino)
            if thoroughly and stamp != self._stamp:
                data = files.read_fd(fd)
                self._stamp = stamp
                is_same = len(data) >= self._offset and zlib.crc32(data[: self._offset]) == self._checksum
                return self._append(data[self._offset :]) if is_same else self._replace(data, found.st_ino)
            start = self._offset - len(self._tail)
            data = files.read_fd(fd, start)
            if found.st_ino == self._inode and data.startswith(self._tail):
                return self._append(data[len(self._tail) :])
            return self._replace(files.read_fd(fd), found.st_ino)
        finally:
            os.close(fd)

    def _open(self) -> int:
        if mount_of(self.path.parent).is_network:
            files.refresh_names(self.path.parent)
        return files.open_at_once(os.fspath(self.path), os.O_RDONLY)

    def _append(self, data: bytes) -> SubmittedChanges:
        """Take in what follows on what was read; an unfinished last line is read again, with its end."""
        added: list[str] = []
        replaced: list[str] = []
        end = data.rfind(b"\n") + 1
        for line in data[:end].splitlines():
            self._lines += 1
            entry = self._entry(line)
            if entry is not None:
                if entry.job_id in self.entries:
                    replaced.append(entry.job_id)
                added.append(entry.job_id)
                self.entries.add(entry)
        self._offset += end
        self._checksum = zlib.crc32(data[:end], self._checksum)
        self._tail = (self._tail + data[:end])[-_TAIL:]
        self._describe()
        return SubmittedChanges(tuple(added), tuple(replaced))

    def _replace(self, data: bytes, inode: int) -> SubmittedChanges:
        before, faults = self.entries, self.faults
        self.entries, self.faults = Entries(first_kind=_FIRST_KIND), []
        self._inode = inode
        self._offset = self._lines = self._checksum = 0
        self._tail = b""
        if self._saved is not None and not before:
            self._restore(self._saved, data)
            data = data[self._offset :]
        known = tuple(self.entries)
        # A last line that an editor has left without its end counts.
        is_whole = data.endswith(b"\n") or not _is_complete(data.rpartition(b"\n")[2])
        news = self._append(data if is_whole else data + b"\n")
        for job in before if self.faults else ():
            if job not in self.entries:
                self.entries.add(before[job])
        return SubmittedChanges(is_rewritten=bool(before) or bool(faults), added=(*known, *news.added))

    def save(self, root: Path) -> None:
        """Keep the entries for processes that begin later, where reading them would take long."""
        if self._saved is None or self.faults or self._offset < _LEAST_BYTES:
            return
        # All savings together cost no more than a few times the last.
        if self._offset > self._saved_offset * _GROWTH:
            self._saved_offset = self._offset
            head = _Head(f"{_VERSION} {form()}", self._offset, self._checksum, self._lines, len(self.entries))
            # Where that fails there is no file, or the old one.
            parts.write(self._saved, root, itertools.chain([_encode(head)], packed_parts(self.entries)))

    def _restore(self, path: Path, data: bytes) -> None:
        """Take in what was saved of the lines with which `data` begins, if anything was."""
        with contextlib.suppress(*parts.UNUSABLE), open(path, "rb") as file:
            head = _decode_head(parts.read(file))
            is_usable = head.form == f"{_VERSION} {form()}" and head.length <= len(data)
            if is_usable and zlib.crc32(memoryview(data)[: head.length]) == head.checksum:
                self.entries = Entries.of(*read_packed(file, head.entries), first_kind=_FIRST_KIND)
                self._lines, self._checksum = head.lines, head.checksum
                self._offset = self._saved_offset = head.length
                self._tail = data[: head.length][-_TAIL:]

    def _entry(self, line: bytes) -> Entry | None:
        if not line.strip():
            return None
        try:
            document, faults = strict_json.decode(line)
        except ValueError as error:
            self.faults.append(f"line {self._lines}: {str(error).removeprefix('line 1, ')}")
            return None
        if not isinstance(document, dict):
            self.faults.append(f"line {self._lines}: expected an entry, an object with job_id and method")
            return None
        entry, more = read_entry(document, _FIRST_ORDER + self._lines)
        faults += more
        self.faults += [f"line {self._lines}: {fault}" for fault in faults]
        return None if faults else entry

    def _describe(self) -> None:
        what = f"{self.path.name} cannot be read as a whole, the other jobs go on"
        self.problem = f"{what}: {first_texts(self.faults)}" if self.faults else ""


class Listed(Mapping[str, Entry]):
    """The entries of a manifest, then those of submitted jobs that it does not have.

    `is_ad_hoc` says of a job whether its line counts; the answer may change at any time.
    """

    def __init__(
        self, manifest: Mapping[str, Entry], submitted: Mapping[str, Entry], is_ad_hoc: Callable[[str], bool]
    ) -> None:
        self._manifest = manifest
        self._submitted = submitted
        self._is_ad_hoc = is_ad_hoc

    def __getitem__(self, job: str) -> Entry:
        if job in self._manifest:
            return self._manifest[job]
        if not self._is_ad_hoc(job):
            raise KeyError(job)
        return self._submitted[job]

    def __contains__(self, job: object) -> bool:
        return job in self._manifest or (job in self._submitted and self._is_ad_hoc(str(job)))

    def __iter__(self) -> Iterator[str]:
        yield from self._manifest
        yield from (job for job in self._submitted if job not in self._manifest and self._is_ad_hoc(job))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def is_submitted(entry: Entry) -> bool:
    """Whether the entry is one of the file, and not of a manifest."""
    return entry.order > _FIRST_ORDER


def append_entries(
    path: Path,
    documents: Sequence[Mapping[str, Any]],
    *,
    counts: Callable[[str], bool],
    guard: Callable[[int], None],
    when_over: Callable[[Callable[[bool], object]], None],
) -> None:
    """Append the entries durably, in a transaction, before the lines of their records.

    What was appended is cut off again when the transaction fails. `guard` and `when_over` are its own (Store,
    Transaction); `counts`: whether a job's line counts. Raises StorageError and LockLostError; then nothing was
    appended.
    """
    data = b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in documents)
    with files.storing("adding jobs to", path):
        path.parent.mkdir(exist_ok=True)
        files.refresh_names(path.parent)
        is_new = not os.path.exists(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        size: int | None = None
        end = 0

        def over(undone: bool) -> None:
            # Closed under the lock: the next one to append would otherwise wait for the guard.
            try:
                # Further lines are those of a process that has taken the lock over. What stays does not count.
                if undone and size is not None and os.fstat(fd).st_size <= end:
                    os.ftruncate(fd, size)
            finally:
                os.close(fd)

        when_over(over)
        # A host that is cut off must not write late over the lines of others.
        guard(fd)
        size, missing_end = _end_of_lines(fd, counts)
        end = size + len(missing_end) + len(data)
        os.ftruncate(fd, size)
        files.write_all(fd, missing_end + data, size)
        os.fsync(fd)
        if is_new:
            files.sync_directory(path.parent)


def _end_of_lines(fd: int, counts: Callable[[str], bool]) -> tuple[int, bytes]:
    """Where the next line begins, and what the last one lacks there.

    An incomplete last line is one whose writer was killed, and does not count; or one that a person has edited, if its
    job is there.
    """
    size = end = os.fstat(fd).st_size
    rest = b""
    while end > 0 and b"\n" not in rest:
        start = max(0, end - 65536)
        rest = files.read_fd(fd, start, end - start) + rest
        end = start
    last = rest.rpartition(b"\n")[2]
    if not last:
        return size, b""
    job = _JOB.search(last)
    is_edited = _is_complete(last) or (job is not None and counts(job[1].decode()))
    return (size, b"\n") if is_edited else (size - len(last), b"")


def _is_complete(line: bytes) -> bool:
    """Whether a last line without a newline is an entry all the same, as some editors leave it."""
    try:
        return isinstance(strict_json.decode(line)[0], dict)
    except ValueError:
        return False
