"""A running checksum of a file that is only appended to: it shows whether the file still says what was read."""

from __future__ import annotations

import zlib
from typing import Final

from dispatcher.base import files

# One check reads at most two blocks, however long the file is.
BLOCK: Final = 64 * 1024
# What a client reads at least.
PAGE: Final = 4 * 1024


class RunningChecksum:
    """The CRC-32 of the first `length` bytes of a file.

    The value at the end of each block is kept, so that any part can be checked by reading one block; and the value at
    the beginning of the last page.
    """

    def __init__(self, data: bytes | memoryview = b"") -> None:
        self.length = 0
        self.value = 0
        self._marks = [0]
        self._next_block = 0
        # Where the last page begins, and the value there.
        self._page = (0, 0)
        self.add(data)

    @classmethod
    def resumed(cls, length: int, value: int, marks: list[int]) -> RunningChecksum:
        """One that was at this length; see `marks`."""
        checksum = cls()
        checksum.length, checksum.value, checksum._marks = length, value, marks
        # Until the next page begins, what is kept of the whole block serves.
        block = max(0, length - 1) // BLOCK
        checksum._page = (block * BLOCK, marks[block])
        return checksum

    @property
    def marks(self) -> list[int]:
        """The values at the beginning and at the end of each whole block."""
        return self._marks

    def add(self, data: bytes | memoryview) -> None:
        """Add the bytes that follow."""
        view = memoryview(data)
        page = max(0, self.length + len(view) - 1) // PAGE * PAGE
        while view:
            if self.length == page:
                self._page = (page, self.value)
            end = self.length - self.length % BLOCK + BLOCK
            part = view[: (page if self.length < page < end else end) - self.length]
            self.value = zlib.crc32(part, self.value)
            self.length += len(part)
            if self.length % BLOCK == 0:
                self._marks.append(self.value)
            view = view[len(part) :]

    def followed_by(self, data: bytes | memoryview) -> int:
        """The value that adding `data` would lead to."""
        return zlib.crc32(data, self.value)

    def of_block(self, number: int, data: bytes) -> int:
        """The value at the end of block `number`, or within it, if its content up to there is `data`."""
        return zlib.crc32(data, self._marks[number])

    def at(self, fd: int, length: int) -> int:
        """The value at an earlier length; the open file gives what follows the last complete block before it."""
        block = length // BLOCK
        return self.of_block(block, files.read_fd(fd, block * BLOCK, length % BLOCK))

    def differs_at_end(self, fd: int) -> tuple[int, int] | None:
        """As `differs_at`; examines the last page only, or after `resumed` a little more."""
        start, value = self._page
        found = zlib.crc32(files.read_fd(fd, start, self.length - start), value)
        return None if found == self.value else (start, self.length)

    def differs_at(self, fd: int) -> tuple[int, int] | None:
        """From which to which byte the open file is not what was added; None where no difference was found.

        Examines the last block and one other, the next one at each call.
        """
        last = max(0, self.length - 1) // BLOCK
        following = (self._next_block + 1) % (last + 1)
        for block in {last, self._next_block % (last + 1)}:
            start, end = block * BLOCK, min((block + 1) * BLOCK, self.length)
            expected = self._marks[block + 1] if block + 1 < len(self._marks) else self.value
            if self.of_block(block, files.read_fd(fd, start, end - start)) != expected:
                return start, end
        self._next_block = following
        return None
