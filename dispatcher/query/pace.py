"""How fast jobs get done, and how long the rest will take. Pure.

Both go by the jobs that were done last, so a slow beginning is forgotten, and at a million jobs it costs the same.

The range of the time left: nine times in ten the rest takes so long, if it is as the last jobs were (their times vary,
and a mean of few is not certain) and as many slots go on. The short end uses all slots to the last moment; at the long
end a long job of the longest method begins last (Graham's bound). What else may happen, a failure or a queue, is not
in it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dispatcher.base.times import parse_time
from dispatcher.query.limit_bound import limit_bound
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.waiting import WaitReason
from dispatcher.run_state.progress import remaining_s
from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, State

_HOUR_S: Final = 3600.0
# The rate is that of the shortest window in which so many jobs were done.
_WINDOWS_S: Final = (_HOUR_S, 6 * _HOUR_S, 24 * _HOUR_S)
_ENOUGH: Final = 10
# Less time does not show how many jobs an hour would have, unless very many were done.
_SHORTEST_S: Final = 300.0
# How many jobs, those that were done last, are looked at.
_LATEST: Final = 1_000
# Of a normal distribution, nine tenths are nearer to the mean than so many standard deviations.
_Z: Final = 1.645


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of a matrix, and what is left of it.

    pods: those that are alive and show it; `silent` names those that show no sign of life.
    slots_busy, slots: of `pods`; a draining pod has only the busy ones.
    done_per_hour: jobs that were done in the last `window_s` seconds; None when none was, or these are too few.
    left: jobs in flight and waiting that run without a person's help, `stuck` those that wait for one.
    remaining_s: an estimate for `left`, by the mean time that the jobs of each method took; None when it is unknown,
        and while jobs wait that no pod claims. `low_s` to `high_s` is its range; None where fewer than two jobs of a
        method were done lately.
    unknown_methods: methods of `left` of which no job of the manifests was done lately: `remaining_s` lacks these jobs.
    refused: jobs of `left` that no live pod takes as things are, `stalled` those that run and show no progress:
        `remaining_s` lacks these, too.
    limited_by: the limit (`max_running`) whose jobs take longer than all of them would on the slots; empty where none
        does. `remaining_s` is then the least that they take.
    is_claiming: whether a pod is at work that neither drains nor has stopped claiming.
    """

    pods: int
    silent: tuple[str, ...]
    slots_busy: int
    slots: int
    done_per_hour: float | None
    window_s: float
    left: int
    stuck: int
    remaining_s: float | None
    low_s: float | None
    high_s: float | None
    unknown_methods: tuple[str, ...]
    refused: int
    stalled: int
    limited_by: str
    is_claiming: bool


def pace(snapshot: Snapshot, waiting: Iterable[WaitReason], everything: Snapshot | None = None) -> Pace:
    """The pace of all jobs of the snapshot; `waiting` is why those wait that do.

    `everything` has all jobs where the snapshot has some of them: their methods' times are those of all, and the time
    left is what they take if no other job gets a slot. `slots_busy` counts slots with jobs of the snapshot.
    """
    everything = everything or snapshot
    latest = _latest(snapshot)
    usual = latest if everything is snapshot else _latest(everything)
    window_s = _window(latest, snapshot.now_s)
    in_window = latest.done_since(snapshot.now_s - window_s)
    is_long = window_s >= _SHORTEST_S or in_window >= _LATEST
    waits = list(waiting)
    ready = [job for wait in waits if not wait.needs_person for job in wait.jobs]
    taken = [job for wait in waits if not (wait.needs_person or wait.is_refused) for job in wait.jobs]
    busy, size = _slots(snapshot)
    running = snapshot.jobs_in(*IN_FLIGHT)
    moving = [job for job in running if job not in snapshot.stalled]
    silent = {pod.info.pod for pod in snapshot.pods if pod.state == "silent"}
    in_flight = running if everything is snapshot else everything.jobs_in(*IN_FLIGHT)
    # Where such a pod has jobs, no others begin.
    held = sum(everything.records[job].pod in silent for job in in_flight) if silent and taken else 0
    left, unknown = _left(snapshot, moving, taken, usual.took_s, len(in_flight) - held + size - busy)
    bound_s, limited_by = _bound(snapshot, moving, taken, usual)
    if left.mid_s is not None and bound_s > left.mid_s:
        left = _Left(bound_s)
    else:
        limited_by = ""
    is_claiming = any(pod.is_at_work and not (pod.is_draining or pod.info.stopped) for pod in snapshot.pods)
    if not is_claiming and ready:
        left = _UNKNOWN
    return Pace(
        pods=sum(pod.is_at_work for pod in snapshot.pods),
        silent=tuple(sorted(silent)),
        slots_busy=busy if everything is snapshot else _slots_with(snapshot),
        slots=size,
        done_per_hour=in_window / window_s * _HOUR_S if in_window and is_long else None,
        window_s=window_s,
        left=len(ready) + len(running),
        stuck=sum(len(wait.jobs) for wait in waits if wait.needs_person),
        remaining_s=left.mid_s,
        low_s=left.low_s,
        high_s=left.high_s,
        unknown_methods=unknown,
        refused=len(ready) - len(taken),
        stalled=len(running) - len(moving),
        limited_by=limited_by,
        is_claiming=is_claiming,
    )


def _bound(snapshot: Snapshot, running: Iterable[str], ready: Sequence[str], latest: _Latest) -> tuple[float, str]:
    """What the slowest limit needs for its jobs, and its name."""
    if not snapshot.limits:
        return 0.0, ""
    means = {method: sum(times) / len(times) for method, times in latest.took_s.items()}
    rests = ((job, _rest_s(snapshot, job, means.get(_method(snapshot, job)))) for job in running)
    return limit_bound(snapshot, {job: rest for job, rest in rests if rest is not None}, ready, means)


class _Latest(msgspec.Struct, frozen=True):
    """The jobs that were done last: when they ended, since when some of them ran, how long those of a method took."""

    ended_s: list[float]
    since_s: float
    took_s: dict[str | None, list[float]]

    def done_since(self, moment_s: float) -> int:
        return sum(at >= moment_s for at in self.ended_s)


def _latest(snapshot: Snapshot) -> _Latest:
    ended: list[float] = []
    took: dict[str | None, list[float]] = defaultdict(list)
    since_s = snapshot.now_s
    jobs = snapshot.latest(State.DONE, _LATEST)
    for job in jobs:
        record = snapshot.records[job]
        at = parse_time(record.finished_at)
        if at is None or record.reason == BY_HAND:
            continue
        ended.append(at)
        elapsed = snapshot.elapsed_s(record)
        if elapsed is not None:
            took[_method(snapshot, job)].append(elapsed)
            since_s = min(since_s, at - elapsed)
    if len(jobs) == _LATEST and ended:
        # More were done than were looked at.
        since_s = min(ended)
    return _Latest(ended, since_s, took)


def _window(latest: _Latest, now_s: float) -> float:
    """The length of the shortest window with enough jobs, else of the longest; not longer than any of them ran."""
    windows = (size for size in _WINDOWS_S if latest.done_since(now_s - size) >= _ENOUGH)
    return max(1.0, min(next(windows, _WINDOWS_S[-1]), now_s - latest.since_s))


def _method(snapshot: Snapshot, job: str) -> str | None:
    """A job's method; None where no manifest lists it: files of attempts are not read for this."""
    listed = snapshot.entries.get(job)
    return None if listed is None else listed.method


def _slots(snapshot: Snapshot) -> tuple[int, int]:
    busy = size = 0
    for pod in snapshot.pods:
        if pod.is_at_work:
            taken = sum(min(len(slot.jobs), slot.room) for slot in pod.info.slots)
            busy += taken
            size += taken if pod.is_draining else sum(slot.room for slot in pod.info.slots)
    return busy, size


def _slots_with(snapshot: Snapshot) -> int:
    """How many slots have jobs of the snapshot."""
    slots = (slot for pod in snapshot.pods if pod.is_at_work for slot in pod.info.slots)
    return sum(min(sum(name.rpartition("/")[0] in snapshot.records for name in slot.jobs), slot.room) for slot in slots)


class _Left(msgspec.Struct, frozen=True):
    """An estimate of the time left, and its range."""

    mid_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None


_UNKNOWN: Final = _Left()


class _Work(msgspec.Struct):
    """The seconds of several jobs together and the variance of the sum (None: unknown), and the longest of them."""

    sum_s: float = 0.0
    variance: float | None = 0.0
    longest_s: float = 0.0
    # What the longest one takes at least, and at most.
    least_s: float = 0.0
    most_s: float = 0.0

    def add(self, count: int, each_s: float, variance: float | None, samples: float = math.inf) -> None:
        """So many jobs, whose times have this variance around a mean of so many samples."""
        self.sum_s += count * each_s
        self.longest_s = max(self.longest_s, each_s)
        if variance is None or self.variance is None:
            self.variance = None
            return
        self.variance += count * variance * (1 + count / samples)
        half_s = _Z * math.sqrt(variance)
        self.least_s = max(self.least_s, each_s - half_s)
        self.most_s = max(self.most_s, each_s + half_s)

    def left(self, at_once: int) -> _Left:
        """The time that this takes, so many jobs at a time."""
        mid_s = max(self.sum_s / at_once, self.longest_s)
        if self.variance is None:
            return _Left(mid_s)
        half_s = _Z * math.sqrt(self.variance) / at_once
        low_s = max(self.sum_s / at_once - half_s, self.least_s)
        high_s = max(self.sum_s / at_once + half_s + (1 - 1 / at_once) * self.most_s, self.most_s)
        return _Left(mid_s, min(low_s, mid_s), max(high_s, mid_s))


def _left(
    snapshot: Snapshot, running: Iterable[str], ready: Sequence[str], took: dict[str | None, list[float]], at_once: int
) -> tuple[_Left, tuple[str, ...]]:
    """The estimate for all these jobs, `at_once` at a time, and the methods without one."""
    means = {method: sum(times) / len(times) for method, times in took.items()}
    variances = {method: _variance(times, means[method]) for method, times in took.items()}
    work = _Work()
    unknown: set[str | None] = set()
    for job in running:
        method = _method(snapshot, job)
        rest = _rest_s(snapshot, job, means.get(method))
        if rest is None:
            unknown.add(method)
        else:
            variance, mean_s = variances.get(method), means.get(method)
            # As uncertain as a whole job, for its length.
            work.add(1, rest, variance * (rest / mean_s) ** 2 if variance is not None and mean_s else None)
    for method, count in snapshot.methods(ready).items():
        if method in means:
            work.add(count, means[method], variances[method], len(took[method]))
        else:
            unknown.add(method)
    # Of jobs that have run for longer than those before, nothing is known either.
    is_known = bool(means) and at_once > 0 and work.sum_s > 0.0
    return work.left(at_once) if is_known else _UNKNOWN, tuple(sorted(method or "unlisted" for method in unknown))


def _variance(times: Sequence[float], mean_s: float) -> float | None:
    """The variance of a sample; None for fewer than two."""
    return math.fsum((time - mean_s) ** 2 for time in times) / (len(times) - 1) if len(times) > 1 else None


def _rest_s(snapshot: Snapshot, job: str, mean_s: float | None) -> float | None:
    """The estimated seconds until a job in flight is done: by its progress, else by the mean of its method."""
    record = snapshot.records[job]
    elapsed = snapshot.elapsed_s(record)
    rest = remaining_s(elapsed, snapshot.progress.get(job))
    if rest is None and mean_s is not None:
        waited = record.state is State.SUBMITTED or elapsed is None
        rest = mean_s if waited else max(0.0, mean_s - (elapsed or 0.0))
    return rest
