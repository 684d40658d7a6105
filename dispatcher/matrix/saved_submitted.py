"""The entries of the first lines of a long `matrix/submitted.jsonl`, kept in a file as those of a large manifest are.

It counts only if it was written by the same version, and if the bytes of those lines have the same checksum. So who
reads submitted jobs decodes what was appended since then. The file may be removed at any time.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import parts
from dispatcher.matrix.entries import Entries
from dispatcher.matrix.entry import form
from dispatcher.matrix.saved_entries import packed_parts, read_packed

# Kinds of submitted jobs have other numbers than those of manifests, to which they are joined.
FIRST_KIND: Final = 1 << 20
# Fewer are read in less time than the file saves.
LEAST_BYTES: Final = 200_000
# To be raised with every change of what lines are read as.
_VERSION: Final = 1


class _Head(msgspec.Struct, frozen=True):
    form: str
    length: int
    checksum: int
    lines: int
    entries: int


class Saved(msgspec.Struct, frozen=True):
    """`lines` lines of `length` bytes have this checksum, and these entries."""

    length: int
    checksum: int
    lines: int
    entries: Entries


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode


def save(path: Path, root: Path, saved: Saved) -> None:
    """Write the file for the workspace `root`. Where that fails there is none, or the old one."""
    head = _Head(f"{_VERSION} {form()}", saved.length, saved.checksum, saved.lines, len(saved.entries))
    parts.write(path, root, itertools.chain([_encode(head)], packed_parts(saved.entries)))


def read(path: Path, data: bytes) -> Saved | None:
    """What was saved of the lines with which `data` begins; None where nothing was, or they are other lines now."""
    with contextlib.suppress(*parts.UNUSABLE), open(path, "rb") as file:
        head = _decode_head(parts.read(file))
        is_usable = head.form == f"{_VERSION} {form()}" and head.length <= len(data)
        if is_usable and zlib.crc32(memoryview(data)[: head.length]) == head.checksum:
            entries = Entries.of(*read_packed(file, head.entries), first_kind=FIRST_KIND)
            return Saved(head.length, head.checksum, head.lines, entries)
    return None
