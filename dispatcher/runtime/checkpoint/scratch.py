"""`ckpt.tmp/`: where checkpoints are put together. Each process has a folder in it, and a lock as its life sign."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import Final

from dispatcher.base.kernel_locks import try_flock, wait_for_flock
from dispatcher.runtime.checkpoint.file_tree import remove_tree

_LOCK: Final = ".lock"


class Scratch:
    """A process's folder below `home`, made when it is first needed; folders of dead processes are removed then."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._token = uuid.uuid4().hex[:12]
        self._lock: int | None = None
        self._count = 0

    def new(self) -> Path:
        """A path for a new directory; its parent exists."""
        folder = self._home / self._token
        if self._lock is None:
            self._lock = self._take_lock()
            self._sweep()
        # Each time: on a full disk it may have failed before.
        os.makedirs(folder, exist_ok=True)
        self._count += 1
        return folder / str(self._count)

    def close(self) -> None:
        """Remove the folder, and `home` when it is empty."""
        if self._lock is None:
            return
        remove_tree(self._home / self._token)
        with contextlib.suppress(OSError):
            os.unlink(self._home / f"{self._token}{_LOCK}")
        os.close(self._lock)
        self._lock = None
        with contextlib.suppress(OSError):
            os.rmdir(self._home)

    def _take_lock(self) -> int:
        path = self._home / f"{self._token}{_LOCK}"
        while True:
            try:
                os.makedirs(self._home, exist_ok=True)
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                # Another process was done, and has removed the empty directory.
                continue
            except FileExistsError:
                # So too, between two looks at it; unless something else stands there.
                if self._home.is_file() or self._home.is_symlink():
                    raise
                continue
            wait_for_flock(lock)
            # Somebody may have swept it away as a dead process's before it was locked.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(lock).st_ino:
                    return lock
            os.close(lock)

    def _sweep(self) -> None:
        """Remove what processes left that were killed."""
        for entry in os.listdir(self._home):
            token = entry.removesuffix(_LOCK)
            if token == self._token:
                continue
            path = self._home / f"{token}{_LOCK}"
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if try_flock(fd):
                        remove_tree(self._home / token)
                        os.unlink(path)
                finally:
                    os.close(fd)
