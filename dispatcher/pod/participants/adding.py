"""New jobs that a pod of `submit` queues in the very transaction in which it claims them."""

from __future__ import annotations

import math
import time

from dispatcher.pod.backlog import Backlog
from dispatcher.pod.options import Addition
from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Transaction


class Adding(Participant):
    """The `addition` of a pod, until its jobs are queued: before the claims. `held_lines`: what was held, and why."""

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        self.held_lines: list[str] = []
        self.rest = _Rest(self)
        self._shared = shared
        self._addition = shared.options.addition
        self._backlog = backlog
        self._is_due = False

    def look(self, now: Pass) -> None:
        """New jobs are claimed at once or not at all: a pod that drains queues none."""
        self._is_due = self._addition is not None and now.claiming and not self._must_wait(self._addition)
        now.may_free |= self._is_due

    def may_claim(self) -> bool:
        return self._is_due or self._addition is None

    def has_news(self) -> bool:
        return self._is_due

    def is_busy(self) -> bool:
        return self._addition is not None

    def record(self, now: Pass, tx: Transaction) -> None:
        self._is_due = self._is_due and not now.is_outdated
        if self._is_due and self._addition is not None:
            self._addition.append(self._shared.store, tx)
            self._backlog.sync()
            self._backlog.follow_submitted()

    def hold_rest(self, tx: Transaction) -> None:
        """Hold what was not claimed, where no other pod may run it."""
        if not self._is_due or self._addition is None or not self._addition.holds_rest:
            return
        self._backlog.sync()
        waiting = self._backlog.queue.waiting(now_text(time.time()))
        for job in sorted(self._shared.options.jobs or ()):
            record = tx.record(job)
            if record is not None and record.state is State.QUEUED:
                self.held_lines.append(f"{job} was not submitted, and is held: {waiting.why(job).text}")
                tx.change(job, Event.HELD, Change(state=State.HELD))

    def commit(self, tx: Transaction) -> None:
        if self._is_due and self._addition is not None:
            self._addition.added()
            self._addition = None

    def roll_back(self) -> None:
        """A pod that has failed to queue them ends, and does not queue them at its end."""
        self._is_due, self.held_lines = False, []

    def _must_wait(self, addition: Addition) -> bool:
        """Whether some outlet must tell first whether it can take the jobs: they are claimed at once or not at all."""
        outlets = self._shared.outlets.values()
        if any(outlet.capacity.outlook(request) == math.inf for outlet in outlets for request in addition.requests):
            return True
        is_full = all(outlet.capacity.is_full for outlet in outlets)
        return is_full and not all(outlet.is_up_to_date() for outlet in outlets)


class _Rest(Participant):
    """What is left of the new jobs after the claims."""

    def __init__(self, adding: Adding) -> None:
        self._adding = adding

    def record(self, now: Pass, tx: Transaction) -> None:
        self._adding.hold_rest(tx)
