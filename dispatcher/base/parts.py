"""Files of derived data, in parts with a checksum each: a damaged or torn one is noticed, and is as good as none."""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from dispatcher.base import files

# Before each part: its length and its CRC-32.
_PREFIX: Final = struct.Struct("<II")


class DamagedPartError(ValueError):
    """A part that is not there, or is not as it was written."""


# What a reader gets of a file that is missing, damaged, or of another version: it is as good as none.
UNUSABLE: Final = (OSError, DamagedPartError, msgspec.DecodeError, UnicodeDecodeError)


def write(path: Path, root: Path, parts: Iterable[bytes]) -> None:
    """Replace the file at `path` in the workspace `root`. Where that fails, there is no file or the old one."""
    begin(path, root, parts)()


def begin(path: Path, root: Path, parts: Iterable[bytes]) -> Callable[[], None]:
    """As `write`, but what is returned does the writing.

    It may run in a thread: the umask, which all threads share, is set here.
    """
    temporary = files.temporary_name(path)
    try:
        # Only its own: others may hold what a person has saved.
        files.remove_leftovers(path.parent, f"{path.name}.")
        with files.shared_umask(root):
            file = open(temporary, "xb")  # noqa: SIM115  # _write closes it
    except OSError:
        return lambda: None
    return functools.partial(_write, file, temporary, path, parts)


def _write(file: BinaryIO, temporary: Path, path: Path, parts: Iterable[bytes]) -> None:
    try:
        with file:
            for part in parts:
                file.write(_PREFIX.pack(len(part), zlib.crc32(part)) + part)
        os.rename(temporary, path)
    except (OverflowError, OSError):
        # A number of more than 64 bits has no packed form, and a disk may be full: nothing needs the file.
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def read(file: BinaryIO) -> bytes:
    """The next part. Raises DamagedPartError."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) == _PREFIX.size:
        length, checksum = _PREFIX.unpack(prefix)
        part = file.read(length)
        if len(part) == length and zlib.crc32(part) == checksum:
            return part
    raise DamagedPartError(f"{file.name}: damaged at byte {file.tell()}")
