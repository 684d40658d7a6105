"""What a claim needs and can be had before the lock is taken: the folder of its job, and the claimant's file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dispatcher import contract
from dispatcher.base import files
from dispatcher.errors import StorageError
from dispatcher.workspace import Layout

# More claims than that in one transaction are rare.
_MOST: Final = 16


class PreparedClaims:
    """Files with the text `claimant` that wait to be moved into the directories of new attempts.

    Their names tell the next pod of this host to remove them when this process was killed.
    """

    def __init__(self, layout: Layout, claimant: bytes) -> None:
        self._layout = layout
        self._claimant = claimant
        self._ready: list[str] = []
        # Directories of attempts may be on another disk, or have a quota of their own.
        self._can_move = True

    def prepare(self, jobs: Iterable[str], count: int) -> None:
        """Outside the lock, for `count` claims, which will probably be of `jobs`.

        What fails here fails again in the claim, which then reports it.
        """
        with contextlib.suppress(OSError, StorageError), files.shared_umask(self._layout.root):
            for job in jobs:
                # Most are claimed for the first time; the layout keeps these paths, too.
                first = self._layout.attempt(job, 1)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(first.claimant.parent.parent)
            while self._can_move and len(self._ready) < min(count, _MOST):
                self._ready.append(self._write())

    def write_claimant(self, path: Path) -> None:
        """Under the lock: the claimant's file in the directory of a new attempt, which has no other file yet."""
        if not (self._ready and self._move(self._ready.pop(), path)):
            files.write_new(path, self._claimant)

    def _move(self, prepared: str, path: Path) -> bool:
        try:
            os.rename(prepared, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(prepared)
            if error.errno == errno.EXDEV:
                self._can_move = False
                self.close()
            return False
        return True

    def _write(self) -> str:
        path = os.fspath(files.temporary_name(self._layout.prepared_dir / contract.ALIVE_FILE))
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._layout.prepared_dir)
        try:
            files.create_file(path, self._claimant, durable=False)
        except OSError:
            # The disk is full: half a name would be worse than none.
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return path

    def close(self) -> None:
        """Remove what no claim has used."""
        while self._ready:
            with contextlib.suppress(OSError):
                os.unlink(self._ready.pop())
