"""The journal's descriptor, open for writing, which stays open from one transaction to the next."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from dispatcher.base import files

# How often it is checked on a network filesystem, where that takes two calls of the server, that the open file still
# has its name. The protocol never renames or replaces a journal: only a person does, and dispatchers that run meanwhile
# lose to that person in any case.
_LOOK_S: Final = 1.0


class OpenJournal:
    """The open file of one generation.

    To open a file does nothing for an NFS client that taking a lock on it does not do: both make it forget what it has
    cached. So the descriptor is kept wherever each transaction locks the journal, too (`ClaimsLock.guard`), and on
    local disks. Elsewhere `close` it after each transaction.
    """

    def __init__(self, *, network: bool) -> None:
        self.fd = -1
        self._network = network
        self._path: Path | None = None
        self._name = ""
        self._file = (0, 0)
        self._next_look_s = 0.0

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    def open(self, path: Path) -> int:
        """The descriptor of the file at `path`; FileNotFoundError without one."""
        if self.fd >= 0 and not (path is self._path and self._has_its_name()):
            self.close()
        if self.fd < 0:
            if self._network:
                files.refresh_names(path.parent)
            self.fd = files.open_existing(path, os.O_RDWR)
            found = os.fstat(self.fd)
            self._path, self._name, self._file = path, os.fspath(path), (found.st_dev, found.st_ino)
            self._next_look_s = time.monotonic() + _LOOK_S
        return self.fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _has_its_name(self) -> bool:
        if self._network:
            now_s = time.monotonic()
            if now_s < self._next_look_s:
                return True
            self._next_look_s = now_s + _LOOK_S
        try:
            if self._network:
                files.refresh_names(os.path.dirname(self._name))
            found = os.stat(self._name)
        except OSError:
            # Opening it says what is wrong.
            return False
        return (found.st_dev, found.st_ino) == self._file
