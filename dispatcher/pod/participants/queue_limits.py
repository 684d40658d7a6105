"""Attempts that wait longer in an outlet's queue than they may, and that another outlet of some pod can take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from dispatcher.base.messages import first_names
from dispatcher.base.times import parse_time
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import QUEUE_LIMIT, Key
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.offers import Offer, offers_of_others, request_of
from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.pod.placing import home_of
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.run_state.states import Record


class QueueLimits(Participant):
    """Withdraws them when the poll is due."""

    def __init__(self, shared: Shared, backlog: Backlog, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared = shared
        self._config = shared.config
        self._backlog = backlog
        self._clock = clock
        # For how long attempts had waited when they were first asked about, and when that was.
        self._waited: dict[Key, tuple[float, float]] = {}
        # What is over its limit and stays where it is, by outlet.
        self._staying: dict[str, list[str]] = {}

    def act(self, now: Pass) -> None:
        if not now.poll_is_due:
            return
        attempts, entries = self._shared.attempts, self._backlog.manifest.entries
        for attempt in self.over(attempts, entries, self._shared.records, time.time()):
            job, number = attempt.key.job_id, attempt.key.number
            self._shared.log(f"{job} (attempt {number}) waits too long in the queue of {attempt.outlet}: withdrawn")
            attempts.stop([attempt], QUEUE_LIMIT)

    def over(
        self,
        attempts: Iterable[RunningAttempt],
        entries: Mapping[str, Entry],
        records: Mapping[str, Record],
        now_s: float,
    ) -> list[RunningAttempt]:
        """Those of this pod's attempts that are to be taken back; `now_s` is the time of day."""
        self._staying = {}
        attempts = list(attempts)
        keys = {one.key for one in attempts}
        self._waited = {key: waited for key, waited in self._waited.items() if key in keys}
        found: list[RunningAttempt] = []
        late = [one for one in attempts if self._is_late(one, entries, records, now_s)]
        if not late:
            return found
        offers = self._offers()
        for attempt in late:
            job = attempt.key.job_id
            if self._can_move(entries[job], records[job], attempt.outlet, offers):
                found.append(attempt)
            else:
                self._staying.setdefault(attempt.outlet, []).append(job)
        return found

    def notes(self) -> list[str]:
        """Which attempts are over their limit and stay, for want of another outlet."""
        return [
            f"outlet {outlet}: {first_names(jobs)} over the queue limit, and no other outlet can take it"
            for outlet, jobs in self._staying.items()
        ]

    def _is_late(
        self, attempt: RunningAttempt, entries: Mapping[str, Entry], records: Mapping[str, Record], now_s: float
    ) -> bool:
        if not attempt.is_pending or attempt.is_stopping or attempt.ended is not None:
            return False
        entry, record = entries.get(attempt.key.job_id), records.get(attempt.key.job_id)
        if entry is None or record is None:
            return False
        limit_s = entry.queue_limit_s
        limit_s = self._config.now.method(entry.method).queue_limit_s if limit_s is None else limit_s
        if limit_s is None:
            return False
        key = attempt.key
        if key not in self._waited:
            # By the record, so that the time goes on when the dispatcher is restarted; from then on no clock that is
            # set makes it longer.
            since_s = parse_time(record.started_at) or now_s
            self._waited[key] = max(0.0, now_s - since_s), self._clock()
        waited_s, seen_s = self._waited[key]
        return waited_s + self._clock() - seen_s > limit_s

    def _offers(self) -> list[Offer]:
        """What the live pods take; of this one only the outlets with room."""
        mine, own = self._backlog.offer(), self._shared.outlets
        outlets = {name: outlet for name, outlet in mine.outlets.items() if not own[name].capacity.is_full}
        me, is_alive = self._shared.options.pod, self._shared.observer.pod_is_alive
        others = offers_of_others(self._config.now.layout, me, is_alive)
        return [msgspec.structs.replace(mine, outlets=outlets), *(offer for _, offer in others)]

    def _can_move(self, entry: Entry, record: Record, outlet: str, offers: Iterable[Offer]) -> bool:
        """Whether one of these offers has another outlet for the entry that can take it now."""
        request, home = request_of(self._config.now, entry), home_of(entry, record)
        on_move = self._config.now.method(entry.method).on_move
        for offer in offers:
            elsewhere = {name: one for name, one in offer.outlets.items() if name != outlet}
            other = msgspec.structs.replace(offer, outlets=elsewhere)
            if home is not None:
                other = other.that_see(entry, home, on_move)
            if other.outlets and not (other.refusal(entry, request) or other.refusal_now(entry, request)):
                return True
        return False
