"""How fast jobs get done, and how long the rest will take. Pure.

Both go by the jobs that were done last, so a slow beginning is forgotten, and at a million jobs it costs the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dispatcher.base.times import parse_time
from dispatcher.report.snapshot import Snapshot
from dispatcher.report.waiting import Wait
from dispatcher.run_state.progress import elapsed_s, remaining_s
from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, State

_HOUR_S: Final = 3600.0
# The rate is that of the shortest window in which so many jobs were done.
_WINDOWS_S: Final = (_HOUR_S, 6 * _HOUR_S, 24 * _HOUR_S)
_ENOUGH: Final = 10
# How many jobs, those that were done last, are looked at.
_LATEST: Final = 1_000


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of a matrix, and what is left of it.

    pods: those that are alive.
    slots_busy, slots: of these; a draining pod has only the busy ones.
    done_per_hour: jobs that were done in the last `window_s` seconds; None when none was.
    left: jobs in flight and waiting that run without a person's help, `stuck` those that wait for one.
    remaining_s: an estimate for `left`, by the mean time that the jobs of each method took; None when it is unknown,
        and while jobs wait that no pod claims.
    unknown_methods: methods of `left` of which no job of the manifests was done lately: `remaining_s` lacks these jobs.
    is_claiming: whether a pod is alive that neither drains nor has stopped claiming.
    """

    pods: int
    slots_busy: int
    slots: int
    done_per_hour: float | None
    window_s: float
    left: int
    stuck: int
    remaining_s: float | None
    unknown_methods: tuple[str, ...]
    is_claiming: bool


def pace(snapshot: Snapshot, waiting: Iterable[Wait]) -> Pace:
    """The pace of all jobs of the snapshot; `waiting` is why those wait that do."""
    latest = _latest(snapshot)
    window_s = _window(latest, snapshot.now_s)
    in_window = latest.done_since(snapshot.now_s - window_s)
    waits = list(waiting)
    ready = [job for wait in waits if not wait.needs_person for job in wait.jobs]
    busy, size = _slots(snapshot)
    running = snapshot.jobs_in(*IN_FLIGHT)
    remaining, unknown = _remaining_s(snapshot, running, ready, latest.took_s, len(running) + size - busy)
    is_claiming = any(pod.is_alive and not (pod.is_draining or pod.info.stopped) for pod in snapshot.pods)
    return Pace(
        pods=sum(pod.is_alive for pod in snapshot.pods),
        slots_busy=busy,
        slots=size,
        done_per_hour=in_window / window_s * _HOUR_S if in_window else None,
        window_s=window_s,
        left=len(ready) + len(running),
        stuck=sum(len(wait.jobs) for wait in waits if wait.needs_person),
        remaining_s=remaining if is_claiming or not ready else None,
        unknown_methods=unknown,
        is_claiming=is_claiming,
    )


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
        elapsed = elapsed_s(record, snapshot.now_s)
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
        if pod.is_alive:
            taken = sum(min(len(slot.jobs), slot.room) for slot in pod.info.slots)
            busy += taken
            size += taken if pod.is_draining else sum(slot.room for slot in pod.info.slots)
    return busy, size


def _remaining_s(
    snapshot: Snapshot, running: Iterable[str], ready: Sequence[str], took: dict[str | None, list[float]], at_once: int
) -> tuple[float | None, tuple[str, ...]]:
    """The estimated seconds for all these jobs, `at_once` at a time, and the methods without an estimate."""
    means = {method: sum(times) / len(times) for method, times in took.items()}
    work_s = longest_s = 0.0
    unknown: set[str | None] = set()
    for job in running:
        rest = _rest_s(snapshot, job, means.get(_method(snapshot, job)))
        if rest is None:
            unknown.add(_method(snapshot, job))
        else:
            work_s += rest
            longest_s = max(longest_s, rest)
    for method, count in snapshot.methods(ready).items():
        if method in means:
            work_s += count * means[method]
            longest_s = max(longest_s, means[method])
        else:
            unknown.add(method)
    is_known = bool(means) and at_once > 0 and not (unknown and work_s == 0.0)
    return max(work_s / at_once, longest_s) if is_known else None, tuple(
        sorted(method or "unlisted" for method in unknown)
    )


def _rest_s(snapshot: Snapshot, job: str, mean_s: float | None) -> float | None:
    """The estimated seconds until a job in flight is done: by its progress, else by the mean of its method.

    The progress of a stalled job tells nothing any more.
    """
    record = snapshot.records[job]
    elapsed = elapsed_s(record, snapshot.now_s)
    rest = None if job in snapshot.stalled else remaining_s(elapsed, snapshot.progress.get(job))
    if rest is None and mean_s is not None:
        waited = record.state is State.SUBMITTED or elapsed is None
        rest = mean_s if waited else max(0.0, mean_s - (elapsed or 0.0))
    return rest
