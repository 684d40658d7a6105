"""Records in little memory: packed, and unpacked when they are asked for.

A record as an object takes 650 bytes, packed about 150, and 50 if it is queued and nothing else is set. Nothing keeps
the object: two look-ups of a job give records that are equal, not identical. The first byte of a packed record tells
what is asked of all records, so that those of a million jobs are counted and found without unpacking one.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from dispatcher.matrix.entry import DIGEST_SIZE, packed_digest
from dispatcher.run_state.states import BY_HAND, Record, State

_STATES: Final = tuple(State)
_NUMBERS: Final = {state: number for number, state in enumerate(_STATES)}
# The first byte of a packed record: the number of the state, and flags: whether it is known what its attempt ran with,
# and the digest of that follows in 8 bytes, whether a person has set the state, whether the job was submitted without a
# manifest, and whether it was done and then queued again. A queued record with nothing else set has a code of its own:
# of a large matrix most records are such.
_REDONE: Final = 0x08
_RAN: Final = 0x10
_DIGEST: Final = 0x20
_BY_HAND: Final = 0x40
_AD_HOC: Final = 0x80
_UNCHANGED: Final = len(_STATES)
_STATE_OF: Final = {
    **{number | flags: state for number, state in enumerate(_STATES) for flags in range(0, 0x100, 0x08)},
    _UNCHANGED: State.QUEUED,
    _UNCHANGED | _AD_HOC: State.QUEUED,
}
# Before the other fields of the record in their order: the code, the `seq` at which the job got its record, and that
# of the last change.
_HEAD: Final = struct.Struct(">BII")
_code: Final = operator.itemgetter(0)
# As bytes, which are in the order of the numbers.
_rev: Final = operator.itemgetter(slice(5, 9))
_digest: Final = operator.itemgetter(slice(_HEAD.size, _HEAD.size + DIGEST_SIZE))
_FIELDS: Final = msgspec.structs.fields(Record)
assert (_FIELDS[0].name, _FIELDS[-2].name) == ("state", "rev")
_RAN_WITH: Final = [field.name for field in _FIELDS].index("ran_with") - 1
_IS_AD_HOC: Final = [field.name for field in _FIELDS].index("ad_hoc") - 1
_TYPES: Any = (*(field.type for field in _FIELDS[1:-2]), _FIELDS[-1].type)
_NOTHING_SET: Final = (*(field.default for field in _FIELDS[1:-2]), {})
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[_TYPES]).decode
# A number of more than 64 bits has no packed form: such a record stays as it is, with the same beginning.
Packed: TypeAlias = "bytes | tuple[Any, ...]"


def pack(record: Record, born: int) -> Packed:
    state, *fields, rev, extra = msgspec.structs.astuple(record)
    fields[_IS_AD_HOC] = False
    values = (*fields, extra)
    flags = _AD_HOC if record.ad_hoc else 0
    flags |= _REDONE if record.redone is not None else 0
    code = flags | _NUMBERS[state] | (record.ran_with is not None and _RAN) | (record.reason == BY_HAND and _BY_HAND)
    digest = packed_digest(record.ran_with) if record.ran_with else None
    try:
        if state is State.QUEUED and values == _NOTHING_SET:
            return _HEAD.pack(_UNCHANGED | flags, born, rev)
        if digest is None:
            return _HEAD.pack(code, born, rev) + _encode(values)
        fields[_RAN_WITH] = None
        return _HEAD.pack(code | _DIGEST, born, rev) + digest + _encode((*fields, extra))
    except (OverflowError, struct.error):
        return (code, born, rev, *values)


def unpack(packed: Packed) -> Record:
    code, _, rev = _numbers(packed)
    if code & ~_AD_HOC == _UNCHANGED:
        return Record(State.QUEUED, ad_hoc=code != _UNCHANGED, rev=rev)
    if not isinstance(packed, bytes):
        *fields, extra = packed[3:]
    elif code & _DIGEST:
        *fields, extra = _decode(packed[_HEAD.size + DIGEST_SIZE :])
        fields[_RAN_WITH] = _digest(packed).hex()
    else:
        *fields, extra = _decode(packed[_HEAD.size :])
    fields[_IS_AD_HOC] = bool(code & _AD_HOC)
    return Record(_STATE_OF[code], *(*fields, rev, extra))


class Records(Mapping[str, Record]):
    """Records by job, in the order in which they were added. Equal to any mapping of equal records."""

    def __init__(self, packed: dict[str, Packed] | None = None) -> None:
        self._packed: dict[str, Packed] = {} if packed is None else packed
        self._by_state: ByState | None = None

    @classmethod
    def of(cls, records: Mapping[str, Record]) -> Records:
        return cls({job: pack(record, 0) for job, record in records.items()})

    def put(self, job: str, record: Record, born: int) -> Packed:
        """Add or replace a record; `born` is the `seq` at which the job got its first one."""
        packed = self._packed[job] = pack(record, born)
        self._by_state = None
        return packed

    def take(self, others: Records, jobs: Iterable[str]) -> None:
        """Replace the records of these jobs by those in `others`."""
        self._packed.update((job, others._packed[job]) for job in jobs)
        self._by_state = None

    def remove(self, job: str) -> None:
        self._packed.pop(job, None)
        self._by_state = None

    def packed_of(self, job: str) -> Packed | None:
        """The record as it is kept, for `put_packed`."""
        return self._packed.get(job)

    def put_packed(self, job: str, packed: Packed | None) -> None:
        """Put a record back; None: the job had none."""
        if packed is None:
            self._packed.pop(job, None)
        else:
            self._packed[job] = packed
        self._by_state = None

    def born(self, job: str) -> int | None:
        """The `seq` at which the job got its record; None for a job without one."""
        packed = self._packed.get(job)
        return None if packed is None else _numbers(packed)[1]

    def is_ad_hoc(self, job: str) -> bool:
        """Whether the job has a record, and was submitted without a manifest."""
        packed = self._packed.get(job)
        return packed is not None and bool(packed[0] & _AD_HOC)

    def states(self) -> Iterator[tuple[str, State]]:
        """Every job with its state, without unpacking the records."""
        return zip(self._packed, map(_STATE_OF.__getitem__, map(_code, self._packed.values())), strict=True)

    def by_state(self) -> ByState:
        if self._by_state is None:
            self._by_state = ByState(self._packed)
        return self._by_state

    def packed(self) -> Iterator[tuple[str, Packed]]:
        """Every job with its record as it is kept; `Records` can be made of them again."""
        return iter(self._packed.items())

    def copy(self) -> Records:
        return Records(dict(self._packed))

    def has_order(self, jobs: Collection[str]) -> bool:
        """Whether these are the jobs with a record, in the same order."""
        return len(jobs) == len(self._packed) and all(map(operator.eq, jobs, self._packed))

    def ordered(self, jobs: Iterable[str], missing: Record) -> Records:
        """A copy with these jobs in this order; `missing` is the record of those that have none."""
        default, packed = pack(missing, 0), self._packed
        return Records({job: packed.get(job, default) for job in jobs})

    def keys(self) -> KeysView[str]:
        return self._packed.keys()

    def __getitem__(self, job: str) -> Record:
        return unpack(self._packed[job])

    def __contains__(self, job: object) -> bool:
        return job in self._packed

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


def _numbers(packed: Packed) -> tuple[int, int, int]:
    """The code, the `seq` at which the job got its record, and that of the last change."""
    code, born, rev = _HEAD.unpack_from(packed) if isinstance(packed, bytes) else packed[:3]
    return code, born, rev


class ByState:
    """The jobs of some records by their states, found without unpacking a record. For as long as no record changes."""

    def __init__(self, packed: dict[str, Packed]) -> None:
        self._packed = packed
        self._all = bytes(map(_code, packed.values()))
        self._found: dict[bytes, list[str]] = {}
        self._latest: dict[tuple[State, int], list[str]] = {}

    def count(self, state: State) -> int:
        return sum(map(self._all.count, _codes((state,))))

    def jobs(self, states: Collection[State]) -> Sequence[str]:
        """The jobs in one of these states, in the order of the records."""
        return self._with(_codes(states))

    def flags(self, states: Collection[State]) -> bytes:
        """For each record 1 if it is in one of these states, else 0."""
        return self._all.translate(_flags(_codes(states)))

    def unchanged(self, states: Collection[State]) -> bytes:
        """For each of `jobs(states)`, 1 if it is queued and its record has nothing else (`ad_hoc` aside), else 0."""
        others = bytes(set(range(256)).difference(_codes(states)))
        return self._all.translate(_flags(bytes([_UNCHANGED, _UNCHANGED | _AD_HOC])), others)

    def ran_with(self, states: Collection[State]) -> tuple[Sequence[str], Iterator[Any]]:
        """Those of `jobs(states)` of which it is known what they ran with, and each one's digest as `packed_digest`.

        Of the few digests that have no packed form, anything else.
        """
        chosen = self._all.translate(_flags(_codes(states, _RAN)))
        return self._with(_codes(states, _RAN)), map(_digest, itertools.compress(self._packed.values(), chosen))

    def ad_hoc(self) -> Sequence[str]:
        """The jobs that were submitted without a manifest."""
        return self._with(_codes(_STATES, _AD_HOC))

    def redone(self) -> Sequence[str]:
        """The jobs that were done and then queued again, whatever became of them since."""
        return self._with(_codes(_STATES, _REDONE))

    def by_hand(self, state: State) -> int:
        """How many jobs a person has set to this state."""
        return sum(map(self._all.count, _codes((state,), _BY_HAND)))

    def latest(self, state: State, most: int) -> list[str]:
        """The jobs in this state that changed last, the last one first."""
        found = self._latest.get((state, most))
        if found is None:
            found = self._latest[(state, most)] = self._find_latest(state, most)
        return found

    def _find_latest(self, state: State, most: int) -> list[str]:
        import heapq

        # Most often they are at the end: from there, few are taken for the last that are not.
        chosen = self._all[::-1].translate(_flags(_codes((state,))))
        jobs = itertools.compress(reversed(self._packed), chosen)
        packed = list(itertools.compress(reversed(self._packed.values()), chosen))
        revs: Iterable[Any] = map(_rev, packed)
        if not set(map(type, packed)) <= {bytes}:
            revs = [_numbers(one)[2] for one in packed]
        return [job for _, job in heapq.nlargest(most, zip(revs, jobs, strict=True))]

    def _with(self, codes: bytes) -> list[str]:
        found = self._found.get(codes)
        if found is None:
            found = self._found[codes] = list(itertools.compress(self._packed, self._all.translate(_flags(codes))))
        return found


def _codes(states: Collection[State], flag: int = 0) -> bytes:
    """The codes of records in these states that have the flag."""
    return bytes(code for code, state in _STATE_OF.items() if state in states and code & flag == flag)


def _flags(codes: bytes) -> bytes:
    """A table for bytes.translate: 1 for these codes, 0 for all others."""
    return bytes(code in codes for code in range(256))


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
