"""New jobs that a pod of `submit` queues in the very transaction in which it claims them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from dispatcher.outlets.base import Outlet
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.options import PodOptions
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store, Transaction


class Adding:
    """The `addition` of a pod, True until its jobs are queued. `held` says which of them were held then, and why."""

    def __init__(self, options: PodOptions, outlets: Mapping[str, Outlet], backlog: Backlog) -> None:
        self.held: list[str] = []
        self._addition = options.addition
        self._jobs = sorted(options.jobs or ())
        self._outlets = outlets
        self._backlog = backlog

    def __bool__(self) -> bool:
        return self._addition is not None

    def must_wait(self) -> bool:
        """Whether some outlet must tell first whether it can take the jobs: they are claimed at once or not at all."""
        assert self._addition is not None
        outlets, requests = self._outlets.values(), self._addition.requests
        if any(outlet.capacity.outlook(request) == math.inf for outlet in outlets for request in requests):
            return True
        is_full = all(outlet.capacity.is_full for outlet in outlets)
        return is_full and not all(outlet.is_up_to_date() for outlet in outlets)

    def append(self, store: Store, tx: Transaction) -> None:
        """Queue the jobs."""
        assert self._addition is not None
        self._addition.append(store, tx)
        self._backlog.sync()
        self._backlog.follow_submitted()

    def hold_rest(self, tx: Transaction) -> None:
        """Hold what was not claimed, where no other pod may run it."""
        assert self._addition is not None
        if not self._addition.holds_rest:
            return
        self._backlog.sync()
        waiting = self._backlog.queue.waiting(now_text(time.time()))
        for job in self._jobs:
            record = tx.record(job)
            if record is not None and record.state is State.QUEUED:
                self.held.append(f"{job} was not submitted, and is held: {waiting.why(job).text}")
                tx.change(job, Event.HELD, Change(state=State.HELD))

    def commit(self) -> None:
        """The transaction has succeeded."""
        assert self._addition is not None
        self._addition.added()
        self._addition = None
