"""The entries of a manifest in little memory: packed some at a time, and unpacked when they are asked for.

An entry as an object takes a kilobyte, packed with its neighbours about 30 bytes, and so a pod of 1,000,000 jobs finds
room beside what it runs. The kind of each (see kind_of) is known without unpacking it.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import zlib
from collections.abc import Collection, Hashable, Iterable, Iterator, KeysView, Mapping
from typing import Final

import msgspec

from dispatcher.matrix.entry import DIGEST_SIZE, Entry, packed_digest

# Neighbours are alike, so that more of them together are smaller, but all of them are unpacked for one.
_TOGETHER: Final = 16
# How many unpacked entries are kept: all of a usual manifest, and of a large one those that are claimed next.
_KEPT: Final = 4_000
# A bound on memory, for entries that each have a command of their own: what comes later counts as of no kind.
_MOST_KINDS: Final = 10_000
# Fast, and hardly larger than at the higher levels.
_LEVEL: Final = 1

# `dict`: what an entry has nothing of is an unchangeable mapping, which is no JSON value.
_encode = msgspec.msgpack.Encoder(enc_hook=dict).encode
_decode = msgspec.msgpack.Decoder(list[Entry]).decode


# The number of some neighbouring entries, their kinds (one number if it is the same for all), their digests one after
# the other, and the entries.
Block = tuple[int, int | list[int], bytes, bytes]


class _Group:
    """The entries of one kind among some neighbours; `content` are all these neighbours, packed or as they are."""

    __slots__ = ("content", "kind")

    def __init__(self, kind: int, content: bytes | list[Entry]) -> None:
        self.kind = kind
        self.content = content

    def entries(self) -> list[Entry]:
        return self.content if isinstance(self.content, list) else _decode(zlib.decompress(self.content))


def kind_of(entry: Entry) -> Hashable:
    """Equal for entries of which a pod that takes one takes all, unless it asks for the values of parameters.

    pod/waiting.py asks nothing else of an entry without needs than its id and what is in here. None with needs.
    """
    if entry.needs:
        return None
    resources = repr(entry.resources) if entry.resources else ""
    return entry.shape(), entry.gpus, entry.outlet, resources, entry.snapshot


_kind: Final = operator.attrgetter("kind")
_OF_NO_KIND: Final = _Group(0, [])


class Entries(Mapping[str, Entry]):
    """Entries by job id, in the order in which they were added. Equal to any mapping of equal entries."""

    def __init__(self, known_ids: Iterable[str] = ()) -> None:
        self._groups: dict[str, _Group] = {}
        # Ids that others keep in memory are not kept a second time.
        self._known_ids = {job: job for job in known_ids}
        self._kinds: dict[Hashable, int] = {None: 0}
        self._open: list[Entry] = []
        self._open_groups: dict[int, _Group] = {}
        self._unpacked: dict[str, Entry] = {}
        # Those of the first entries, in their order.
        self._digests: list[bytes] = []
        self._others = 0

    def add(self, entry: Entry) -> None:
        """Add an entry whose id is not there yet."""
        kind = self._number(kind_of(entry))
        group = self._open_groups.get(kind)
        if group is None:
            group = self._open_groups[kind] = _Group(kind, self._open)
        self._open.append(entry)
        self._groups[self._known_ids.get(entry.job_id, entry.job_id)] = group
        if len(self._open) == _TOGETHER:
            self._pack()

    def finish(self) -> None:
        """Everything was added."""
        self._pack()
        self._known_ids = {}
        self._kinds = {}

    @classmethod
    def of(cls, jobs: Collection[str], blocks: Iterable[Block], known_ids: Collection[str] = ()) -> Entries:
        """Entries of these jobs, and of what `packed` gave."""
        entries = cls()
        groups: list[_Group] = []
        for count, kinds, digests, content in blocks:
            entries._digests.append(digests)
            if isinstance(kinds, int):
                groups += [_Group(kinds, content)] * count
            else:
                of_kind = {kind: _Group(kind, content) for kind in set(kinds)}
                groups += map(of_kind.__getitem__, kinds)
        if len(known_ids) == len(jobs) and all(map(operator.eq, known_ids, jobs)):
            # A look-up with the very same text is several times as fast.
            jobs = known_ids
        entries._groups = dict(zip(jobs, groups, strict=True))
        return entries

    def packed(self) -> Iterator[Block]:
        """All entries in their order as they are kept: some at a time, and what they have in common.

        Raises OverflowError where some have no packed form.
        """
        for _, some in itertools.groupby(self._groups.values(), lambda group: id(group.content)):
            groups = list(some)
            content = groups[0].content
            if not isinstance(content, bytes):
                raise OverflowError("a whole number of more than 64 bits")
            kinds = [group.kind for group in groups]
            digests = b"".join(packed_digest(entry.digest()) or b"" for entry in groups[0].entries())
            yield len(groups), kinds if len(set(kinds)) > 1 else kinds[0], digests, content

    def with_others(self, others: Iterable[Entry]) -> Entries:
        """These entries and some of other manifests."""
        entries = Entries()
        entries._groups = {**self._groups, **{other.job_id: _Group(0, [other]) for other in others}}
        entries._digests = self._digests
        entries._others = len(entries._groups) - len(self._groups)
        return entries

    def digests(self, jobs: Iterable[str]) -> Iterator[bytes | None]:
        """For each job the digest of its entry as `packed_digest`; None where it was not saved."""
        digests = b"".join(self._digests)
        starts = range(0, len(digests), DIGEST_SIZE)
        known = dict(zip(self._groups, [digests[at : at + DIGEST_SIZE] for at in starts], strict=False))
        return map(known.get, jobs)

    def kinds(self, jobs: Iterable[str]) -> Iterator[int]:
        """For each job the same number as for all others whose entries are of its kind; 0: of none."""
        return map(_kind, map(self._groups.get, jobs, itertools.repeat(_OF_NO_KIND)))

    def of_kinds(self) -> Iterator[str]:
        """The jobs whose entries may be of a kind: all but those of other manifests, which come last."""
        return itertools.islice(self._groups, len(self._groups) - self._others)

    def all_kinds(self) -> Iterator[int]:
        """The kind of each entry in their order, as `kinds` tells it."""
        return map(_kind, self._groups.values())

    def _number(self, kind: Hashable) -> int:
        number = self._kinds.get(kind)
        if number is None:
            number = len(self._kinds)
            if number > _MOST_KINDS:
                return 0
            self._kinds[kind] = number
        return number

    def _pack(self) -> None:
        if self._open:
            # A whole number of more than 64 bits has no packed form: such entries stay as they are.
            with contextlib.suppress(OverflowError):
                content = zlib.compress(_encode(self._open), _LEVEL)
                for group in self._open_groups.values():
                    group.content = content
        self._open, self._open_groups = [], {}

    def keys(self) -> KeysView[str]:
        return self._groups.keys()

    def __getitem__(self, job: str) -> Entry:
        entry = self._unpacked.get(job)
        if entry is None:
            group = self._groups[job]
            if len(self._unpacked) >= _KEPT:
                self._unpacked.clear()
            self._unpacked.update((one.job_id, one) for one in group.entries())
            entry = self._unpacked[job]
        return entry

    def __contains__(self, job: object) -> bool:
        return job in self._groups

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)
