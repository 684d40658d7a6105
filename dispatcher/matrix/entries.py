"""The entries of a manifest in little memory: packed some at a time, and unpacked when they are asked for.

An entry as an object takes a kilobyte, packed with its neighbours about 30 bytes, and so a pod of 1,000,000 jobs finds
room beside what it runs.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from dispatcher.matrix.entry import Entry

# Neighbours are alike, so that more of them together are smaller, but all of them are unpacked for one.
_TOGETHER: Final = 16
# How many unpacked entries are kept: all of a usual manifest, and of a large one those that are claimed next.
_KEPT: Final = 4_000
# Fast, and hardly larger than at the higher levels.
_LEVEL: Final = 1

# `dict`: what an entry has nothing of is an unchangeable mapping, which is no JSON value.
_encode = msgspec.msgpack.Encoder(enc_hook=dict).encode
_decode = msgspec.msgpack.Decoder(list[Entry]).decode


class _Block:
    """Some neighbouring entries: packed, or as they are."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content: bytes | list[Entry] = []

    def entries(self) -> list[Entry]:
        return self.content if isinstance(self.content, list) else _decode(zlib.decompress(self.content))


class Entries(Mapping[str, Entry]):
    """Entries by job id, in the order in which they were added. Equal to any mapping of equal entries."""

    def __init__(self, known_ids: Iterable[str] = ()) -> None:
        self._blocks: dict[str, _Block] = {}
        # Ids that others keep in memory are not kept a second time.
        self._known_ids = {job: job for job in known_ids}
        self._last = _Block()
        self._open: list[Entry] = []
        self._unpacked: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry whose id is not there yet."""
        if not self._open:
            self._last = _Block()
            self._last.content = self._open
        self._open.append(entry)
        self._blocks[self._known_ids.get(entry.job_id, entry.job_id)] = self._last
        if len(self._open) == _TOGETHER:
            self._pack()

    def finish(self) -> None:
        """Everything was added."""
        self._pack()
        self._known_ids = {}

    @classmethod
    def of(cls, parts: Iterable[tuple[list[str], bytes]]) -> Entries:
        """Entries of what `packed` gave."""
        entries = cls()
        for jobs, content in parts:
            block = _Block()
            block.content = content
            entries._blocks.update(dict.fromkeys(jobs, block))
        return entries

    def packed(self) -> Iterator[tuple[list[str], bytes]]:
        """All entries as they are kept: some jobs at a time, and what they have in common.

        Raises OverflowError where some have no packed form.
        """
        for block, jobs in itertools.groupby(self._blocks, self._blocks.__getitem__):
            if not isinstance(block.content, bytes):
                raise OverflowError("a whole number of more than 64 bits")
            yield list(jobs), block.content

    def _pack(self) -> None:
        entries, self._open = self._open, []
        if entries:
            # A whole number of more than 64 bits has no packed form: such entries stay as they are.
            with contextlib.suppress(OverflowError):
                self._last.content = zlib.compress(_encode(entries), _LEVEL)

    def __getitem__(self, job: str) -> Entry:
        entry = self._unpacked.get(job)
        if entry is None:
            block = self._blocks[job]
            if len(self._unpacked) >= _KEPT:
                self._unpacked.clear()
            self._unpacked.update((one.job_id, one) for one in block.entries())
            entry = self._unpacked[job]
        return entry

    def __contains__(self, job: object) -> bool:
        return job in self._blocks

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)
