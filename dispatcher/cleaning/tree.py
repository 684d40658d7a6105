"""Walking, measuring and removing below an open directory.

Every name is looked up relative to an open directory, without following a link in its last part: whoever exchanges a
directory for a link meanwhile gets an error, not the removal of somebody else's files.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

_BLOCK: Final = 512
# Each level keeps a directory open.
_DEEPEST: Final = 256
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# The path that an error belongs to, below the open directory.
OnError = Callable[[str, OSError], None]


class Size(msgspec.Struct):
    """Files, and the bytes that they occupy on the disk."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.files + other.files, self.bytes + other.bytes)


class Links:
    """Counts the bytes of each file once; `freed`: only when all of its names are gone."""

    def __init__(self, *, freed: bool = False) -> None:
        self._freed = freed
        self._seen: dict[tuple[int, int], int] = {}

    def bytes_of(self, found: os.stat_result) -> int:
        size = found.st_blocks * _BLOCK
        if found.st_nlink <= 1 or stat.S_ISDIR(found.st_mode):
            return size
        key = found.st_dev, found.st_ino
        self._seen[key] = self._seen.get(key, 0) + 1
        return size if self._seen[key] == (found.st_nlink if self._freed else 1) else 0


@contextlib.contextmanager
def opened(path: str, within: int, *, follow: bool = False) -> Iterator[int]:
    """A directory below the open one `within`; OSError when it is anything else, or a link that is not followed."""
    fd = os.open(path, _DIRECTORY & ~os.O_NOFOLLOW if follow else _DIRECTORY, dir_fd=within)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened_root(path: Path) -> Iterator[int]:
    """A directory of the workspace, which may be a link to another disk."""
    fd = os.open(path, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def names(fd: int) -> list[str]:
    return sorted(os.listdir(fd))


def entries(fd: int, keep: Collection[str] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """The names in an open directory, but those to be kept, with what each is; one that vanishes is left out."""
    for name in names(fd):
        if name not in keep:
            with contextlib.suppress(FileNotFoundError):
                yield name, os.stat(name, dir_fd=fd, follow_symlinks=False)


def measure(
    fd: int, links: Links, on_error: OnError, keep: Collection[str] = (), path: str = "", depth: int = 0
) -> Size:
    """What is in an open directory, but the files to be kept; a link is itself, another filesystem is left out."""
    total, device = Size(), os.fstat(fd).st_dev
    for name, found in entries(fd, keep):
        if found.st_dev != device:
            continue
        total = total + Size(1, links.bytes_of(found))
        if stat.S_ISDIR(found.st_mode):
            with _reporting(f"{path}{name}", on_error):
                _check_depth(depth)
                with opened(name, fd) as inner:
                    total = total + measure(inner, links, on_error, (), f"{path}{name}/", depth + 1)
    return total


def remove(
    fd: int, links: Links, on_error: OnError, keep: Collection[str] = (), path: str = "", depth: int = 0
) -> Size:
    """Remove what is in an open directory, but the files to be kept; what this call has removed."""
    total, device = Size(), os.fstat(fd).st_dev
    with _reporting(path, on_error):
        for name, found in entries(fd, keep):
            if found.st_dev != device:
                on_error(f"{path}{name}", OSError(0, "another filesystem is mounted there"))
                continue
            with _reporting(f"{path}{name}", on_error):
                is_directory = stat.S_ISDIR(found.st_mode)
                if is_directory:
                    _check_depth(depth)
                    with opened(name, fd) as inner:
                        total = total + remove(inner, links, on_error, (), f"{path}{name}/", depth + 1)
                if _unlink(name, fd, is_directory=is_directory):
                    total = total + Size(1, links.bytes_of(found))
    return total


def _unlink(name: str, fd: int, *, is_directory: bool) -> bool:
    """Whether this call has removed it; False when another has."""
    try:
        if is_directory:
            os.rmdir(name, dir_fd=fd)
        else:
            os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return False
    return True


def _check_depth(depth: int) -> None:
    if depth >= _DEEPEST:
        raise OSError(0, f"more than {_DEEPEST} directories, one in the other: remove it by hand")


@contextlib.contextmanager
def _reporting(path: str, on_error: OnError) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        # Another cleaner was quicker.
        pass
    except OSError as error:
        on_error(path, error)
