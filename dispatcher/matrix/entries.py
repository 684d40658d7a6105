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


class _Needing(msgspec.Struct):
    """The part of an entry that says what it needs, at a small part of the cost of the whole."""

    job_id: str
    needs: tuple[str, ...] = ()


_decode_needs = msgspec.msgpack.Decoder(list[_Needing]).decode


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
    return entry.shape(), entry.gpus, entry.gpu_memory_mib, entry.outlet, resources, entry.snapshot


_kind: Final = operator.attrgetter("kind")
_OF_NO_KIND: Final = _Group(0, [])


class Entries(Mapping[str, Entry]):
    """Entries by job id, in the order in which they were added. Equal to any mapping of equal entries.

    `first_kind`: the number of their first kind, so that they can be joined to others.
    """

    def __init__(self, known_ids: Iterable[str] = (), *, first_kind: int = 1) -> None:
        self._groups: dict[str, _Group] = {}
        # Ids that others keep in memory are not kept a second time.
        self._known_ids = {job: job for job in known_ids}
        self._kinds: dict[Hashable, int] = {None: 0}
        self._next_kind = first_kind
        self._open: list[Entry] = []
        self._open_groups: dict[int, _Group] = {}
        self._unpacked: dict[str, Entry] = {}
        # Those of the first entries, in their order.
        self._digests: list[bytes] = []
        # Whose digests are known: its own, or those of all that it was joined of.
        self._parts: tuple[Entries, ...] = (self,)
        self._others = 0
        # Whether what is packed has entries that count no more.
        self._has_replaced = False

    def add(self, entry: Entry) -> None:
        """Add an entry; one with the same id is replaced, and its place is the last."""
        if self._groups.pop(entry.job_id, None) is not None:
            self._unpacked.pop(entry.job_id, None)
            self._digests = []
            self._has_replaced = True
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
    def of(
        cls, jobs: Collection[str], blocks: Iterable[Block], known_ids: Collection[str] = (), *, first_kind: int = 1
    ) -> Entries:
        """Entries of these jobs, and of what `packed` gave. What is added to them is of other kinds."""
        entries = cls(first_kind=first_kind)
        groups: list[_Group] = []
        for count, kinds, digests, content in blocks:
            entries._digests.append(digests)
            if isinstance(kinds, int):
                groups += [_Group(kinds, content)] * count
            else:
                of_kind = {kind: _Group(kind, content) for kind in set(kinds)}
                groups += map(of_kind.__getitem__, kinds)
            entries._next_kind = max(entries._next_kind, 1 + (kinds if isinstance(kinds, int) else max(kinds)))
        if len(known_ids) == len(jobs) and all(map(operator.eq, known_ids, jobs)):
            # A look-up with the very same text is several times as fast.
            jobs = known_ids
        entries._groups = dict(zip(jobs, groups, strict=True))
        return entries

    def packed(self) -> Iterator[Block]:
        """All entries in their order as they are kept: some at a time, and what they have in common.

        Raises OverflowError where some have no packed form.
        """
        self._pack()
        for _, some in itertools.groupby(self._groups.items(), lambda item: id(item[1].content)):
            jobs, groups = zip(*some, strict=True)
            content = groups[0].content
            if not isinstance(content, bytes):
                raise OverflowError("a whole number of more than 64 bits")
            kinds = [group.kind for group in groups]
            entries = {entry.job_id: entry for entry in self._counting(groups[0])}
            if self._has_replaced:
                content = zlib.compress(_encode([entries[job] for job in jobs]), _LEVEL)
            digests = b"".join(packed_digest(entries[job].digest()) or b"" for job in jobs)
            yield len(groups), kinds if len(set(kinds)) > 1 else kinds[0], digests, content

    def joined(self, others: Entries, jobs: Collection[str]) -> Entries:
        """These entries and those of `jobs` among `others`, whose kinds have other numbers, which these do not have."""
        groups = others._groups
        if len(jobs) != len(groups) or not all(map(operator.eq, jobs, groups)):
            groups = {job: groups[job] for job in jobs if job in groups}
        if not groups.keys().isdisjoint(self._groups):
            groups = {job: group for job, group in groups.items() if job not in self._groups}
        entries = Entries()
        entries._groups = {**self._groups, **groups}
        entries._parts = (*self._parts, *others._parts)
        entries._has_replaced = others._has_replaced
        return entries

    def with_others(self, others: Iterable[Entry]) -> Entries:
        """These entries and some of other manifests."""
        entries = Entries()
        entries._groups = {**self._groups, **{other.job_id: _Group(0, [other]) for other in others}}
        entries._parts = self._parts
        entries._has_replaced = self._has_replaced
        entries._others = len(entries._groups) - len(self._groups)
        return entries

    def digests(self, jobs: Iterable[str]) -> Iterator[bytes | None]:
        """For each job the digest of its entry as `packed_digest`; None where it was not saved."""
        known: dict[str, bytes] = {}
        for part in reversed(self._parts):
            digests = b"".join(part._digests)
            starts = range(0, len(digests), DIGEST_SIZE)
            known.update(zip(part._groups, [digests[at : at + DIGEST_SIZE] for at in starts], strict=False))
        return map(known.get, jobs)

    def needs(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The jobs that need others, each with these."""
        for _, some in itertools.groupby(self._groups.items(), lambda item: id(item[1].content)):
            groups = dict(some)
            if all(map(_kind, groups.values())):
                # An entry with needs is of no kind.
                continue
            content = next(iter(groups.values())).content
            entries = content if isinstance(content, list) else _decode_needs(zlib.decompress(content))
            # Of one that was replaced the last counts.
            needs = {entry.job_id: entry.needs for entry in entries if entry.job_id in groups}
            yield from ((job, needed) for job, needed in needs.items() if needed)

    def kinds(self, jobs: Iterable[str]) -> Iterator[int]:
        """For each job the same number as for all others whose entries are of its kind; 0: of none."""
        return map(_kind, map(self._groups.get, jobs, itertools.repeat(_OF_NO_KIND)))

    def of_kinds(self) -> Iterator[str]:
        """The jobs whose entries may be of a kind: all but those of other manifests, which come last."""
        return itertools.islice(self._groups, len(self._groups) - self._others)

    def all_kinds(self) -> Iterator[int]:
        """The kind of each entry in their order, as `kinds` gives it."""
        return map(_kind, self._groups.values())

    def _counting(self, group: _Group) -> Iterable[Entry]:
        """The entries of this group and its neighbours, without those that were replaced."""
        entries = group.entries()
        if not self._has_replaced:
            return entries
        found = ((entry, self._groups.get(entry.job_id)) for entry in entries)
        return [entry for entry, now in found if now is not None and now.content is group.content]

    def _number(self, kind: Hashable) -> int:
        number = self._kinds.get(kind)
        if number is None:
            if len(self._kinds) > _MOST_KINDS:
                return 0
            number = self._kinds[kind] = self._next_kind
            self._next_kind += 1
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
            self._unpacked.update((one.job_id, one) for one in self._counting(group))
            entry = self._unpacked[job]
        return entry

    def __contains__(self, job: object) -> bool:
        return job in self._groups

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)
