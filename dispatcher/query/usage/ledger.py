"""The hours of attempts and of idle slots, added up by keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from dispatcher.matrix.entry import OWNER
from dispatcher.outlets.kinds import DEFAULT
from dispatcher.query.external import EXTERNAL
from dispatcher.query.usage.history import Attempt, History, SlotUse
from dispatcher.query.usage.pools import CPU, GPU, Eligibility, PodRun, Stays
from dispatcher.query.usage.sweep import IdleTotals, Sweep, Window

# The day on which slots were used, as a key; an attempt counts for each of its days.
DAY: Final = "day"
# Keys that idle slots have, too; all others are of jobs.
_OF_PODS: Final = ("pod", "host", OWNER, "outlet")
OF_SLOTS: Final = (*_OF_PODS, DAY)


class Hours(msgspec.Struct):
    """Hours of slots and of GPUs."""

    slots: float = 0.0
    gpus: float = 0.0

    def add(self, slots: float, gpus: float) -> None:
        self.slots += slots
        self.gpus += gpus


class UsageRow(msgspec.Struct):
    """What the attempts and idle slots with these values of the keys used. A value is None where there is none."""

    values: tuple[object, ...]
    hours: dict[SlotUse, Hours] = {}

    def add(self, kind: SlotUse, slots: float, gpus: float) -> None:
        self.hours.setdefault(kind, Hours()).add(slots, gpus)

    @property
    def total(self) -> Hours:
        total = Hours()
        for hours in self.hours.values():
            total.add(hours.slots, hours.gpus)
        return total


class Usage(msgspec.Struct, kw_only=True):
    """Where the time of slots went between two moments, in hours.

    rows: by `keys`, in the order in which they first occur; what no job had is a row without values of jobs.
    of_pods: the slots of pods times the time in which they ran; on_hosts: attempts on configured hosts; external: runs
    that a script of the lab has started; without_pod: attempts that ran on while their pod did not, or whose pod the
    journal does not know.
    accounted_since_s: older history is gone; None: nothing is missing. slots_since_s: before that, the journal does not
    say which pods ran; None: it always does.
    idle_gpus: GPU-hours of attempts whose GPUs were all at 0 %, as far as the journal says.
    unknown_ends: attempts with an unknown end. is_filtered: only some jobs count, so nothing is known of idle slots.
    """

    since_s: float
    until_s: float
    keys: tuple[str, ...]
    rows: list[UsageRow]
    of_pods: Hours
    on_hosts: Hours
    external: Hours
    without_pod: Hours
    idle_gpus: float = 0.0
    pods: int = 0
    is_filtered: bool = False
    unknown_ends: int = 0
    accounted_since_s: float | None = None
    slots_since_s: float | None = None

    @property
    def keys_of_pods(self) -> bool:
        """Whether idle slots have a value for every key."""
        return all(key in OF_SLOTS for key in self.keys)

    @property
    def total(self) -> UsageRow:
        """All rows together."""
        total = UsageRow(())
        for row in self.rows:
            for kind, hours in row.hours.items():
                total.add(kind, hours.slots, hours.gpus)
        return total

    @property
    def left_over(self) -> Hours:
        """What the rows have more than there was: nothing, but for rounding, when the account adds up.

        Attempts that a pod with fewer slots has taken back are more than there was.
        """
        total = self.total.total
        parts = (self.of_pods, self.on_hosts, self.external, self.without_pod)
        return Hours(total.slots - sum(p.slots for p in parts), total.gpus - sum(p.gpus for p in parts))


class Ledger:
    """Adds up one window. `value_of(attempt, key)` is the value of a key of jobs.

    `counts(attempt, user)`: whether an attempt counts, which `user` owned; None: all do, and idle slots, too.
    """

    def __init__(
        self,
        window: Window,
        keys: Sequence[str],
        value_of: Callable[[Attempt, str], object],
        counts: Callable[[Attempt, object], bool] | None = None,
    ) -> None:
        self._window = window
        self._keys = tuple(keys)
        self._value_of = value_of
        self._counts = counts
        self._rows: dict[tuple[object, ...], UsageRow] = {}
        self._owners: Mapping[str, str] = {}
        self._first_stay_s = window.until_s

    def usage(
        self, history: History, stays: Sequence[PodRun], eligibility: Eligibility, kinds: Mapping[str, int]
    ) -> Usage:
        window = self._window
        claimants = Stays(stays)
        self._first_stay_s = min((stay.begun_s for stay in stays), default=window.until_s)
        self._owners = history.owners
        sweep = Sweep(window, stays, eligibility)
        usage = Usage(
            since_s=window.since_s, until_s=window.until_s, keys=self._keys, rows=[],
            of_pods=Hours(), on_hosts=Hours(), external=Hours(), without_pod=Hours(),
            is_filtered=self._counts is not None,
        )  # fmt: skip
        for attempt in history.attempts:
            if attempt.begun_s is not None:
                stay = claimants.of(attempt)
                begun_s, end_s = window.clip(attempt.begun_s - _ahead_s(stay), _end_s(attempt, stay))
                if begun_s < end_s:
                    self._add_attempt(usage, sweep, attempt, stay, begun_s, end_s)
        for idle in history.idle_gpus:
            stay = claimants.of(idle.attempt)
            if self._is_meant(idle.attempt, stay):
                until_s = _end_s(idle.attempt, stay) if idle.end_s is None else idle.end_s - _ahead_s(stay)
                begun_s, end_s = window.clip(idle.begun_s - _ahead_s(stay), until_s)
                weight = idle.gpus if stay is None else stay.weight(idle.gpus, idle.attempt.gpu_share)[1] / stay.share
                usage.idle_gpus += weight * (end_s - begun_s) / 3600
        if self._counts is None:
            self._add_waits(history, sweep, eligibility, kinds)
            self._add_idle(usage, stays, sweep.run())
        usage.rows = list(self._rows.values())
        return usage

    def _add_attempt(
        self, usage: Usage, sweep: Sweep, attempt: Attempt, stay: PodRun | None, begun_s: float, end_s: float
    ) -> None:
        window, hours = self._window, (end_s - begun_s) / 3600
        slots, gpus = max(1, attempt.gpus) * hours, attempt.gpus * hours
        if attempt.outlet == DEFAULT and stay is not None:
            kind, weight = stay.weight(attempt.gpus, attempt.gpu_share)
            slots = weight * hours
            gpus = 0.0 if not attempt.gpus else slots / stay.share
            sweep.add_busy(stay, attempt.host, kind, weight, begun_s, end_s)
        elif attempt.outlet == DEFAULT:
            usage.without_pod.add(slots, gpus)
            usage.slots_since_s = self._first_stay_s
        else:
            (usage.external if attempt.outlet == EXTERNAL else usage.on_hosts).add(slots, gpus)
        if not self._is_meant(attempt, stay):
            return
        usage.unknown_ends += attempt.kind is SlotUse.UNKNOWN_END
        for day, share in window.by_day(begun_s, end_s):
            row = self._row(tuple(self._of_attempt(attempt, stay, key, day) for key in self._keys))
            row.add(attempt.kind, share * slots, share * gpus)

    def _is_meant(self, attempt: Attempt, stay: PodRun | None) -> bool:
        return self._counts is None or self._counts(attempt, self._owner(attempt, stay))

    def _owner(self, attempt: Attempt, stay: PodRun | None) -> object:
        """Whose job it was; attempts of earlier releases do not say."""
        known = attempt.user or self._owners.get(attempt.job) or (stay.user if stay is not None else None)
        return known or self._value_of(attempt, OWNER)

    def _of_attempt(self, attempt: Attempt, stay: PodRun | None, key: str, day: int) -> object:
        if key == DAY:
            return self._window.day(day)
        if key == OWNER:
            return self._owner(attempt, stay)
        if key in _OF_PODS:
            return getattr(attempt, key) or None
        return self._value_of(attempt, key)

    def _add_waits(self, history: History, sweep: Sweep, eligibility: Eligibility, kinds: Mapping[str, int]) -> None:
        for wait in history.waits:
            begun_s, end_s = self._window.clip(wait.begun_s, wait.end_s)
            if begun_s < end_s:
                number = eligibility.class_of(wait.job, kinds.get(wait.job, 0))
                if number is not None:
                    sweep.add_wait(number, begun_s, end_s)
        sweep.add_pauses(history.pauses)

    def _add_idle(self, usage: Usage, stays: Sequence[PodRun], swept: IdleTotals) -> None:
        for number in dict.fromkeys(number for number, _ in swept.idle):
            stay = stays[number]
            begun_s, end_s = self._window.clip(stay.begun_s, stay.ended_s)
            hours = (end_s - begun_s) / 3600
            usage.of_pods.add(sum(stay.slots) * hours, stay.slots[GPU] / stay.share * hours)
        for (number, day), found in swept.idle.items():
            stay = stays[number]
            row = self._row(tuple(self._of_stay(stay, key, day) for key in self._keys))
            otherwise = [
                idle - waited - paused for idle, waited, paused in zip(*msgspec.structs.astuple(found), strict=True)
            ]
            kinds = {SlotUse.WAITED: found.waited, SlotUse.IDLE: otherwise}
            if any(found.paused):
                kinds[SlotUse.PAUSED] = found.paused
            for kind, seconds in kinds.items():
                row.add(kind, (seconds[CPU] + seconds[GPU]) / 3600, seconds[GPU] / stay.share / 3600)
        usage.pods = len({stays[number].pod for number, _ in swept.idle})
        usage.without_pod.add(swept.alone.slots / 3600, swept.alone.gpus / 3600)

    def _of_stay(self, stay: PodRun, key: str, day: int) -> object:
        if key == DAY:
            return self._window.day(day)
        if key == "outlet":
            return DEFAULT
        return getattr(stay, key) if key in _OF_PODS else None

    def _row(self, values: tuple[object, ...]) -> UsageRow:
        row = self._rows.get(values)
        if row is None:
            row = self._rows[values] = UsageRow(values)
        return row


def _end_s(attempt: Attempt, stay: PodRun | None) -> float | None:
    """When an attempt ended; of an unknown end, the last heartbeat of its pod."""
    if attempt.ended_s is None or attempt.kind is not SlotUse.UNKNOWN_END or stay is None:
        return None if attempt.ended_s is None else attempt.ended_s - _ahead_s(stay)
    watched_until_s = stay.ended_s if attempt.noticed_s is None else min(stay.ended_s, attempt.noticed_s)
    return max(attempt.ended_s - stay.ahead_s, watched_until_s)


def _ahead_s(stay: PodRun | None) -> float:
    return 0.0 if stay is None else stay.ahead_s
