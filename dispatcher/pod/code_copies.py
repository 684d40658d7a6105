"""Copies of the code for jobs with `snapshot: true`: taken and extracted by a child process, then journalled.

The code is taken for jobs that were queued before the child began. One copy serves all of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Final

from dispatcher.errors import CodeError, OutletError, StorageError
from dispatcher.outlets.code import copies
from dispatcher.outlets.code.command import copy_words, read_snapshot
from dispatcher.outlets.code.snapshot import Snapshot
from dispatcher.outlets.remote.programs import Program
from dispatcher.pod.needed_copies import NEW, NeededCopies
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import Record, State
from dispatcher.run_state.store import Transaction
from dispatcher.workspace import Layout

# git may have to run filters.
_LIMIT_S: Final = 900.0
_TRY_AGAIN_S: Final = 10.0
# How many jobs get their copy in one transaction, so that no other pod waits long for the lock.
_BATCH: Final = 1_000
_OUT_OF_TIME: Final = "took longer than 15 minutes"


class CodeCopies:
    """The copies of the code for one pod. `there` are the names of those that can be run.

    `problems` are why others cannot be had, by name; NEW: why none can be taken.
    """

    def __init__(self, layout: Layout, log: Callable[[str], None]) -> None:
        self.there: set[str] = set()
        self.problems: dict[str, str] = {}
        self._layout = layout
        self._log = log
        self._program: Program | None = None
        # The copy that the program makes; the jobs for which it takes one, with the `rev` that they had then.
        self._making = NEW
        self._wanted: dict[str, int] = {}
        # The copy that was taken last, and the jobs that get it.
        self._taken = NEW
        self._news: dict[str, int] = {}
        self._written: list[str] = []
        self._not_before_s: dict[str, float] = {}

    @property
    def has_news(self) -> bool:
        """Whether jobs get a copy that is not in the journal yet."""
        return bool(self._news)

    @property
    def is_busy(self) -> bool:
        return self._program is not None or self.has_news

    def work(self, needed: NeededCopies, records: Mapping[str, Record]) -> str:
        """Take in what was made, and begin what is lacked next; never waits. The copy that is there now, else empty."""
        found = self._take_in()
        for name in self.problems.keys() - set(needed.names):
            del self.problems[name]
        if self._program is None and not self._news:
            found = found or self._begin(needed, records)
        return found

    def record(self, tx: Transaction) -> None:
        """Record the copy that was taken in the records of jobs that nobody has queued again meanwhile."""
        self._written = list(itertools.islice(self._news, _BATCH))
        for job in self._written:
            record = tx.record(job)
            if record is not None and record.state is State.QUEUED and record.rev == self._news[job]:
                tx.change(job, Event.CODE_KEPT, Change(snapshot=self._taken))

    def commit(self) -> None:
        """The transaction has succeeded."""
        for job in self._written:
            del self._news[job]
        self._written = []

    def roll_back(self) -> None:
        """The transaction has failed."""
        self._written = []

    def use(self, name: str) -> Snapshot:
        """The copy for an attempt that starts. Raises CodeError, and StorageError where its directory is gone."""
        try:
            snapshot = copies.kept(self._layout, name)
        except CodeError:
            # Else jobs would be claimed for it again and again.
            self.there.discard(name)
            raise
        place = self._layout.code_copy(snapshot.digest)
        if not place.is_dir():
            self.there.discard(name)
            raise StorageError(f"{place}: the copy of the code was removed; it is extracted again")
        copies.note_use(self._layout, name)
        return snapshot

    def wait_fds(self) -> list[int]:
        return [] if self._program is None else self._program.wait_fds()

    def due_in_s(self) -> float | None:
        """Seconds until `work` has something to do although no descriptor is readable; None when never."""
        if self._program is not None:
            return self._program.due_in_s()
        if self.has_news:
            return 0.0
        waits = [at_s - time.monotonic() for name, at_s in self._not_before_s.items() if name in self.problems]
        return max(0.0, min(waits)) if waits else None

    def close(self) -> None:
        if self._program is not None:
            self._program.close()

    def _take_in(self) -> str:
        finished = None if self._program is None else self._program.poll()
        if finished is None:
            return ""
        self._program = None
        name, wanted = self._making, self._wanted
        try:
            if finished.killed_because:
                raise CodeError(_OUT_OF_TIME)
            snapshot = read_snapshot(finished.exit_code, finished.out, finished.err)
        except CodeError as error:
            self._fail(name, str(error))
            return ""
        self._not_before_s.pop(name, None)
        self.problems.pop(name, None)
        self.there.add(snapshot.label)
        if name == NEW:
            self._taken, self._news = snapshot.label, dict(wanted)
        return snapshot.label

    def _begin(self, needed: NeededCopies, records: Mapping[str, Record]) -> str:
        """Begin what is due; the name of a copy that another process has made already."""
        now_s = time.monotonic()
        name = next((name for name in needed.names if self._not_before_s.get(name, 0.0) <= now_s), None)
        if name is None:
            return ""
        try:
            if name != NEW and copies.is_extracted(self._layout, name):
                self.there.add(name)
                return name
            self._program = Program(copy_words(self._layout, name), limit_s=_LIMIT_S)
        except (CodeError, OutletError, StorageError) as error:
            self._fail(name, str(error))
            return ""
        self._making = name
        jobs = needed.jobs(NEW) if name == NEW else ()
        # One that was deleted just now has no record.
        self._wanted = {job: record.rev for job in jobs if (record := records.get(job)) is not None}
        return ""

    def _fail(self, name: str, why: str) -> None:
        if self.problems.get(name) != why:
            self._log(f"warning: jobs wait for a copy of the code (snapshot): {why}")
        self.problems[name] = why
        self._not_before_s[name] = time.monotonic() + _TRY_AGAIN_S
