"""The journal: lines, files and what a line means. A file is only ever appended to, under the claims lock.

    {"format": "dispatcher-journal", "version": 1, "generation": 1, "base_seq": 0, "records": 0, "lock": "flock", ...}
    {"seq": 1, "at": "2026-06-17T22:48:00.123Z", "by": "pod-0", "job": "a", "event": "queued", "set": {"state": "queued"}}

The first line is the header. A later generation begins with `records` lines that say how things stood (a `snapshot` for
every record, then what is paused or refused), all with `seq` equal to `base_seq`, and then goes on with the lines after `base_seq`; the generation before it ends with
a line whose event is `continued`. So the newest generation that has all its snapshot lines and whose predecessor ends
that way is the journal, whatever the head says.
"""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from dispatcher.errors import DamagedJournalError, FormatError
from dispatcher.run_state import files
from dispatcher.workspace import Layout

FORMAT = "dispatcher-journal"
VERSION = 1


class Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """The first line of a generation."""

    format: str
    version: int
    generation: int = 1
    base_seq: int = 0
    records: int = 0
    lock: str = "flock"
    at: str = ""


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One change. `set` holds the changed fields of the job's record (null removes one); `data` what is no record."""

    seq: int
    at: str
    by: str
    event: str
    job: str | None = None
    set: dict[str, Any] = {}
    data: dict[str, Any] | None = None


_decode_line = msgspec.json.Decoder(Line)
_decode_header = msgspec.json.Decoder(Header)
encode = msgspec.json.Encoder().encode


def now_text(seconds: float) -> str:
    """A time as the journal writes it: UTC, milliseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_header(line: bytes, path: Path) -> Header:
    """The header; FormatError when the file is not ours or of a newer version."""
    try:
        header = _decode_header.decode(line)
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: line 1 is not a journal header ({error}); nothing was touched") from None
    if header.format != FORMAT:
        raise FormatError(f"{path}: format {header.format!r}, expected {FORMAT!r}; nothing was touched")
    if header.version > VERSION:
        raise FormatError(
            f"{path}: version {header.version}; this dispatcher knows versions up to {VERSION}. "
            "Install the newer dispatcher here too; nothing was touched"
        )
    return header


def complete_part(data: bytes) -> bytes:
    """The whole lines of `data`: what comes after the last newline was never finished."""
    return data[: data.rfind(b"\n") + 1]


def parse_lines(data: bytes, path: Path, offset: int) -> list[Line]:
    """Whole lines that begin at `offset` of `path`."""
    try:
        return _decode_line.decode_lines(data)
    except msgspec.DecodeError:
        pass
    # Only now find out which line it is.
    position = offset
    for raw in data.split(b"\n"):
        try:
            if raw:
                _decode_line.decode(raw)
        except msgspec.DecodeError as error:
            number = _line_number(path, position)
            raise DamagedJournalError(
                f"{path}: line {number} (byte {position}) cannot be read: {error}. Nothing was changed. "
                "Restore the file from a backup, or let `dispatcher doctor --repair` take what is before it "
                "and the newer records of matrix_status.json"
            ) from None
        position += len(raw) + 1
    raise DamagedJournalError(f"{path}: cannot be read from byte {offset}")


def parse_consecutive(data: bytes, seq: int) -> tuple[list[Line], int]:
    """Lines that follow `seq` one by one, and their length in bytes; stops at the first that does not.

    For what stands beyond the head: its writer died before it could say how much of it counts.
    """
    lines, length = [], 0
    for raw in complete_part(data).splitlines(keepends=True):
        try:
            line = _decode_line.decode(raw)
        except msgspec.DecodeError:
            break
        if line.seq != seq + len(lines) + 1:
            break
        lines.append(line)
        length += len(raw)
    return lines, length


def generations(layout: Layout) -> list[int]:
    """The numbers of all generations, oldest first, compressed ones too."""
    try:
        files.look_at(layout.journal_dir)
        names = os.listdir(layout.journal_dir)
    except FileNotFoundError:
        return []
    numbers = {int(n.split(".")[0]) for n in names if n.endswith((".jsonl", ".jsonl.gz")) and n.split(".")[0].isdigit()}
    return sorted(numbers)


def read_generation(layout: Layout, generation: int) -> bytes:
    """A generation's whole content, also when it has been compressed."""
    path = layout.journal(generation)
    try:
        fd = files.open_existing(path)
    except FileNotFoundError:
        with gzip.open(f"{path}.gz") as packed:
            return packed.read()
    try:
        return files.read_fd(fd)
    finally:
        os.close(fd)


def history(layout: Layout, job_id: str | None = None) -> Iterator[Line]:
    """Every line of every generation in order (of one job when named), without the repeated snapshots."""
    numbers = generations(layout)
    for generation in numbers:
        data = complete_part(read_generation(layout, generation))
        start = data.find(b"\n") + 1
        if start == 0:
            continue
        parse_header(data[:start], layout.journal(generation))
        first = generation == numbers[0]
        needle = b"" if job_id is None else encode(job_id)
        for raw in data[start:].splitlines():
            if needle not in raw:
                continue
            with contextlib.suppress(msgspec.DecodeError):
                line = _decode_line.decode(raw)
                if line.event == "continued" or (line.event == "snapshot" and not first):
                    continue
                if job_id is None or line.job == job_id:
                    yield line


def _line_number(path: Path, position: int) -> int:
    with open(path, "rb") as file:
        return file.read(position).count(b"\n") + 1
