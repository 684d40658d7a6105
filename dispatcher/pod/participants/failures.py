"""Jobs that have failed for good, where a pod is to stop for so many of them: `--max-fails N`.

Jobs count that the pod may claim and that have failed since it started, whichever pod ran them. Once N have, it stays
so. What a person has marked as failed does not count. breaker.py has `max_fails` of methods.
"""

from __future__ import annotations

from typing import Final

from dispatcher.base.messages import counted, first_names
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.participant import Obstacle, Participant, Shared
from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, Record, State


class Failures(Participant):
    """Lets the pod drain once so many jobs have failed."""

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        # None: the pod goes on however many fail.
        self._limit: Final = shared.options.max_fails
        self._shared = shared
        self._backlog = backlog
        # The attempt with which each job failed that is failed now.
        self._failed: dict[str, int] = {}
        self._since_start: dict[str, None] = {}
        self._has_begun = False

    def note_all(self) -> None:
        """Those that are failed the first time have failed before the pod started."""
        if self._limit is None:
            return
        records = self._shared.records
        found = records.by_state().jobs([State.FAILED])
        for job in self._failed.keys() - set(found):
            self.note(job, None)
        for job in found:
            self.note(job, records[job])
        self._has_begun = True

    def note(self, job: str, record: Record | None) -> None:
        if self._limit is None:
            return
        before = self._failed.get(job)
        if record is None or record.state is not State.FAILED or record.reason == BY_HAND:
            if before is not None:
                del self._failed[job]
                if record is not None and record.state in IN_FLIGHT and record.attempt == before:
                    # The transaction that had recorded the end has failed.
                    self._since_start.pop(job, None)
        elif before != record.attempt:
            self._failed[job] = record.attempt
            if self._has_begun and self._backlog.queue.may_claim(job):
                self._since_start[job] = None

    def obstacle(self) -> Obstacle | None:
        if self._limit is None or len(self._since_start) < self._limit:
            return None
        jobs = list(self._since_start)
        why = f"--max-fails {self._limit}: {counted(len(jobs), 'job')} failed ({first_names(jobs)})"
        return Obstacle(why, drains=True)
