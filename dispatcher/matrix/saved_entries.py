"""The entries of a large manifest, kept in a file, so that not every command reads all of them again.

The file is derived from the manifest and may be removed at any time. It counts only if it was written by the same
version and for the same text: it has the digest of that.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from dispatcher.base import parts
from dispatcher.matrix.entries import Entries
from dispatcher.matrix.entry import Entry

# To be raised with every change of what entries are read as, or of what is a fault of a manifest.
_VERSION: Final = 1
_FORM: Final = repr((_VERSION, Entry.__annotations__))
# Smaller manifests are read in less time than it takes to be sure that this file is theirs.
_LARGE_BYTES: Final = 4_000_000
_TOGETHER: Final = 500

_Block = tuple[list[str], bytes]


class _Head(msgspec.Struct):
    form: str
    digest: bytes
    entries: int


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_blocks = msgspec.msgpack.Decoder(list[_Block]).decode


def save(path: Path, root: Path, data: bytes, entries: Entries) -> None:
    """Save the entries of the manifest `data`, which has no faults, in the workspace `root`, if that is worthwhile."""
    if len(data) < _LARGE_BYTES:
        return
    head = _Head(_FORM, _digest(data), len(entries))
    with contextlib.suppress(*parts.UNUSABLE), open(path, "rb") as file:
        if _decode_head(parts.read(file)) == head:
            return
    parts.write(path, root, _parts(head, entries))


def read(path: Path, data: bytes) -> Entries | None:
    """The entries of the manifest `data`, if they were saved."""
    if len(data) < _LARGE_BYTES:
        return None
    with contextlib.suppress(*parts.UNUSABLE), open(path, "rb") as file:
        head = _decode_head(parts.read(file))
        if head.form == _FORM and head.digest == _digest(data):
            entries = Entries.of(_blocks(head, file))
            return entries if len(entries) == head.entries else None
    return None


def _parts(head: _Head, entries: Entries) -> Iterator[bytes]:
    yield _encode(head)
    blocks = entries.packed()
    while some := list(itertools.islice(blocks, _TOGETHER)):
        yield _encode(some)


def _blocks(head: _Head, file: BinaryIO) -> Iterator[_Block]:
    left = head.entries
    while left > 0:
        for block in _decode_blocks(parts.read(file)):
            left -= len(block[0])
            yield block


def _digest(data: bytes) -> bytes:
    # Imported here: only large manifests need it.
    import hashlib

    return hashlib.blake2b(data, digest_size=16).digest()
