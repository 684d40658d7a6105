"""The head: what each holder of the claims lock writes into the locked file for the next holder and all readers."""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files

HEAD_SIZE: Final = 512
_PEEKS: Final = 5
_PAUSE_S: Final = 0.0002


class Head(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How far the journal goes, and which status file is its projection.

    `projection` is inode, size and mtime (ns) of the status file as a dispatcher last wrote or examined it; `projected`
    is the `seq` that it shows. `checksum` is the CRC-32 of the first `length` bytes of the journal. `by` names the
    dispatcher or command that wrote this head.
    """

    generation: int
    length: int
    seq: int
    projection: tuple[int, int, int] | None = None
    projected: int = 0
    checksum: int = 0
    by: str = ""


_decode_head = msgspec.json.Decoder(Head)


def encode_head(head: Head) -> bytes:
    body = msgspec.json.encode(head)
    if len(body) > HEAD_SIZE - 16:
        body = msgspec.json.encode(msgspec.structs.replace(head, by=head.by[:20]))
    # A reader without the lock may see a head that is half written: the checksum tells.
    line = b"%08x %s" % (zlib.crc32(body), body)
    return line.ljust(HEAD_SIZE - 1) + b"\n"


def decode_head(data: bytes) -> Head | None:
    """The head; None when there is none or it is damaged: then only the journal itself shows how long it is."""
    checksum, _, rest = data[:HEAD_SIZE].partition(b" ")
    body = rest.rstrip(b" \n")
    if not body or checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        return _decode_head.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def peek_head(path: Path) -> Head | None:
    """The head, read without the lock: maybe an old one or None, never a wrong one."""
    for _ in range(_PEEKS):
        data = files.read_fresh(path)
        head = decode_head(data) if data else None
        if head is not None or not data:
            return head
        # It is being written.
        time.sleep(_PAUSE_S)
    return None
