"""Which queued jobs lack the copy of the code that they run (`snapshot: true`). Pure.

A job lacks one that is to be taken when its record names none, also while it waits for others: the code counts as it
was when the job was queued. It lacks one that is to be extracted when the copy that its record names is not there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dispatcher.run_state.states import Record, State

# The name of a copy that is to be taken.
NEW: Final = ""


class NeededCopies:
    """The copies that jobs lack. `there` are the names of those that can be run, as they are now."""

    def __init__(self, there: Collection[str]) -> None:
        self._there = there
        self._wanting: set[str] = set()
        self._lacked: dict[str, str] = {}
        self._jobs: dict[str, dict[str, None]] = {}

    def add(self, job: str) -> None:
        """This job runs a copy; `update` must follow."""
        self._wanting.add(job)

    def update(self, job: str, record: Record | None) -> None:
        """The record of a job has changed."""
        if job not in self._wanting:
            return
        self._forget(job)
        name = record.snapshot or NEW if record is not None and record.state is State.QUEUED else None
        if name is not None and name not in self._there:
            self._lacked[job] = name
            self._jobs.setdefault(name, {})[job] = None

    def lacks(self, job: str) -> bool:
        """Whether the job cannot be claimed for lack of its copy."""
        return job in self._lacked

    @property
    def names(self) -> Collection[str]:
        """The copies that are lacked; NEW for one that is to be taken."""
        return self._jobs.keys()

    def jobs(self, name: str) -> Sequence[str]:
        """The jobs that lack this copy."""
        return list(self._jobs.get(name, ()))

    def found(self, name: str) -> Sequence[str]:
        """This copy is there: the jobs that have lacked it."""
        jobs = self.jobs(name)
        for job in jobs:
            self._forget(job)
        return jobs

    def _forget(self, job: str) -> None:
        name = self._lacked.pop(job, None)
        if name is not None:
            jobs = self._jobs[name]
            del jobs[job]
            if not jobs:
                del self._jobs[name]
