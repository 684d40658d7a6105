"""Jobs that have failed for good, where a pod is to stop for so many of them: `--max-fails N`. Pure.

Jobs count that the pod may claim and that have failed since it started, whichever pod ran them. Once N have, it stays
so. What a person has marked as failed does not count. breaker.py has `max_fails` of methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from dispatcher.base.messages import counted, first_names
from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, Record, State


class Failed(NamedTuple):
    """A job that is failed. `is_mine`: this pod may claim it."""

    job: str
    record: Record
    is_mine: bool


class Failures:
    """Kept change by change. `limit` None: the pod goes on however many fail."""

    def __init__(self, limit: int | None) -> None:
        self._limit: Final = limit
        # The attempt with which each job failed that is failed now.
        self._failed: dict[str, int] = {}
        self._since_start: dict[str, None] = {}
        self._has_begun = False

    def __bool__(self) -> bool:
        """Whether the pod stops for failures."""
        return self._limit is not None

    def begin(self, failed: Iterable[Failed]) -> None:
        """All jobs that are failed; those that were so the first time have failed before the pod started."""
        found = {one.job: one for one in failed}
        for job in self._failed.keys() - found.keys():
            self.note(job, None, is_mine=False)
        for job, one in found.items():
            self.note(job, one.record, is_mine=one.is_mine and self._has_begun)
        self._has_begun = True

    def note(self, job: str, record: Record | None, *, is_mine: bool) -> None:
        """The record of a job has changed. See Failed."""
        if not self:
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
            if is_mine:
                self._since_start[job] = None

    def why_stop(self) -> str:
        """Why this pod claims nothing more; empty when it does."""
        if self._limit is None or len(self._since_start) < self._limit:
            return ""
        jobs = list(self._since_start)
        return f"--max-fails {self._limit}: {counted(len(jobs), 'job')} failed ({first_names(jobs)})"
