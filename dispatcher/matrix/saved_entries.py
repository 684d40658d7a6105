"""The entries of a large manifest, kept in a file, so that not every command reads all of them again.

The file is derived from the manifest and may be removed at any time. It counts only if it was written by the same
version, for the same text and the same owner of the file: it has the digest of that, and the identity of the
manifest's file, so that who finds that very file unchanged need not read it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from dispatcher.base import parts
from dispatcher.base.file_identity import SERVER_TICK_S, ExactIdentity, exact_identity_of
from dispatcher.matrix.entries import Block, Entries
from dispatcher.matrix.entry import Entry

# To be raised with every change of what entries are read as, or of what is a fault of a manifest.
_VERSION: Final = 3
_FORM: Final = repr((_VERSION, Entry.__annotations__))
# Smaller manifests are read in less time than it takes to be sure that this file is theirs.
_LARGE_BYTES: Final = 4_000_000
_TOGETHER: Final = 500


class _Head(msgspec.Struct):
    form: str
    digest: bytes
    identity: ExactIdentity
    entries: int
    # The number of the manifest's owner, who owns the jobs of which it says nothing.
    uid: int


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_part = msgspec.msgpack.Decoder(tuple[list[str], list[Block]]).decode


def save(path: Path, root: Path, data: bytes, found: os.stat_result, entries: Entries) -> None:
    """Save the entries of the manifest `data`, which has no faults, in the workspace `root`, if that is worthwhile.

    `found` is its file as it was before it was read.
    """
    if len(data) < _LARGE_BYTES:
        return
    head = _Head(_FORM, _digest(data), exact_identity_of(found), len(entries), found.st_uid)
    with contextlib.suppress(*parts.UNUSABLE), open(path, "rb") as file:
        if _decode_head(parts.read(file)) == head:
            return
    parts.write(path, root, itertools.chain([_encode(head)], packed_parts(entries)))


def read(path: Path, manifest: BinaryIO, known_ids: Collection[str] = ()) -> Entries | None:
    """The entries of an open manifest, if they were saved: of this file as it is, or of the same text.

    `known_ids`: ids that are kept in memory anyway.
    """
    found = os.fstat(manifest.fileno())
    if found.st_size < _LARGE_BYTES:
        return None
    with contextlib.suppress(*parts.UNUSABLE), open(path, "rb") as file:
        head = _decode_head(parts.read(file))
        is_usable = head.form == _FORM and head.uid == found.st_uid
        if is_usable and (_is_unchanged(head, found, file) or head.digest == _digest(manifest.read())):
            return Entries.of(*read_packed(file, head.entries), known_ids)
    return None


def packed_parts(entries: Entries) -> Iterator[bytes]:
    """The parts of a file that hold these entries."""
    jobs, blocks = iter(entries), entries.packed()
    while some := list(itertools.islice(blocks, _TOGETHER)):
        yield _encode((list(itertools.islice(jobs, sum(count for count, *_ in some))), some))


def read_packed(file: BinaryIO, count: int) -> tuple[list[str], list[Block]]:
    """The ids and blocks of so many entries, from `packed_parts`; raises what `parts.UNUSABLE` lists."""
    jobs: list[str] = []
    blocks: list[Block] = []
    while len(jobs) < count:
        more, content = _decode_part(parts.read(file))
        jobs += more
        blocks += content
    return jobs, blocks


def _is_unchanged(head: _Head, found: os.stat_result, file: BinaryIO) -> bool:
    """Whether the manifest is the file that was read before this one was written, and has not been changed since."""
    saved = os.fstat(file.fileno())
    is_certain = saved.st_dev == found.st_dev and saved.st_mtime > found.st_ctime + SERVER_TICK_S
    return is_certain and head.identity == exact_identity_of(found)


def _digest(data: bytes) -> bytes:
    # Imported here: only large manifests need it.
    import hashlib

    return hashlib.blake2b(data, digest_size=16).digest()
