"""A store that changes nothing: its transactions happen in this process's memory alone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from dispatcher.base import files
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.prepared import PreparedClaims
from dispatcher.run_state.preview import Preview, preview
from dispatcher.run_state.store import Store
from dispatcher.run_state.transaction import Transaction
from dispatcher.workspace import AttemptPaths, attempt_numbers


class Rehearsal(Store):
    """As the run state is when `begin` reads it; what transactions change since counts for this object."""

    _has_begun = False

    def begin(self) -> Preview:
        """Read everything, with the hand edits that a transaction would apply, or a status file without a journal."""
        found = preview(self)
        self._has_begun = True
        for job in (*found.edited, *found.adopted):
            self.records.put(job, found.records[job], found.records.born(job) or 0)
        return found

    def refresh(self, *, to_the_end: bool = False, for_display: bool = False) -> None:
        """Once: what others append meanwhile would have the numbers of lines that were never written."""
        if not self._has_begun:
            super().refresh(to_the_end=to_the_end, for_display=for_display)

    @contextlib.contextmanager
    def transaction(self, timeout_s: float = 120.0) -> Iterator[Transaction]:
        tx = _Rehearsed(self.fold, self.layout, self.by, now_text(time.time()), PreparedClaims(self.layout, b""))
        try:
            yield tx
        except BaseException:
            tx.undo()
            raise
        tx.end(undone=False)


class _Rehearsed(Transaction):
    def make_attempt(self, job: str, attempt: int) -> AttemptPaths | None:
        """Its paths; None when it or a later one exists."""
        paths = self._layout.attempt(job, attempt)
        with (
            files.storing("looking for attempts of", self._layout.job_dir(job)),
            contextlib.suppress(FileNotFoundError),
        ):
            if any(number >= attempt for number in attempt_numbers(os.listdir(paths.directory.parent))):
                return None
        return paths
