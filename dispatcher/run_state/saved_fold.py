"""The fold of a long journal, kept in a file, so that not every start folds all lines again.

`journal/fold.saved` is derived from the journal and may be removed at any time. It counts only if it was written by the
same version, and if the journal's bytes up to `length` still have the checksum with which it was saved: a process
that changes anything reads them all. One that only shows records (`status`) reads the last block before `length` and
what follows: the head's checksum must follow from the saved one. Otherwise the journal is folded from its first line.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import msgspec

from dispatcher.base import parts
from dispatcher.run_state.checksum import RunningChecksum
from dispatcher.run_state.events import AppliedEdit, Event
from dispatcher.run_state.facets.table import NAMES
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout

# To be raised with every change of what a fold holds or of how lines are folded.
_VERSION: Final = 8
_FORM: Final = repr((_VERSION, Record.__annotations__, tuple(State), tuple(Event)))
_TOGETHER: Final = 5_000


class SavedFold(msgspec.Struct, kw_only=True):
    """A fold of the first `length` bytes of the generation that begins with the line `header`, without its records.

    `checksum` and `marks` are those of a RunningChecksum of these bytes.
    """

    form: str = ""
    header: bytes
    length: int
    checksum: int
    marks: list[int]
    seq: int
    lock_kind: str | None
    records: int
    facets: dict[str, Any]
    applied_edits: dict[str, AppliedEdit]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SavedFold).decode
_decode_part = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def begin(layout: Layout, header: bytes, checksum: RunningChecksum, fold: Fold) -> Callable[[], None]:
    """To save what `fold` holds now of a journal of this length and checksum: what is returned replaces the file.

    It may run in a thread, whatever becomes of the fold meanwhile.
    """
    saved = SavedFold(
        form=_FORM,
        header=header,
        length=checksum.length,
        checksum=checksum.value,
        marks=checksum.marks,
        seq=fold.seq,
        lock_kind=fold.lock_kind,
        records=len(fold.records),
        facets={name: fold.facet(name).dump() for name in NAMES},
        applied_edits=fold.applied_edits,
    )
    try:
        first = _encode(saved)
    except OverflowError:
        # A number of more than 64 bits has no packed form.
        return lambda: None
    return parts.begin(layout.saved_fold, layout.root, _parts(first, fold.records.copy()))


def _parts(first: bytes, records: Records) -> Iterator[bytes]:
    yield first
    packed = records.packed()
    while part := dict(itertools.islice(packed, _TOGETHER)):
        yield _encode(part)


@contextlib.contextmanager
def opened(layout: Layout, header: bytes) -> Iterator[tuple[SavedFold, BinaryIO] | None]:
    """What was saved of the generation with this first line, and the open file with its records; None without any."""
    with contextlib.ExitStack() as stack:
        found = None
        with contextlib.suppress(*parts.UNUSABLE):
            file = stack.enter_context(open(layout.saved_fold, "rb"))
            saved = _decode(parts.read(file))
            if saved.form == _FORM and saved.header == header:
                found = saved, file
        yield found


def read(saved: SavedFold, file: BinaryIO) -> Fold | None:
    """The fold with its records; None when the file is damaged."""
    packed: dict[str, Any] = {}
    try:
        while len(packed) < saved.records:
            packed.update(_decode_part(parts.read(file)))
        fold = Fold()
        for name in NAMES:
            facet = type(fold.facet(name))
            setattr(fold, name, facet.load(msgspec.convert(saved.facets[name], facet.form)))
    except parts.UNUSABLE:
        return None
    fold.seq, fold.lock_kind = saved.seq, saved.lock_kind
    fold.records = Records(packed)
    fold.applied_edits = saved.applied_edits
    fold.all_touched = True
    return fold
