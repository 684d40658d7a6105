"""The entries of the first lines of a long `matrix/submitted.jsonl`, kept in a file as those of a large manifest are.

It counts only if it was written by the same version, and if the bytes of those lines have the same checksum. So who
reads submitted jobs decodes what was appended since then. The file may be removed at any time.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import parts
from dispatcher.matrix.entries import Block, Entries
from dispatcher.matrix.entry import Entry

# Kinds of submitted jobs have other numbers than those of manifests, to which they are joined.
FIRST_KIND: Final = 1 << 20
# Fewer are read in less time than the file saves.
LEAST_BYTES: Final = 200_000
# To be raised with every change of what lines are read as.
_VERSION: Final = 1
_FORM: Final = repr((_VERSION, Entry.__annotations__))
_TOGETHER: Final = 500


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
_decode_part = msgspec.msgpack.Decoder(tuple[list[str], list[Block]]).decode


def save(path: Path, root: Path, saved: Saved) -> None:
    """Write the file for the workspace `root`. Where that fails there is none, or the old one."""
    head = _Head(_FORM, saved.length, saved.checksum, saved.lines, len(saved.entries))
    parts.write(path, root, _parts(head, saved.entries))


def read(path: Path, data: bytes) -> Saved | None:
    """What was saved of the lines with which `data` begins; None where nothing was, or they are other lines now."""
    with contextlib.suppress(*parts.UNUSABLE), open(path, "rb") as file:
        head = _decode_head(parts.read(file))
        is_usable = head.form == _FORM and head.length <= len(data)
        if is_usable and zlib.crc32(memoryview(data)[: head.length]) == head.checksum:
            jobs: list[str] = []
            blocks: list[Block] = []
            while len(jobs) < head.entries:
                more, content = _decode_part(parts.read(file))
                jobs += more
                blocks += content
            entries = Entries.of(jobs, blocks, first_kind=FIRST_KIND)
            return Saved(head.length, head.checksum, head.lines, entries)
    return None


def _parts(head: _Head, entries: Entries) -> Iterator[bytes]:
    yield _encode(head)
    jobs, blocks = iter(entries), entries.packed()
    while some := list(itertools.islice(blocks, _TOGETHER)):
        yield _encode((list(itertools.islice(jobs, sum(count for count, *_ in some))), some))
