"""The fold of a long journal, kept in a file, so that not every start folds all lines again.

`journal/fold.saved` is derived from the journal and may be removed at any time. It counts only if it was written by the
same version, and if the journal's bytes up to `length` still have the checksum with which it was saved: whoever uses it
reads them all. Otherwise the journal is folded from its first line.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgspec

from dispatcher.base import files
from dispatcher.run_state.checksum import RunningChecksum
from dispatcher.run_state.events import AppliedEdit, Event, Streak
from dispatcher.run_state.fold import Fold, Pause, Refusal
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout

# To be raised with every change of what a fold holds or of how lines are folded.
_VERSION: Final = 1
_FORM: Final = repr((_VERSION, Record.__struct_fields__, tuple(State), tuple(Event)))
_TOGETHER: Final = 5_000
# Before each part: its length and its CRC-32.
_PREFIX: Final = struct.Struct("<II")


class SavedFold(msgspec.Struct, kw_only=True):
    """A fold of the first `length` bytes of the generation that begins with the line `header`, without its records."""

    form: str = ""
    header: bytes
    length: int
    checksum: int
    seq: int
    lock_kind: str | None
    records: int
    pauses: dict[str, Pause]
    refusals: dict[str, Refusal]
    streaks: dict[str, Streak]
    applied_edits: dict[str, AppliedEdit]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SavedFold).decode
_decode_part = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_UNUSABLE: Final = (OSError, msgspec.DecodeError, struct.error, UnicodeDecodeError)


def save(layout: Layout, header: bytes, checksum: RunningChecksum, fold: Fold) -> None:
    """Save what `fold` holds of a journal of this length and checksum; the file before it is replaced."""
    saved = SavedFold(
        form=_FORM,
        header=header,
        length=checksum.length,
        checksum=checksum.value,
        seq=fold.seq,
        lock_kind=fold.lock_kind,
        records=len(fold.records),
        pauses=fold.pauses,
        refusals=fold.refusals,
        streaks=fold.streaks,
        applied_edits=fold.applied_edits,
    )
    path = layout.saved_fold
    temporary = files.temporary_name(path)
    try:
        files.remove_leftovers(path.parent)
        with files.shared_umask(layout.root), open(temporary, "xb") as file:
            for part in _parts(saved, fold.records):
                file.write(_PREFIX.pack(len(part), zlib.crc32(part)) + part)
        os.rename(temporary, path)
    except (OverflowError, OSError):
        # A number of more than 64 bits has no such form, and a disk may be full: nothing needs this file.
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _parts(saved: SavedFold, records: Records) -> Iterator[bytes]:
    yield _encode(saved)
    packed = records.packed()
    while part := dict(itertools.islice(packed, _TOGETHER)):
        yield _encode(part)


@contextlib.contextmanager
def opened(layout: Layout, header: bytes) -> Iterator[tuple[SavedFold, BinaryIO] | None]:
    """What was saved of the generation with this first line, and the open file with its records; None without any."""
    with contextlib.ExitStack() as stack:
        found = None
        with contextlib.suppress(*_UNUSABLE):
            file = stack.enter_context(open(layout.saved_fold, "rb"))
            saved = _decode(_read_part(file))
            if saved.form == _FORM and saved.header == header:
                found = saved, file
        yield found


def read(saved: SavedFold, file: BinaryIO) -> Fold | None:
    """The fold with its records; None when the file is damaged."""
    packed: dict[str, Any] = {}
    try:
        while len(packed) < saved.records:
            packed.update(_decode_part(_read_part(file)))
    except _UNUSABLE:
        return None
    fold = Fold()
    fold.seq, fold.lock_kind = saved.seq, saved.lock_kind
    fold.records = Records(packed)
    fold.pauses, fold.refusals, fold.streaks = saved.pauses, saved.refusals, saved.streaks
    fold.applied_edits = saved.applied_edits
    fold.touched.update(packed)
    return fold


def _read_part(file: BinaryIO) -> bytes:
    length, checksum = _PREFIX.unpack(file.read(_PREFIX.size))
    part = file.read(length)
    if len(part) != length or zlib.crc32(part) != checksum:
        raise msgspec.DecodeError("a part is damaged")
    return part
