"""Records in little memory: packed, and unpacked when they are asked for.

A record as an object takes 650 bytes, packed about 150. Nothing keeps the object: two look-ups of a job give records
that are equal, not identical.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from dispatcher.run_state.states import Record, State

_STATES: Final = tuple(State)
_CODES: Final = {state: code for code, state in enumerate(_STATES)}
# The number of the state, the `seq` at which the job got its record, that of the last change (which is a field of the
# record, too), and the other fields of the record in their order.
_TYPES: Any = (int, int, int, *(field.type for field in msgspec.structs.fields(Record)[1:]))
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[_TYPES]).decode
# Of an array with 16 or more members, the first follows three bytes.
_CODE: Final = 3


class _Beginning(msgspec.Struct, array_like=True, gc=False):
    code: int
    born: int
    rev: int


_decode_beginning = msgspec.msgpack.Decoder(_Beginning).decode

# A number of more than 64 bits has no packed form: such a record stays as it is.
Packed: TypeAlias = "bytes | tuple[Any, ...]"


def pack(record: Record, born: int) -> Packed:
    values = msgspec.structs.astuple(record)
    values = (_CODES[record.state], born, record.rev, *values[1:])
    try:
        return _encode(values)
    except OverflowError:
        return values


def unpack(packed: Packed) -> Record:
    code, _, _, *values = _decode(packed) if isinstance(packed, bytes) else packed
    return Record(_STATES[code], *values)


class Records(Mapping[str, Record]):
    """Records by job, in the order in which they were added. Equal to any mapping of equal records."""

    def __init__(self, packed: dict[str, Packed] | None = None) -> None:
        self._packed: dict[str, Packed] = {} if packed is None else packed

    @classmethod
    def of(cls, records: Mapping[str, Record]) -> Records:
        return cls({job: pack(record, 0) for job, record in records.items()})

    def put(self, job: str, record: Record, born: int) -> Packed:
        """Add or replace a record; `born` is the `seq` at which the job got its first one."""
        packed = self._packed[job] = pack(record, born)
        return packed

    def remove(self, job: str) -> None:
        self._packed.pop(job, None)

    def born(self, job: str) -> int | None:
        """The `seq` at which the job got its record; None for a job without one."""
        packed = self._packed.get(job)
        if packed is None:
            return None
        born: int = _decode_beginning(packed).born if isinstance(packed, bytes) else packed[1]
        return born

    def rev(self, job: str) -> int:
        """The `rev` of a record, without unpacking all of it."""
        packed = self._packed[job]
        rev: int = _decode_beginning(packed).rev if isinstance(packed, bytes) else packed[2]
        return rev

    def states(self) -> Iterator[tuple[str, State]]:
        """Every job with its state, without unpacking the records."""
        for job, packed in self._packed.items():
            yield job, _state(packed)

    def with_text(self, jobs: Iterable[str], text: str) -> Iterator[tuple[str, Record]]:
        """The records among those of these jobs that have a text in some field: of many, only those are unpacked."""
        encoded, packed = text.encode(), self._packed
        for job in jobs:
            found = packed[job]
            if not isinstance(found, bytes) or encoded in found:
                yield job, unpack(found)

    def packed(self) -> Iterator[tuple[str, Packed]]:
        """Every job with its record as it is kept; `Records` can be made of them again."""
        return iter(self._packed.items())

    def copy(self) -> Records:
        return Records(dict(self._packed))

    def ordered(self, jobs: Iterable[str], missing: Record) -> Records:
        """These jobs with their records, in this order; `missing` is the record of those that have none."""
        default, packed = pack(missing, 0), self._packed
        return Records({job: packed.get(job, default) for job in jobs})

    def __getitem__(self, job: str) -> Record:
        return unpack(self._packed[job])

    def __contains__(self, job: object) -> bool:
        return job in self._packed

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


def _state(packed: Packed) -> State:
    return _STATES[packed[_CODE] if isinstance(packed, bytes) else packed[0]]


class Draft(msgspec.Struct, array_like=True):
    """The fields of a record that is being built, not checked yet, and the `seq` at which its job got it."""

    born: int
    fields: dict[str, Any]


# How many drafts are kept unpacked: those that were changed last.
_OPEN: Final = 10_000
_decode_draft = msgspec.msgpack.Decoder(Draft).decode


class Drafts:
    """Drafts by job. A whole journal is folded with them: to build a record anew for each line takes twice as long."""

    def __init__(self) -> None:
        self._open: dict[str, Draft] = {}
        self._packed: dict[str, bytes | Draft] = {}

    def get(self, job: str) -> Draft | None:
        draft = self._open.get(job)
        if draft is None and (packed := self._packed.get(job)) is not None:
            draft = _opened(packed)
            self.put(job, draft)
        return draft

    def put(self, job: str, draft: Draft) -> None:
        if len(self._open) >= _OPEN:
            self._pack()
        self._open[job] = draft

    def remove(self, job: str) -> None:
        self._open.pop(job, None)
        self._packed.pop(job, None)

    def drain(self) -> Iterator[tuple[str, Draft]]:
        """All drafts in the order in which their jobs came first; they are gone then."""
        self._pack()
        packed, self._packed = self._packed, {}
        for job in packed:
            draft, packed[job] = packed[job], b""
            yield job, _opened(draft)

    def _pack(self) -> None:
        for job, draft in self._open.items():
            self._packed[job] = _closed(draft)
        self._open.clear()


def _closed(draft: Draft) -> bytes | Draft:
    try:
        return _encode(draft)
    except OverflowError:
        # A number of more than 64 bits has no packed form.
        return draft


def _opened(draft: bytes | Draft) -> Draft:
    return _decode_draft(draft) if isinstance(draft, bytes) else draft
