"""What was idle of the slots of pods, and how much of that jobs waited for. Pure.

Everything that begins or ends becomes an event, and one pass in the order of time adds up what was idle between two of
them. A waiting job counts for the first pod that could have run it, so it makes no slots idle twice.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final

import msgspec

from dispatcher.query.usage.history import PauseSpan
from dispatcher.query.usage.pools import CPU, GPU, Eligibility, PodRun
from dispatcher.run_state.facets.pauses import host_scope


class Window(msgspec.Struct, frozen=True):
    """From `since_s` to `until_s`, in seconds since 1970.

    `days`: when each of its days begins, and its name, where the account is by day; empty: all of it is one.
    """

    since_s: float
    until_s: float
    days: tuple[tuple[float, str], ...] = ()

    def clip(self, begun_s: float, end_s: float | None) -> tuple[float, float]:
        """The part of an interval that is inside; the same time twice when nothing is."""
        begun_s = max(begun_s, self.since_s)
        return begun_s, max(begun_s, self.until_s if end_s is None else min(self.until_s, end_s))

    def by_day(self, begun_s: float, end_s: float) -> Iterator[tuple[int, float]]:
        """The days of an interval that is inside, by their numbers, and the share of it that lies in each."""
        first = max(0, bisect.bisect_right(self.days, begun_s, key=itemgetter(0)) - 1)
        last = max(first, bisect.bisect_left(self.days, end_s, key=itemgetter(0)) - 1)
        if first == last:
            yield first, 1.0
            return
        for day in range(first, last + 1):
            day_end_s = self.days[day + 1][0] if day < last else end_s
            yield day, (day_end_s - max(begun_s, self.days[day][0])) / (end_s - begun_s)

    def day(self, number: int) -> str | None:
        """The name of a day; None where the account is not by day."""
        return self.days[number][1] if self.days else None


class Idle(msgspec.Struct):
    """Idle slot-seconds of one dispatcher on one day, of CPU slots and of GPU slots; for which jobs waited, or would
    have run but for a pause."""

    idle: list[float]
    waited: list[float]
    paused: list[float]


class SlotSeconds(msgspec.Struct):
    """Slot-seconds and GPU-seconds."""

    slots: float = 0.0
    gpus: float = 0.0


class IdleTotals(msgspec.Struct):
    """`idle` by the number of the dispatcher and of the day. `alone`: of attempts while their pod did not run."""

    idle: dict[tuple[int, int], Idle]
    alone: SlotSeconds


_BUSY: Final = 0
_WAITS: Final = 1
_PAUSE: Final = 2
_BEGIN: Final = 3
_LATE: Final = 4
_END: Final = 5
_AGAIN: Final = 6
_DAY: Final = 7
# The number of no dispatcher.
_NOBODY: Final = -1
# Time, what, the number of the pool, class, scope or day, and two more numbers.
_Event = tuple[float, int, int, int, float]


class _Pool:
    """The slots of the pods of one name on one host, one dispatcher after the other."""

    __slots__ = ("busy", "claims", "host", "share", "slots", "stay")

    def __init__(self, host: str, share: int) -> None:
        self.host = host
        self.stay = _NOBODY
        self.slots = (0, 0)
        # Of the dispatcher that has them, or had them last.
        self.share = share
        self.busy = [0.0, 0.0]
        self.claims = False


class Sweep:
    """Collects what happened within a window, and goes through it once."""

    def __init__(self, window: Window, stays: Sequence[PodRun], eligibility: Eligibility) -> None:
        self._window = window
        self._stays = stays
        self._eligibility = eligibility
        self._events: list[_Event] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._pools: list[_Pool] = []
        self._scopes: dict[str, int] = {}
        self._swept = IdleTotals({}, SlotSeconds())
        for stay in stays:
            self._add_stay(stay)
        self._events += [(begun_s, _DAY, number, 0, 0) for number, (begun_s, _) in enumerate(window.days)]

    def add_busy(self, stay: PodRun, host: str, kind: int, slots: float, begun_s: float, end_s: float) -> None:
        """An attempt of a pod had so many slots of a kind; the times are within the window."""
        if begun_s < end_s:
            number = self._pool(stay, host)
            self._events += ((begun_s, _BUSY, number, kind, slots), (end_s, _BUSY, number, kind, -slots))

    def add_wait(self, number: int, begun_s: float, end_s: float) -> None:
        """A job of this class could have been claimed; the times are within the window."""
        if begun_s < end_s:
            self._events += ((begun_s, _WAITS, number, 1, 0), (end_s, _WAITS, number, -1, 0))

    def add_pauses(self, pauses: Iterable[PauseSpan]) -> None:
        for pause in pauses:
            begun_s, end_s = self._window.clip(pause.begun_s, pause.end_s)
            if begun_s < end_s:
                number = self._scopes.setdefault(pause.pause.scope, len(self._scopes))
                self._events += ((begun_s, _PAUSE, number, 1, 0), (end_s, _PAUSE, number, 0, 0))

    def run(self) -> IdleTotals:
        """Go through all of it."""
        self._events.sort()
        now = _Moment(self._eligibility, self._swept)
        scopes = list(self._scopes)
        last_s = self._window.since_s
        for at_s, what, number, first, second in self._events:
            if at_s > last_s:
                if now.idle or now.alone:
                    now.settle(at_s - last_s)
                last_s = at_s
            if what == _BUSY:
                pool = self._pools[number]
                pool.busy[first] += second
                now.look(number, pool)
            elif what == _WAITS:
                now.wait(number, first)
            elif what == _PAUSE:
                (now.paused.add if first else now.paused.discard)(scopes[number])
            elif what == _DAY:
                now.day = number
            else:
                self._change(self._pools[number], what, self._stays[first])
                now.look(number, self._pools[number])
        return self._swept

    def _change(self, pool: _Pool, what: int, stay: PodRun) -> None:
        """A dispatcher begins, drains, claims again or ends; the next one of its name may have begun already."""
        if what == _BEGIN:
            pool.stay, pool.slots, pool.share, pool.claims = stay.number, stay.slots, stay.share, True
        elif pool.stay == stay.number:
            pool.claims = what == _AGAIN
            if what == _END:
                pool.stay, pool.slots = _NOBODY, (0, 0)

    def _add_stay(self, stay: PodRun) -> None:
        begun_s, end_s = self._window.clip(stay.begun_s, stay.ended_s)
        if begun_s >= end_s or not any(stay.slots):
            return
        number = self._pool(stay, stay.host)
        for day, _ in self._window.by_day(begun_s, end_s):
            self._swept.idle[stay.number, day] = Idle([0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
        self._events.append((begun_s, _BEGIN, number, stay.number, 0))
        self._events.append((max(begun_s, min(end_s, stay.claimed_until_s)), _LATE, number, stay.number, 0))
        for from_s, to_s in stay.drained_s:
            if begun_s < to_s and from_s < end_s:
                self._events.append((max(begun_s, from_s), _LATE, number, stay.number, 0))
                self._events.append((min(end_s, to_s), _AGAIN, number, stay.number, 0))
        self._events.append((end_s, _END, number, stay.number, 0))

    def _pool(self, stay: PodRun, host: str) -> int:
        number = self._numbers.get((stay.pod, host))
        if number is None:
            number = self._numbers[(stay.pod, host)] = len(self._pools)
            self._pools.append(_Pool(host, stay.share))
        return number


class _Moment:
    """What holds between two events: pools with free slots (`idle`), without a dispatcher (`alone`), and what waits."""

    def __init__(self, eligibility: Eligibility, swept: IdleTotals) -> None:
        self.idle: dict[int, _Pool] = {}
        self.alone: dict[int, _Pool] = {}
        self.demand: dict[int, int] = {}
        self.paused: set[str] = set()
        self.day = 0
        self._eligibility = eligibility
        self._swept = swept

    def look(self, number: int, pool: _Pool) -> None:
        """A pool has changed."""
        free_cpu, free_gpu = pool.slots[CPU] - pool.busy[CPU], pool.slots[GPU] - pool.busy[GPU]
        if free_cpu > 0 or free_gpu > 0:
            self.idle[number] = pool
        else:
            self.idle.pop(number, None)
        if pool.stay == _NOBODY and any(pool.busy):
            self.alone[number] = pool
        else:
            self.alone.pop(number, None)

    def wait(self, job_class: int, jobs: int) -> None:
        """So many more jobs of a class wait."""
        waiting = self.demand.get(job_class, 0) + jobs
        if waiting:
            self.demand[job_class] = waiting
        else:
            del self.demand[job_class]

    def settle(self, duration_s: float) -> None:
        """Add up what was idle for so long."""
        for pool in self.alone.values():
            self._swept.alone.slots += sum(pool.busy) * duration_s
            self._swept.alone.gpus += pool.busy[GPU] / pool.share * duration_s
        free: dict[int, list[float]] = {}
        for number, pool in self.idle.items():
            left = free[number] = [max(0, pool.slots[kind] - pool.busy[kind]) for kind in (CPU, GPU)]
            idle = self._swept.idle[pool.stay, self.day].idle
            idle[CPU] += left[CPU] * duration_s
            idle[GPU] += left[GPU] * duration_s
        if self.demand and free:
            # A slot that a job could have had is not idle because of a pause.
            self._give(free, duration_s, is_paused=False)
            if self.paused:
                self._give(free, duration_s, is_paused=True)

    def _give(self, free: dict[int, list[float]], duration_s: float, *, is_paused: bool) -> None:
        """Give waiting jobs to free slots: those that could begin, or those that a pause of method or host holds up."""
        for job_class, jobs in self.demand.items():
            method, scopes = self._eligibility.scopes[job_class]
            method_is_paused = not self.paused.isdisjoint(scopes)
            if method_is_paused and not is_paused:
                continue
            lacking: float = jobs
            for number, left in free.items():
                pool = self.idle[number]
                wanted = self._eligibility.wanted(job_class, pool.stay) if pool.claims else None
                of_host = (host_scope(pool.host), host_scope(pool.host, method))
                held_up = method_is_paused or not self.paused.isdisjoint(of_host)
                if wanted is None or held_up is not is_paused:
                    continue
                on_cpu, on_gpu, slots = wanted
                idle = self._swept.idle[pool.stay, self.day]
                waited = idle.paused if is_paused else idle.waited
                for kind, takes in ((CPU, on_cpu), (GPU, on_gpu)):
                    if takes and left[kind] and lacking:
                        taken = min(left[kind], lacking * slots)
                        waited[kind] += taken * duration_s
                        left[kind] -= taken
                        # Of a job that lacks some slots only, no other pod makes up for these.
                        lacking -= -(-taken // slots)
                if not lacking:
                    break
