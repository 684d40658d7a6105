"""Which attempts of a pod have stalled: `run_state/stalls.py`, asked of those that run, not of the whole workspace."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from dispatcher.base import files
from dispatcher.matrix.entry import Entry
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.participant import Shared
from dispatcher.run_state.progress import Progress
from dispatcher.run_state.stalls import Stalls, read_progress
from dispatcher.run_state.states import Record, State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


class StallWatch:
    """The attempts that a pod watches. What has been usual is learned from all jobs of the workspace that are done."""

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        self._shared = shared
        self._backlog = backlog
        self._layout = shared.config.now.layout
        self._stalls = Stalls(self._layout, shared.config.now)

    def stalled(self) -> dict[str, float | None]:
        """Each running attempt `job/attempt`, and for how many seconds it has stalled; None: it has not."""
        attempts, entries = self._shared.attempts, self._backlog.manifest.entries
        running = {one.key.job_id: one.key.number for one in attempts if one.has_begun and one.ended is None}
        self._stalls.config = self._shared.config.now
        found = self._stalls.find(_Running(self._shared.store, self._layout, running, entries))
        return {f"{job}/{number}": found.get(job) for job, number in running.items()}


class _Running:
    """What Stalls asks. Files are read only of those that are asked for: most are known to have reported lately."""

    def __init__(self, store: Store, layout: Layout, running: Mapping[str, int], entries: Mapping[str, Entry]) -> None:
        self._store = store
        self._running = running
        self.entries = entries
        self.progress: Mapping[str, Progress] = _Reported(layout, running)
        # Reports are dated by the file server.
        self.now_s = files.server_now_s(layout.run_state) if running else time.time()

    @property
    def records(self) -> Mapping[str, Record]:
        return self._store.records

    def jobs_in(self, *_: State) -> list[str]:
        return [job for job in self._running if job in self._store.records]

    def latest(self, state: State, most: int) -> Sequence[str]:
        return self._store.records.by_state().latest(state, most)


class _Reported(Mapping[str, Progress]):
    """What running attempts have reported, read when it is asked for."""

    def __init__(self, layout: Layout, running: Mapping[str, int]) -> None:
        self._layout = layout
        self._running = running

    def __getitem__(self, job: str) -> Progress:
        found = read_progress(self._layout.attempt(job, self._running[job]).progress)
        if found is None:
            raise KeyError(job)
        return found

    def __iter__(self) -> Iterator[str]:
        return (job for job in self._running if job in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, job: object) -> bool:
        return self.get(str(job)) is not None
