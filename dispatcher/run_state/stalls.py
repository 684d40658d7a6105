"""Running jobs that have reported nothing for longer than usual.

A job's silence is the time since it last replaced `progress.json`, or else since its wrapper began to run it or its
script last wrote the metrics that its method names. It is stalled when it has been silent for longer than `stall_after`
of its method or of dispatcher.yaml. Without that setting, longer than three times the longest silence that attempts of
its method have ended with a report, and at least five minutes: of the attempts that run, and of those that were done
last. `report_progress` writes that longest silence into `progress.json`. Where no attempt of a method tells one,
nothing is said.

Only to be shown and told.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from dispatcher.base import files
from dispatcher.base.outputs import read_outputs
from dispatcher.config import Config
from dispatcher.matrix.entry import Entry
from dispatcher.run_state.progress import Progress, parse_progress
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout

_TIMES_USUAL: Final = 3.0
_SHORTEST_S: Final = 300.0
# So many attempts of a method are asked for their longest silence, of so many jobs that were done last.
_ATTEMPTS: Final = 20
_LATEST: Final = 1_000


class Jobs(Protocol):
    """The jobs among which some have stalled; a snapshot of the workspace is one such view."""

    @property
    def records(self) -> Mapping[str, Record]: ...

    @property
    def entries(self) -> Mapping[str, Entry]: ...

    @property
    def progress(self) -> Mapping[str, Progress]:
        """What running jobs have reported."""
        ...

    @property
    def now_s(self) -> float:
        """By the clock of the file server."""
        ...

    def jobs_in(self, *states: State) -> Iterable[str]: ...

    def latest(self, state: State, most: int) -> Iterable[str]:
        """The jobs in this state that changed last, the last one first."""
        ...


class Stalls:
    """Finds stalled jobs. The files of an attempt that has ended are read once."""

    def __init__(self, layout: Layout, config: Config) -> None:
        self._layout = layout
        self.config = config
        self._ended: dict[tuple[str, int], float | None] = {}

    def find(self, jobs: Jobs) -> dict[str, float]:
        """The stalled jobs, and for how many seconds each has been silent."""
        found: dict[str, float] = {}
        usual: dict[str, float | None] = {}
        for job in jobs.jobs_in(State.RUNNING):
            entry = jobs.entries.get(job)
            silent_s = self._silent_s(jobs, job)
            if entry is None or silent_s is None:
                continue
            of_method = self.config.method(entry.method).stall_after_s
            given = of_method or self.config.stall_after_s
            if silent_s <= (given or _SHORTEST_S):
                continue
            if entry.method not in usual:
                usual[entry.method] = self._longest_gap_s(jobs, entry.method)
            gap_s = usual[entry.method]
            if given is None:
                is_stalled = gap_s is not None and silent_s > _TIMES_USUAL * gap_s
            else:
                # The setting for all methods says nothing about those whose jobs never report.
                is_stalled = of_method is not None or gap_s is not None or job in jobs.progress
            if is_stalled:
                found[job] = silent_s
        return found

    def _silent_s(self, jobs: Jobs, job: str) -> float | None:
        """For how long the attempt has reported nothing; None when it is unknown since when it runs."""
        paths = self._layout.attempt(job, jobs.records[job].attempt)
        for path in (paths.progress, paths.taken):
            try:
                told_s = os.stat(path).st_mtime
            except OSError:
                continue
            if path == paths.taken:
                told_s = max(told_s, _logged_s(paths.directory))
            return max(0.0, jobs.now_s - told_s)
        return None

    def _longest_gap_s(self, jobs: Jobs, method: str) -> float | None:
        """The longest time between two reports of attempts of the method; None when no attempt tells one."""
        running = (jobs.progress[job].longest_gap_s for job in jobs.progress if _is_of(jobs, job, method))
        done = [job for job in jobs.latest(State.DONE, _LATEST) if _is_of(jobs, job, method)]
        ended = (self._ended_gap_s(job, jobs.records[job].attempt) for job in done[:_ATTEMPTS])
        return max((gap for gap in (*running, *ended) if gap is not None and gap >= 0), default=None)

    def _ended_gap_s(self, job: str, attempt: int) -> float | None:
        key = (job, attempt)
        if key not in self._ended:
            progress = read_progress(self._layout.attempt(job, attempt).progress)
            self._ended[key] = None if progress is None else progress.longest_gap_s
        return self._ended[key]


def _logged_s(directory: Path) -> float:
    """When the script has last logged metrics where its method says; 0 where that is not known."""
    try:
        table = read_outputs(directory).metrics
        return 0.0 if table is None else os.stat(directory / table.path).st_mtime
    except OSError:
        return 0.0


def read_progress(path: Path) -> Progress | None:
    """What an attempt has reported; None when it has reported nothing that can be read."""
    try:
        return parse_progress(files.read_at_once(path))
    except OSError:
        return None


def _is_of(jobs: Jobs, job: str, method: str) -> bool:
    entry = jobs.entries.get(job)
    return entry is not None and entry.method == method
