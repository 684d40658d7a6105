"""Copies of the code for jobs with `snapshot: true`: taken and extracted by a child process, then journalled.

The code is taken for jobs that were queued before the child began. One copy serves all of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any, Final

from dispatcher.base.programs import Finished
from dispatcher.errors import CodeError, OutletError, StorageError
from dispatcher.outlets.code import copies
from dispatcher.outlets.code.command import copy_words, read_snapshot
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.outlets.remote.programs import Program
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.needed_copies import NEW, NeededCopies
from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import Record, State
from dispatcher.run_state.store import Transaction

# git may have to run filters.
_LIMIT_S: Final = 900.0
_TRY_AGAIN_S: Final = 10.0
# How many jobs get their copy in one transaction, so that no other pod waits long for the lock.
_BATCH: Final = 1_000
_OUT_OF_TIME: Final = "took longer than 15 minutes"


class CodeCopies(Participant):
    """The copies of the code for one pod. `there` are the names of those that can be run.

    `problems` are why others cannot be had, by name; NEW: why none can be taken.
    """

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        self.there: set[str] = set()
        self.problems: dict[str, str] = {}
        self._shared = shared
        self._layout = shared.config.now.layout
        self._backlog = backlog
        if shared.options.addition is not None and shared.options.addition.code:
            self.there.add(shared.options.addition.code)
        # By the copy that each makes: at most one takes a copy, and one extracts another, which needs no git.
        self._programs: dict[str, Program] = {}
        # The jobs for which a copy is taken, with the `rev` that they had then.
        self._wanted: dict[str, int] = {}
        # The copy that was taken last, and the jobs that get it.
        self._taken = NEW
        self._news: dict[str, int] = {}
        self._written: list[str] = []
        self._not_before_s: dict[str, float] = {}

    def act(self, now: Pass) -> None:
        """Take in what was made, and begin what is lacked next; never waits."""
        if not now.claiming:
            return
        queue = self._backlog.queue
        found = self._take_in()
        for name in self.problems.keys() - set(queue.needed_copies.names):
            del self.problems[name]
        found = found or self._begin(queue.needed_copies, self._shared.records)
        if found:
            queue.note_copy(found)

    def has_news(self) -> bool:
        """Whether jobs get a copy that is not in the journal yet."""
        return bool(self._news)

    def has_more(self) -> bool:
        return self.has_news()

    def is_busy(self) -> bool:
        return bool(self._programs) or self.has_news()

    def record(self, now: Pass, tx: Transaction) -> None:
        """Record the copy that was taken in the records of jobs that were not queued again meanwhile."""
        self._written = list(itertools.islice(self._news, _BATCH))
        for job in self._written:
            record = tx.record(job)
            if record is not None and record.state is State.QUEUED and record.rev == self._news[job]:
                tx.change(job, Event.CODE_KEPT, Change(snapshot=self._taken))

    def commit(self, tx: Transaction) -> None:
        for job in self._written:
            del self._news[job]
        self._written = []

    def roll_back(self) -> None:
        self._written = []

    def facts(self) -> dict[str, Any]:
        # A dry run takes no copies: its jobs are as ready as a start would make them.
        return {} if self._shared.is_dry else {"wants_copy": self._backlog.wants_copy, "copies": self.there}

    def offered(self) -> dict[str, Any]:
        return {"code_problems": self.problems}

    def use(self, name: str) -> CodeSnapshot:
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
        return [fd for program in self._programs.values() for fd in program.wait_fds()]

    def due_in_s(self, *, claiming: bool) -> float | None:
        if not claiming:
            return None
        if self.has_news():
            return 0.0
        now_s = time.monotonic()
        waits = [
            at_s - now_s
            for name, at_s in self._not_before_s.items()
            if name in self.problems and self._has_room_for(name)
        ]
        waits += [due_s for program in self._programs.values() if (due_s := program.due_in_s()) is not None]
        return max(0.0, min(waits)) if waits else None

    def close(self) -> None:
        for program in self._programs.values():
            program.close()

    def _take_in(self) -> str:
        """Take in what has ended; the name of a copy that was made. One at a time: the descriptors of others tell."""
        for name, program in list(self._programs.items()):
            finished = program.poll()
            if finished is not None:
                del self._programs[name]
                if made := self._made(name, finished):
                    return made
        return ""

    def _made(self, name: str, finished: Finished) -> str:
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
            self._taken, self._news = snapshot.label, dict(self._wanted)
        return snapshot.label

    def _begin(self, needed: NeededCopies, records: Mapping[str, Record]) -> str:
        """Begin what is due; the name of a copy that another process has made already."""
        now_s = time.monotonic()
        for name in list(needed.names):
            if self._has_room_for(name) and self._not_before_s.get(name, 0.0) <= now_s:
                found = self._begin_one(name, needed, records)
                if found:
                    return found
        return ""

    def _has_room_for(self, name: str) -> bool:
        """Whether a program may begin to make this copy."""
        if name == NEW:
            return NEW not in self._programs and not self._news
        return not self._programs.keys() - {NEW}

    def _begin_one(self, name: str, needed: NeededCopies, records: Mapping[str, Record]) -> str:
        try:
            if name != NEW and copies.is_extracted(self._layout, name):
                self.there.add(name)
                return name
            self._programs[name] = Program(copy_words(self._layout, name), limit_s=_LIMIT_S)
        except (CodeError, OutletError, StorageError) as error:
            self._fail(name, str(error))
            return ""
        if name == NEW:
            # One that was deleted just now has no record.
            self._wanted = {job: record.rev for job in needed.jobs(NEW) if (record := records.get(job)) is not None}
        return ""

    def _fail(self, name: str, why: str) -> None:
        if self.problems.get(name) != why:
            self._shared.log(f"warning: jobs wait for a copy of the code (snapshot): {why}")
        self.problems[name] = why
        self._not_before_s[name] = time.monotonic() + _TRY_AGAIN_S
