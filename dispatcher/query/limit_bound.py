"""How long the jobs of a limit take at least, where `max_running` lets only some of them run at once. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Group
from dispatcher.query.snapshot import Snapshot


def limit_bound(
    snapshot: Snapshot, running_s: Mapping[str, float], waiting: Sequence[str], means: Mapping[str | None, float]
) -> tuple[float, str]:
    """The seconds that the slowest of the limits needs for its jobs, and its name; 0 where there is none.

    `running_s` is what is left of each running job; a waiting one takes the mean of its method.
    """
    if not snapshot.limits:
        return 0.0, ""
    sums = defaultdict[Group, float](float)
    for groups, seconds in (*_running(snapshot, running_s), *_waiting(snapshot, waiting, means)):
        for group in groups:
            sums[group] += seconds
    return max(((seconds / max(1, group.most), group.name) for group, seconds in sums.items()), default=(0.0, ""))


def _running(snapshot: Snapshot, running_s: Mapping[str, float]) -> Iterator[tuple[Iterable[Group], float]]:
    for job, seconds in running_s.items():
        entry = snapshot.entries.get(job)
        if entry is not None:
            yield snapshot.limits.groups(entry), seconds


def _waiting(
    snapshot: Snapshot, waiting: Sequence[str], means: Mapping[str | None, float]
) -> Iterator[tuple[Iterable[Group], float]]:
    if not snapshot.limits.by_values:
        # The method alone decides: no job is looked at.
        for method, count in snapshot.methods(waiting).items():
            if method is not None and method in means:
                yield snapshot.limits.groups(Entry(job_id="", method=method)), count * means[method]
        return
    for job in waiting:
        entry = snapshot.entries.get(job)
        if entry is not None and entry.method in means:
            yield snapshot.limits.groups(entry), means[entry.method]
