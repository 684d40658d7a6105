"""The journal's descriptor, open for writing; on a local disk it stays open from one transaction to the next."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from dispatcher.base import files


class OpenJournal:
    """The open file of one generation.

    On a network filesystem, `close` it after each transaction: NFS clients make content current when a file is opened,
    and where it is open all the time they have shown zeros in place of what another host had appended.
    """

    def __init__(self, *, network: bool) -> None:
        self.fd = -1
        self._network = network
        self._path: Path | None = None
        self._file = (0, 0)

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    def open(self, path: Path, *, names_are_fresh: bool = False) -> int:
        """The descriptor of the file at `path`; FileNotFoundError without one.

        `names_are_fresh`: the folder need not be opened first on a network filesystem.
        """
        if self.fd >= 0 and not self._has_its_name(path):
            self.close()
        if self.fd < 0:
            if self._network and not names_are_fresh:
                files.refresh_names(path.parent)
            self.fd = files.open_existing(path, os.O_RDWR)
            if not self._network:
                found = os.fstat(self.fd)
                self._path, self._file = path, (found.st_dev, found.st_ino)
        return self.fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()

    def _has_its_name(self, path: Path) -> bool:
        if self._network or path != self._path:
            return False
        try:
            found = os.stat(path)
        except OSError:
            # Opening it says what is wrong.
            return False
        return (found.st_dev, found.st_ino) == self._file
