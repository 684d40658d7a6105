"""What jobs have written as results: numbers by name and job, read little by little.

Each result is a file. Of 100,000 jobs that is a minute of reading on a file server, so the first screen does not wait
for it: it says how many are known of how many. A file is read once for each time that the job's record has changed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, TypeVar

from dispatcher.errors import UsageError
from dispatcher.query.numbers import finite_number
from dispatcher.query.results.rows import methods_without, no_value_text
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.states import IN_FLIGHT

# How long one step may take, so that requests are answered between two of them.
STEP_S: Final = 0.05

M = TypeVar("M", bound=Hashable)
Read = Callable[[Snapshot, str], Mapping[str, Any] | None]


class KnownResults:
    """The numbers in the results of all jobs that have succeeded. `read` gives a job's result, None without one."""

    def __init__(self, read: Read) -> None:
        self.by_name: dict[str, dict[str, float]] = {}
        # By name, the jobs whose result has something else there: null, as NaN is in JSON, or a text.
        self.others: dict[str, set[str]] = {}
        self.known: set[str] = set()
        # Changes when a number does.
        self.version = 0
        self._read = read
        self._queue: deque[str] = deque()
        self._queued: set[str] = set()

    def follow(self, snapshot: Snapshot, changed: Iterable[str] | None) -> None:
        """Read the results of these jobs again, None: of all."""
        if changed is None:
            gone = self.known.difference(snapshot.records)
            for job in gone:
                self._forget(job)
            # Those that were done last are of the most interest.
            states = [state for state in type(next(iter(IN_FLIGHT))) if state not in IN_FLIGHT]
            changed = reversed(snapshot.jobs_in(*states))
        for job in changed:
            if job not in self._queued and job in snapshot.records:
                self._queued.add(job)
                self._queue.append(job)

    @property
    def pending(self) -> int:
        """How many jobs were not asked yet."""
        return len(self._queue)

    def step(self, snapshot: Snapshot) -> None:
        """Read some of what is to be read."""
        end_s = time.monotonic() + STEP_S
        while self._queue and time.monotonic() < end_s:
            job = self._queue.popleft()
            self._queued.discard(job)
            if job in snapshot.records:
                self._note(job, self._read(snapshot, job))

    def numbers(self, name: str) -> Mapping[str, float]:
        """The numbers of this name by job. Raises UsageError for a name that no result has."""
        found = self.by_name.get(name)
        if found is None and not self.pending:
            raise UsageError(no_value_text(name, self.names()))
        return found or {}

    def names(self) -> list[str]:
        """The names of results, the most frequent first."""
        return sorted((name for name, of in self.by_name.items() if of), key=lambda name: -len(self.by_name[name]))

    def methods_without(self, name: str, methods: Mapping[str, M]) -> set[M]:
        """Those of these methods, of each job, that report results, but never this one: see methods_without."""
        reporting = [job for job in methods if job in self.known]
        numbers, others = self.by_name.get(name, {}), self.others.get(name, ())
        having = (job for job in reporting if job in numbers or job in others)
        return methods_without(map(methods.__getitem__, reporting), map(methods.__getitem__, having))

    def _note(self, job: str, result: Mapping[str, Any] | None) -> None:
        given = result or {}
        # What counts in a mean.
        numbers = {name: number for name in given if (number := finite_number(given, name)) is not None}
        if job in self.known:
            self._forget(job, keep=numbers)
        if result is not None:
            self.known.add(job)
        for name in given.keys() - numbers.keys():
            self.others.setdefault(name, set()).add(job)
        for name, number in numbers.items():
            of = self.by_name.setdefault(name, {})
            if of.get(job) != number:
                of[job] = number
                self.version += 1

    def _forget(self, job: str, keep: Mapping[str, float] | None = None) -> None:
        self.known.discard(job)
        for jobs in self.others.values():
            jobs.discard(job)
        for name, of in self.by_name.items():
            if name not in (keep or {}) and of.pop(job, None) is not None:
                self.version += 1
