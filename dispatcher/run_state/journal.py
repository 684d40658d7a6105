"""The journal: lines and files. A file is only ever appended to, under the claims lock.

    {"format": "dispatcher-journal", "version": 1, "generation": 1, "base_seq": 0, "records": 0, "lock": "flock", ...}
    {"seq": 1, "at": "2026-06-17T22:48:00.123Z", "by": "pod-0", "job": "a", "event": "queued", "set": {...}}

The first line is the header. A later generation begins with a snapshot: `records` lines, all with `seq` equal to
`base_seq` (a `snapshot` for every record, then pauses, refused edits and streaks of failures). The lines after
`base_seq` follow. The generation before it, which the header names, ends with a line whose event is `continued` and
which names the new one: only that line puts a generation in force, whatever the head says.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast

import msgspec

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.base.times import parse_time
from dispatcher.config import LockKind
from dispatcher.errors import DamagedJournalError, FormatError
from dispatcher.run_state.events import Continued, Data, Event
from dispatcher.workspace import Layout

FORMAT = "dispatcher-journal"
VERSION = 1
_HEADER_LIMIT = 4096
PART = 256 * 1024
# A flipped bit may leave JSON whose text is no UTF-8.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
_D = TypeVar("_D", bound=Data)


class Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """The first line of a generation."""

    format: str
    version: int
    generation: int = 1
    base_seq: int = 0
    records: int = 0
    lock: str = LockKind.FLOCK
    at: str = ""
    # The generation that this one continues; 0 when there was none.
    after: int = 0
    # Tells this file from any other of the same number.
    id: str = ""


class Line(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One change. `set` has the changed fields of the job's record (null removes one), `data` everything else.

    `batch`, in the first of the lines that were written together, is their number: all of them count or none.
    """

    seq: int
    at: str
    by: str
    event: Event
    job: str | None = None
    set: dict[str, Any] = {}
    data: dict[str, Any] | None = None
    batch: int = 1

    def read(self, kind: type[_D]) -> _D:
        """`data` as the type that belongs to the event. Raises FormatError when it is something else."""
        try:
            return msgspec.convert(self.data or {}, kind)
        except msgspec.ValidationError as error:
            raise FormatError(f"line number {self.seq} of the journal, {self.event}: {error}") from None


_decode_line = msgspec.json.Decoder(Line)
# Bytes of a journal that are decoded at once.
_PORTION: Final = 1 << 18
_decode_header = msgspec.json.Decoder(Header)
encode = msgspec.json.Encoder().encode


def new_header(generation: int, *, base_seq: int, records: int, lock: str, seconds: float, after: int = 0) -> Header:
    """The first line of a new file; `seconds` is the time now."""
    return Header(
        format=FORMAT,
        version=VERSION,
        generation=generation,
        base_seq=base_seq,
        records=records,
        lock=lock,
        at=now_text(seconds),
        after=after,
        id=os.urandom(4).hex(),
    )


def now_text(seconds: float) -> str:
    """A time in seconds since 1970 as the journal writes it: UTC, milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def later(time: str, seconds: float) -> str:
    """The time so many seconds after another one, as the journal writes both."""
    return now_text(datetime.fromisoformat(time).timestamp() + seconds)


def normalized_time(text: str | None) -> str | None:
    """A time in any zone as the journal writes it, so that texts compare; None when it cannot be parsed."""
    seconds = parse_time(text)
    try:
        return None if seconds is None else now_text(seconds)
    except (ValueError, OverflowError):
        return None


def parse_header(line: bytes, path: Path) -> Header:
    """The header. Raises FormatError when the file is foreign or newer, DamagedJournalError when it is garbled."""
    try:
        header = _decode_header.decode(line)
    except _UNREADABLE as error:
        raise DamagedJournalError(
            f"{path}: line 1 is not a journal header ({error}); nothing was touched. Restore the file from a backup, "
            "or let `dispatcher doctor --repair` rebuild it from matrix_status.json"
        ) from None
    if header.format != FORMAT:
        raise FormatError(f"{path}: format {header.format!r}, expected {FORMAT!r}; nothing was touched")
    if header.version > VERSION:
        raise FormatError(
            f"{path}: version {header.version}; this dispatcher knows versions up to {VERSION}. "
            "Install the newer dispatcher here too; nothing was touched"
        )
    return header


def whole_lines(data: bytes) -> bytes:
    """`data` up to the last newline: what follows was never finished."""
    return data[: data.rfind(b"\n") + 1]


def parse_lines(data: bytes, path: Path, offset: int) -> list[Line]:
    """Complete lines that begin at `offset` of `path`. Raises DamagedJournalError, which names the line."""
    try:
        return _decode_line.decode_lines(data)
    except _UNREADABLE:
        pass
    # Only now find out which line it is.
    position = offset
    for raw in data.split(b"\n"):
        try:
            if raw:
                _decode_line.decode(raw)
        except _UNREADABLE as error:
            number = _line_number(path, position)
            raise DamagedJournalError(
                f"{path}: line {number} (byte {position}) cannot be read: {error}. Nothing was changed. "
                "Restore the file from a backup, or let `dispatcher doctor --repair` take what is before it "
                "and the newer records of matrix_status.json"
            ) from None
        position += len(raw) + 1
    raise DamagedJournalError(f"{path}: cannot be read from byte {offset}")


class Parts:
    """What is left of an open journal, some thousands of whole lines at a time; an unfinished line comes last."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._next = b""
        self._unfinished = b""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._next:
            data, self._next = self._next, b""
            return data
        while data := self._file.read(PART):
            data = self._unfinished + data
            end = data.rfind(b"\n") + 1
            self._unfinished = data[end:]
            if end:
                return data[:end]
        data, self._unfinished = self._unfinished, b""
        if not data:
            raise StopIteration
        return data

    def put_back(self, data: bytes) -> None:
        """The rest of what was read last comes next."""
        self._next = data


def first_lines(data: bytes, count: int) -> tuple[bytes, int]:
    """Up to `count` lines from the beginning of `data`, which ends with a line, and how many they are."""
    found = data.count(b"\n")
    if found <= count:
        return data, found
    end = 0
    for _ in range(count):
        end = data.index(b"\n", end) + 1
    return data[:end], count


def parse_consecutive(data: bytes, seq: int) -> tuple[list[Line], int]:
    """The lines that follow `seq` one by one, and their length in bytes; stops at the first that does not.

    For what is beyond the head: its writer died before it could say how much of it counts. An incomplete batch does not
    count.
    """
    whole = whole_lines(data)
    lines: list[Line] = []
    with contextlib.suppress(*_UNREADABLE):
        lines = _decode_line.decode_lines(whole)
        if all(line.seq == number for number, line in enumerate(lines, seq + 1)) and _whole_batches(lines) == len(
            lines
        ):
            return lines, len(whole)
    lines, lengths = [], []
    for raw in whole.split(b"\n"):
        try:
            line = _decode_line.decode(raw)
        except _UNREADABLE:
            break
        if line.seq != seq + len(lines) + 1:
            break
        lines.append(line)
        lengths.append(len(raw) + 1)
    count = _whole_batches(lines)
    return lines[:count], sum(lengths[:count])


def _whole_batches(lines: list[Line]) -> int:
    """How many of the lines belong to complete batches."""
    start = 0
    while start < len(lines) and start + lines[start].batch <= len(lines):
        start += max(1, lines[start].batch)
    return start


def readable_lines(data: bytes) -> list[Line]:
    """The lines of `data` that can be read, among others that cannot."""
    lines = []
    for raw in whole_lines(data).split(b"\n"):
        with contextlib.suppress(*_UNREADABLE):
            lines.append(_decode_line.decode(raw))
    return lines


def generations(layout: Layout) -> list[int]:
    """The numbers of all generations, compressed ones too, in ascending order."""
    try:
        files.refresh_names(layout.journal_dir)
        names = os.listdir(layout.journal_dir)
    except FileNotFoundError:
        return []
    numbers = {int(n.split(".")[0]) for n in names if n.endswith((".jsonl", ".jsonl.gz")) and n.split(".")[0].isdigit()}
    return sorted(numbers)


def compressed(path: Path) -> Path:
    """The path of a generation after it was compressed."""
    return path.with_name(path.name + ".gz")


def read_generation(layout: Layout, generation: int) -> bytes:
    """The whole content of a generation, compressed or not."""
    with opened(layout, generation) as file:
        return file.read()


def opened(layout: Layout, generation: int) -> BinaryIO:
    """A generation open for reading. Another process may compress it, and remove the original, at the same time."""
    path = layout.journal(generation)
    with contextlib.suppress(FileNotFoundError):
        if mount_of(path.parent).shows_old_content:
            return _uncached(path)
        return open(path, "rb")
    with contextlib.suppress(FileNotFoundError):
        return cast(BinaryIO, gzip.open(compressed(path)))
    return os.fdopen(files.open_existing(path), "rb")


def _uncached(path: Path) -> BinaryIO:
    fd = files.open_uncached(path)
    try:
        return io.BytesIO(files.read_fd(fd))
    finally:
        os.close(fd)


def read_header(layout: Layout, generation: int) -> Header | None:
    """The header of a generation; None when it is incomplete. Raises FormatError when the file is foreign."""
    with opened(layout, generation) as file:
        line, newline, _ = file.readline(_HEADER_LIMIT).partition(b"\n")
    return parse_header(line, layout.journal(generation)) if newline else None


def successor(layout: Layout, generation: int) -> int | None:
    """The generation that continues this one; None when its last line names none."""
    with opened(layout, generation) as file:
        if not isinstance(file, gzip.GzipFile):
            file.seek(max(0, file.seek(0, os.SEEK_END) - _HEADER_LIMIT))
        data = file.read()
    last = data.rstrip(b"\n").rpartition(b"\n")[2]
    if not data.endswith(b"\n") or b'"event":"continued"' not in last:
        return None
    with contextlib.suppress(*_UNREADABLE, FormatError):
        return continued_by(_decode_line.decode(last))
    return None


def continued_by(line: Line) -> int:
    """The generation that a `continued` line names."""
    return line.read(Continued).generation


def generations_in_force(layout: Layout) -> list[int]:
    """The generations that are or were the journal, oldest first, without those that were never put in force."""
    numbers = generations(layout)
    return [number for number in numbers if _came_into_force(layout, number, numbers)]


def newest_generation(layout: Layout) -> int | None:
    """The generation in force according to the files alone, without the head; None without a journal."""
    numbers = generations(layout)
    for number in reversed(numbers):
        if _came_into_force(layout, number, numbers):
            return number
    if numbers:
        raise DamagedJournalError(
            f"{layout.journal(numbers[-1])}: the first line is incomplete; nothing was changed. "
            "Restore the file from a backup, or let `dispatcher doctor --repair` rebuild it from matrix_status.json"
        )
    return None


def _came_into_force(layout: Layout, number: int, numbers: list[int]) -> bool:
    try:
        header = read_header(layout, number)
    except FileNotFoundError:
        # Since the folder was listed, another process has removed a generation that it never put in force.
        return False
    if header is None:
        return False
    # Old generations may have been removed to save space: then the next one was in force.
    return header.after not in numbers or successor(layout, header.after) == number


def history(layout: Layout, jobs: str | Collection[str] | None = None) -> Iterator[Line]:
    """Every change of every generation in order, of all jobs or of `jobs`, without the snapshots of later generations.

    The snapshot of the oldest generation that is left is included: no older line says how its records came about.
    """
    wanted = {jobs} if isinstance(jobs, str) else jobs
    needle = encode(next(iter(wanted))) if wanted is not None and len(wanted) == 1 else b""
    done = -1
    for number, generation in enumerate(generations_in_force(layout)):
        data = whole_lines(read_generation(layout, generation))
        start = data.find(b"\n") + 1
        if number:
            done = max(done, parse_header(data[:start], layout.journal(generation)).base_seq)
        last = done
        for line in _decoded(data, start) if not needle else _decoded_with(data, needle, start):
            if line.seq <= done or line.event is Event.CONTINUED:
                continue
            last = line.seq
            if wanted is None or line.job in wanted:
                yield line
        done = max(done, last)


def _decoded(data: bytes, start: int) -> Iterator[Line]:
    """The lines from `start` on that can be read: many at once, and one by one where one of them cannot be."""
    while start < len(data):
        end = data.find(b"\n", start + _PORTION) + 1 or len(data)
        portion = data[start:end]
        start = end
        try:
            yield from _decode_line.decode_lines(portion)
        except _UNREADABLE:
            yield from _decoded_with(portion, b"", 0)


def _decoded_with(data: bytes, needle: bytes, start: int) -> Iterator[Line]:
    for raw in _lines_with(data, needle, start):
        with contextlib.suppress(*_UNREADABLE):
            yield _decode_line.decode(raw)


def _lines_with(data: bytes, needle: bytes, start: int) -> Iterator[bytes]:
    """The lines from `start` on that contain `needle` (empty: all). A long journal is never split as a whole."""
    while start < len(data) and (found := data.find(needle, start)) >= 0:
        begin = data.rfind(b"\n", 0, found) + 1
        end = data.find(b"\n", found)
        start = end + 1 if end >= 0 else len(data)
        yield data[begin : start - 1 if end >= 0 else start]


def _line_number(path: Path, position: int) -> int:
    with open(path, "rb") as file:
        return file.read(position).count(b"\n") + 1
