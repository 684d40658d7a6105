"""A running checksum tells at any length whether a file still says what was taken in."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from dispatcher.run_state.checksum import BLOCK, PAGE, RunningChecksum


def content(length: int) -> bytes:
    return bytes(number * 31 % 251 for number in range(length))


def opened(path: Path, data: bytes) -> int:
    path.write_bytes(data)
    return os.open(path, os.O_RDWR)


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7])
@pytest.mark.parametrize("step", [1000, BLOCK, 5 * BLOCK])
def test_it_is_the_crc_of_what_was_taken_in(tmp_path: Path, length: int, step: int) -> None:
    data = content(length)
    checksum = RunningChecksum()
    for start in range(0, length, step):
        part = data[start : start + step]
        assert checksum.followed_by(part) == zlib.crc32(data[: start + len(part)])
        checksum.add(part)
    assert (checksum.length, checksum.value) == (length, zlib.crc32(data))
    fd = opened(tmp_path / "file", data + b"more")
    for earlier in {0, 1, length // 2, max(0, length - 1), length}:
        if earlier <= length:
            assert checksum.at(fd, earlier) == zlib.crc32(data[:earlier])
    assert all(checksum.differs_at(fd) is None for _ in range(5))
    os.close(fd)


@pytest.mark.parametrize("where", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 5, 3 * BLOCK + 6])
def test_a_change_anywhere_is_found_when_its_block_has_its_turn(tmp_path: Path, where: int) -> None:
    data = content(3 * BLOCK + 7)
    checksum = RunningChecksum(data)
    fd = opened(tmp_path / "file", data)
    os.pwrite(fd, bytes([data[where] ^ 1]), where)
    found = [checksum.differs_at(fd) for _ in range(5)]
    first = next(number for number, one in enumerate(found) if one is not None)
    assert {one[0] if one else None for one in found[first:]} == {where // BLOCK * BLOCK}, "and stays found"
    os.close(fd)


@pytest.mark.parametrize("length", [1, PAGE - 1, PAGE, PAGE + 1, BLOCK, BLOCK + 1, 3 * BLOCK + PAGE + 7])
@pytest.mark.parametrize("step", [1, 211, PAGE, BLOCK, 5 * BLOCK])
def test_a_change_of_the_last_page_is_found_at_once(tmp_path: Path, length: int, step: int) -> None:
    data = content(length)
    # The first part at once: byte by byte, only the end matters.
    begin = max(0, length - 3 * PAGE) if step == 1 else 0
    checksum = RunningChecksum(data[:begin])
    for start in range(begin, length, step):
        checksum.add(data[start : start + step])
    fd = opened(tmp_path / "file", data + b"more")
    page = (length - 1) // PAGE * PAGE
    for where in {page, (page + length) // 2, length - 1}:
        assert checksum.differs_at_end(fd) is None
        os.pwrite(fd, bytes([data[where] ^ 1]), where)
        assert checksum.differs_at_end(fd) == (page, length)
        os.pwrite(fd, data[where : where + 1], where)
    os.ftruncate(fd, length - 1)
    assert checksum.differs_at_end(fd) == (page, length)
    os.close(fd)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + PAGE + 7])
@pytest.mark.parametrize("more", [0, 1, 2 * PAGE])
def test_one_that_was_resumed_finds_a_change_of_the_last_page(tmp_path: Path, length: int, more: int) -> None:
    data = content(length + more)
    saved = RunningChecksum(data[:length])
    checksum = RunningChecksum.resumed(saved.length, saved.value, saved.marks)
    checksum.add(data[length:])
    fd = opened(tmp_path / "file", data)
    assert checksum.differs_at_end(fd) is None
    os.pwrite(fd, bytes([data[-1] ^ 1]), len(data) - 1)
    assert checksum.differs_at_end(fd) is not None
    os.close(fd)


def test_a_file_that_was_cut_differs(tmp_path: Path) -> None:
    checksum = RunningChecksum(content(100))
    fd = opened(tmp_path / "file", content(99))
    assert checksum.differs_at(fd) == (0, 100)
    os.close(fd)
