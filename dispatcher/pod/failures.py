"""Jobs that have failed for good, where a pod or a method is to stop for so many of them. Pure.

`--max-fails N` of a pod: jobs that it may claim and that have failed since it started, whichever pod ran them. Once N
have, it stays so. `max_fails: N` of a method: jobs that are failed now; requeued and cancelled ones are not. What a
person has marked as failed counts in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dispatcher.base.messages import counted, first_names
from dispatcher.config import Config
from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, Record, State


class Failed(NamedTuple):
    """A job that is failed. `is_mine`: this pod may claim it; `method` None: nobody knows."""

    job: str
    record: Record
    method: str | None
    is_mine: bool


class Failures:
    """Kept change by change. `limit` None: the pod goes on however many fail."""

    def __init__(self, limit: int | None, config: Config) -> None:
        self._limit: Final = limit
        self._of_methods: Final = {
            method.name: method.max_fails for method in config.methods.values() if method.max_fails is not None
        }
        # The attempt with which each job failed that is failed now, and the jobs of each method.
        self._failed: dict[str, int] = {}
        self._by_method: dict[str, dict[str, None]] = {}
        self._since_start: dict[str, None] = {}
        self._has_begun = False

    def __bool__(self) -> bool:
        """Whether anything stops for failures."""
        return self._limit is not None or bool(self._of_methods)

    def begin(self, failed: Iterable[Failed]) -> None:
        """All jobs that are failed; those that were so the first time have failed before the pod started."""
        found = {one.job: one for one in failed}
        for job in self._failed.keys() - found.keys():
            self.note(job, None, None, is_mine=False)
        for job, one in found.items():
            self.note(job, one.record, one.method, is_mine=one.is_mine and self._has_begun)
        self._has_begun = True

    def note(self, job: str, record: Record | None, method: str | None, *, is_mine: bool) -> None:
        """The record of a job has changed. See Failed."""
        if not self:
            return
        before = self._failed.get(job)
        if record is None or record.state is not State.FAILED or record.reason == BY_HAND:
            if before is not None:
                del self._failed[job]
                for jobs in self._by_method.values():
                    jobs.pop(job, None)
                if record is not None and record.state in IN_FLIGHT and record.attempt == before:
                    # The transaction that had recorded the end has failed.
                    self._since_start.pop(job, None)
        elif before != record.attempt:
            self._failed[job] = record.attempt
            if method in self._of_methods:
                self._by_method.setdefault(method, {})[job] = None
            if is_mine:
                self._since_start[job] = None

    def why_stop(self) -> str:
        """Why this pod claims nothing more; empty when it does."""
        if self._limit is None or len(self._since_start) < self._limit:
            return ""
        return f"--max-fails {self._limit}: {_failed_text(self._since_start)}"

    def why_pause(self, method: str) -> str | None:
        """Why claiming of a method is to be paused; None when it is not."""
        most, failed = self._of_methods.get(method), self._by_method.get(method, {})
        return None if most is None or len(failed) < most else f"max_fails {most}: {_failed_text(failed)}"


def _failed_text(jobs: Mapping[str, None]) -> str:
    return f"{counted(len(jobs), 'job')} failed ({first_names(list(jobs))})"
