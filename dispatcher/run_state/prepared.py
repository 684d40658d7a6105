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
from dispatcher.workspace import Layout, attempt_numbers

# How many files wait at most: more claims than that in one transaction are rare.
_MOST: Final = 16


class PreparedClaims:
    """Files with the text `claimant` that wait to be moved into the directories of new attempts.

    Their names tell the next pod of this host to remove them when this process was killed.
    """

    def __init__(self, layout: Layout, claimant: bytes, *, network: bool = False) -> None:
        self._layout = layout
        self._claimant = claimant
        self._network = network
        # The jobs of the last call: their folders are there. `_new`: those of them that had no attempt then.
        self._jobs: frozenset[str] = frozenset()
        self._new: set[str] = set()
        self._ready: list[str] = []
        # How many are written the next time: twice as many each time that they have been used up. With the next sync, a
        # local disk writes the metadata of several new files as fast as that of one.
        self._batch = 1
        # Directories of attempts may be on another disk, or have a quota of their own.
        self._can_move = True

    def prepare(self, jobs: Iterable[str], count: int) -> None:
        """Outside the lock, for `count` claims, which will probably be of `jobs`.

        What fails here fails again in the claim, which then reports it.
        """
        with contextlib.suppress(OSError, StorageError), files.shared_umask(self._layout.root):
            before, self._jobs = self._jobs, frozenset(jobs)
            self._new &= self._jobs
            for job in self._jobs - before:
                self._make_folder(job)
            if self._can_move and len(self._ready) < min(count, _MOST):
                self._write_more(min(max(count, self._batch), _MOST) - len(self._ready))
                self._batch = 1 if self._network else min(2 * self._batch, _MOST)

    def _make_folder(self, job: str) -> None:
        # Most jobs are claimed for the first time; the layout keeps these paths, too.
        claimant = os.fspath(self._layout.attempt(job, 1).claimant)
        folder = os.path.dirname(os.path.dirname(claimant))
        try:
            os.mkdir(folder)
            has_attempts = False
        except FileExistsError:
            has_attempts = bool(attempt_numbers(os.listdir(folder)))
        if not has_attempts:
            self._new.add(job)
        if self._network:
            # The server is asked now, and not under the lock, whether this user may write there.
            os.access(folder, os.W_OK | os.X_OK)

    def is_new(self, job: str) -> bool:
        """Whether the job had no attempt when this process last looked, shortly ago."""
        return job in self._new

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

    def _write_more(self, count: int) -> None:
        name, ending = os.path.splitext(files.temporary_name(self._layout.prepared_dir / contract.ALIVE_FILE))
        for number in range(count):
            path = f"{name}{number:x}{ending}"
            try:
                self._write(path)
            except FileNotFoundError:
                os.mkdir(self._layout.prepared_dir)
                self._write(path)
            self._ready.append(path)

    def _write(self, path: str) -> None:
        try:
            # Not O_EXCL, for which an NFS client calls the server twice: no other file gets this name.
            files.write_new(path, self._claimant)
        except OSError:
            # The disk is full: half a name would be worse than none.
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    def close(self) -> None:
        """Remove what no claim has used."""
        while self._ready:
            with contextlib.suppress(OSError):
                os.unlink(self._ready.pop())
