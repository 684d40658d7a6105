"""`ckpt.tmp/`: where checkpoints are assembled. Each process has a directory in it, and a liveness lock."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dispatcher.base.kernel_locks import is_flocked, try_flock, wait_for_flock
from dispatcher.base.storing import storing
from dispatcher.checkpoints.file_tree import remove_tree

LOCK: Final = ".lock"


class Scratch:
    """A process's directory below `home`. Its first use creates it and removes those of dead processes."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._token = uuid.uuid4().hex[:12]
        self._lock: int | None = None
        self._count = 0

    def new(self) -> Path:
        """An unused path; its parent exists."""
        directory = self._home / self._token
        if self._lock is None:
            self._lock = self._take_lock()
            self._sweep()
        # Each time, because an earlier call may have failed on a full disk.
        os.makedirs(directory, exist_ok=True)
        self._count += 1
        return directory / str(self._count)

    def make_directory(self, doing: str) -> Path:
        """A new, empty directory; StorageError that begins with `doing` when it cannot be made."""
        with storing(doing):
            path = self.new()
            os.mkdir(path)
        return path

    def close(self) -> None:
        """Remove the directory, and `home` when it is empty."""
        if self._lock is None:
            return
        remove_tree(self._home / self._token)
        with contextlib.suppress(OSError):
            os.unlink(self._home / f"{self._token}{LOCK}")
        os.close(self._lock)
        self._lock = None
        with contextlib.suppress(OSError):
            os.rmdir(self._home)

    def dead(self) -> Iterator[str]:
        """The names of directories whose processes were killed; in doubt they live."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for token in sorted(os.listdir(self._home)):
                with contextlib.suppress(OSError):
                    fd = os.open(self._home / f"{token}{LOCK}", os.O_RDWR | os.O_CLOEXEC)
                    try:
                        if not is_flocked(fd):
                            yield token
                    finally:
                        os.close(fd)

    def _take_lock(self) -> int:
        path = self._home / f"{self._token}{LOCK}"
        while True:
            try:
                os.makedirs(self._home, exist_ok=True)
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                # Another process has just removed the empty directory.
                continue
            except FileExistsError:
                # The same, between two checks of makedirs; unless `home` is not a directory.
                if self._home.is_file() or self._home.is_symlink():
                    raise
                continue
            wait_for_flock(lock)
            # Before it was locked, another process may have removed it as that of a dead process.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(lock).st_ino:
                    return lock
            os.close(lock)

    def _sweep(self) -> None:
        """Remove the directories of processes that were killed."""
        for entry in os.listdir(self._home):
            token = entry.removesuffix(LOCK)
            if token == self._token:
                continue
            path = self._home / f"{token}{LOCK}"
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if try_flock(fd):
                        remove_tree(self._home / token)
                        os.unlink(path)
                finally:
                    os.close(fd)
