"""Logs of attempts by bytes: the end, what follows, the lines of a failure. Carriage returns are left as they are."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

from dispatcher.base.terminal import clip
from dispatcher.errors import StateError
from dispatcher.workspace import AttemptPaths

# Less than a megabyte as JSON, in which some letters take six bytes.
MOST_BYTES: Final = 128 * 1024
_SAFE: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | _SAFE
_LINKS: Final = (errno.ELOOP, errno.ENOTDIR)
_END_BYTES: Final = 16 * 1024
_LINE_WIDTH: Final = 300
# Of a letter in UTF-8, all bytes but the first.
_LONGEST_LETTER: Final = 4


def open_log(path: Path, below: Path | None = None) -> BinaryIO:
    """Open a file in an attempt's directory. Raises FileNotFoundError, and StateError for what is no file of it.

    A job may put a link or a pipe there, or in place of its directories: that would show any file of the user, or never
    end. `below` is the directory of the job, where the file is in a directory of the attempt's.
    """
    fds: list[int] = []
    job = below or path.parent.parent
    *directories, name = path.relative_to(job).parts
    try:
        fds.append(os.open(job, _DIRECTORY))
        for directory in directories:
            fds.append(os.open(directory, _DIRECTORY, dir_fd=fds[-1]))
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _SAFE, dir_fd=fds[-1])
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _LINKS:
            raise StateError(f"{path} is a link, or below one: it is not shown") from error
        raise StateError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        for one in fds:
            os.close(one)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StateError(f"{path} is no plain file: it is not shown")
    return os.fdopen(fd, "rb", buffering=0)


def part(paths: AttemptPaths, *, start: int | None, before: int | None, size: int) -> dict[str, Any]:
    """Some bytes of a log as text: from `start`, or the last ones before `before` (None: the end).

    `from` and `to` are the offsets of what is given, `bytes` the length of the whole log. A letter that is cut in two
    at an end is left to the part that has the rest of it.
    """
    with open_log(paths.log) as file:
        length = os.fstat(file.fileno()).st_size
        end = length if before is None else min(before, length)
        if start is None:
            start = max(0, end - size)
        elif start > length:
            # It was cut, or it is another file.
            start = 0
        data = os.pread(file.fileno(), max(0, min(size, (length if before is None else end) - start)), start)
    skipped = _inner_bytes(data) if start else 0
    cut = _unfinished(data) if start + len(data) < length else 0
    data = data[skipped : len(data) - cut]
    start += skipped
    return {
        "text": data.decode("utf-8", "replace"),
        "from": start,
        "to": start + len(data),
        "bytes": length,
        "removed": False,
    }


def missing(paths: AttemptPaths) -> dict[str, Any]:
    """An attempt without a log: it has written nothing yet, or `dispatcher clean` has removed it."""
    return {"text": "", "from": 0, "to": 0, "bytes": None, "removed": os.path.exists(paths.cleaned)}


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log, each as a terminal shows it after its carriage returns; none when there is no log."""
    try:
        with open_log(path) as file:
            length = os.fstat(file.fileno()).st_size
            data = os.pread(file.fileno(), _END_BYTES, max(0, length - _END_BYTES))
    except (OSError, StateError):
        return []
    lines = data.decode("utf-8", "replace").rstrip("\n").split("\n")
    if length > len(data):
        del lines[0]
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return [clip(line, _LINE_WIDTH) for line in shown if line.strip()][-count:]


def _inner_bytes(data: bytes) -> int:
    """How many bytes at the beginning belong to a letter that began before."""
    count = 0
    while count < min(len(data), _LONGEST_LETTER) and data[count] & 0xC0 == 0x80:
        count += 1
    return count if count < _LONGEST_LETTER else 0


def _unfinished(data: bytes) -> int:
    """How many bytes at the end are the beginning of a letter."""
    for back in range(1, min(len(data), _LONGEST_LETTER - 1) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return back if length > back else 0
    return 0
