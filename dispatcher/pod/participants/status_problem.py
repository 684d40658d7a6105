"""Reports a problem of the status file once, and not while a program is in the middle of saving the file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dispatcher.base.file_identity import Identity
from dispatcher.pod.participant import Ending, Participant, Pass
from dispatcher.run_state.store import Store

# A script that saves the file truncates it first and writes it in pieces. A problem is reported only when it lasts.
_SAVE_S: Final = 2.0


class StatusProblem(Participant):
    """The status file was edited, or cannot be read.

    `reported` is the problem that was reported last; empty when the file is in order.
    """

    def __init__(self, store: Store, log: Callable[[str], None]) -> None:
        self.reported = ""
        self._store = store
        self._log = log
        self._file: tuple[str, Identity | None] | None = None
        self._since_s = 0.0

    def has_news(self) -> bool:
        identity = self._store.status_identity()
        return identity not in (self._store.expected_projection, self._store.examined)

    def due_in_s(self, *, claiming: bool = False) -> float | None:
        """Seconds until a problem is to be reported; None when there is none."""
        problem, now_s = self._store.problem, time.monotonic()
        if problem is None or problem == self.reported:
            return None
        if self._file != (problem, self._store.examined):
            self._file, self._since_s = (problem, self._store.examined), now_s
        return max(0.0, self._since_s + _SAVE_S - now_s)

    def after(self, now: Pass) -> None:
        self._report()

    def finish(self, ending: Ending) -> None:
        self._report(at_once=True)

    def notes(self) -> list[str]:
        return [self.reported] if self.reported else []

    def _report(self, *, at_once: bool = False) -> None:
        problem = self._store.problem
        if problem is None:
            self.reported, self._file = "", None
        elif self.due_in_s() == 0.0 or (at_once and problem != self.reported):
            self.reported = problem
            self._log(f"warning: {problem}")
