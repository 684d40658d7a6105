"""Which jobs are compared, by group: as many of each, where all are too many. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.query.groups import grouped
from dispatcher.query.values import JobValues

MOST_JOBS: Final = 200
# So many groups are told apart by colour and dash.
MOST_GROUPS: Final = 24


class Group(msgspec.Struct, frozen=True):
    """Jobs that have the same values of the keys: `ran` of them have run, `jobs` of these are compared."""

    values: tuple[Any, ...]
    labels: tuple[str, ...]
    ran: int
    jobs: list[tuple[str, Path]]


class ComparedJobs(msgspec.Struct, frozen=True):
    """The jobs to compare, by group, each with the directory of its last attempt.

    groups: those by the keys `by` from number `first` on that have run, of `total_groups`.
    not_run: jobs that match and have not run.
    """

    by: Sequence[str]
    groups: list[Group]
    first: int
    total_groups: int
    not_run: int

    @property
    def cut(self) -> str:
        """What of all that match is not compared; empty where everything is."""
        ran, compared = sum(group.ran for group in self.groups), sum(len(group.jobs) for group in self.groups)
        of = "of a group" if len(self.groups) == 1 else "of these groups"
        return f"{compared:,} of the {ran:,} jobs {of} are compared, the same number of each" if compared < ran else ""


def chosen_groups(
    values: JobValues, places: Sequence[int], by: Sequence[str], first: int, directory_of: Callable[[str], Path]
) -> ComparedJobs:
    """The jobs at these places, grouped, each with the directory of its last attempt.

    Where there are too many, as many of each group are taken, whatever their order in the manifest. Which ones goes by
    their ids, so that a group keeps its jobs while others begin to run.
    """
    by = values.named(by)
    attempts = values.column("attempt")
    has_run = [bool(value) for value in attempts.values]
    ran = [place for place in places if has_run[attempts.codes[place]]]
    groups = grouped([values.column(key) for key in by], ran)
    members = groups.members(ran)
    shown = [number for number in groups.order() if members[number]]
    total, shown = len(shown), shown[first : first + MOST_GROUPS]
    shares = _shares([len(members[number]) for number in shown], MOST_JOBS)
    found = []
    for number, share in zip(shown, shares, strict=True):
        jobs = [values.jobs[place] for place in values.sample(members[number], share)]
        directories = [(job, directory_of(job)) for job in jobs]
        found.append(Group(groups.values[number], groups.labels[number], len(members[number]), directories))
    return ComparedJobs(by, found, first, total, len(places) - len(ran))


def _shares(sizes: Sequence[int], most: int) -> list[int]:
    """How many of each group, at most `most` together: the same number, and all of a group that has fewer."""
    shares = [0] * len(sizes)
    for rank, place in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[place] = min(sizes[place], most // (len(sizes) - rank))
        most -= shares[place]
    return shares
