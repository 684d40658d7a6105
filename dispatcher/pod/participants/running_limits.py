"""Limits on what runs at once (`max_running`): the attempts of all pods that count in them are kept here."""

from __future__ import annotations

import time
from typing import Any, Final

from dispatcher.matrix.limits import Limits
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.in_flight import AttemptEntries, InFlight
from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.run_state.states import IN_FLIGHT, Record

# How soon, and how late at most, it is tried again to read what an attempt of another manifest runs with.
_FIRST_READ_S: Final = 0.1
_LONGEST_READ_S: Final = 30.0
_SHOWN: Final = 3


class RunningLimits(Participant):
    """Counts what is in flight, change by change."""

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        self._shared = shared
        self._backlog = backlog
        self._entries = AttemptEntries()
        self._next_read_s, self._read_pause_s = 0.0, 0.0
        # What was last logged about the entries.
        self._warnings: list[str] = []
        self.follow_config()

    def follow_config(self) -> None:
        self._in_flight = InFlight(Limits.of(self._shared.config.now))

    def follow_entries(self, *, is_new: bool) -> None:
        """Limits on keys that no entry has are probably misspelt."""
        warnings = self._in_flight.limits.unknown(self._backlog.manifest.entries.values())
        for text in warnings if warnings != self._warnings else ():
            self._shared.log(f"warning: {text}")
        self._warnings = warnings

    def facts(self) -> dict[str, Any]:
        return {"in_flight": self._in_flight}

    def note(self, job: str, record: Record | None) -> None:
        self._entries.note(self._in_flight, job, record, self._backlog.entry(job))

    def note_all(self) -> None:
        self._in_flight.clear()
        records = self._shared.records
        for job in [job for job, state in records.states() if state in IN_FLIGHT] if self._in_flight.limits else ():
            self.note(job, records[job])

    def look(self, now: Pass) -> None:
        """Find out what attempts of other manifests run with, where limits depend on it; not under the lock."""
        unknown = self._in_flight.unknown
        if not (now.claiming and unknown) or time.monotonic() < self._next_read_s:
            return
        for job in sorted(unknown):
            record = self._shared.records.get(job)
            if record is not None:
                self._entries.load(self._shared.store.layout, job, record.attempt)
            self.note(job, record)
        # It is written a moment after the claim.
        pause_s = min(2 * self._read_pause_s or _FIRST_READ_S, _LONGEST_READ_S) if unknown else 0.0
        self._read_pause_s, self._next_read_s = pause_s, time.monotonic() + pause_s

    def due_in_s(self, *, claiming: bool) -> float | None:
        return self._next_read_s - time.monotonic() if claiming and self._in_flight.unknown else None

    def notes(self) -> list[str]:
        unknown = self._in_flight.unknown if self._read_pause_s >= _LONGEST_READ_S else set()
        return [
            f"max_running: {job} counts in every limit, because its attempt has no readable entry.json"
            for job in sorted(unknown)[:_SHOWN]
        ]
