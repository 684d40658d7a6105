"""How many attempts of all pods are in flight in each group that is limited (`max_running`).

Kept change by change. What an attempt counts in goes by the entry that it runs with, which is not always that of the
manifest in force. Where that entry is not known yet, the attempt counts in every group, so no limit is ever exceeded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Group, Limits
from dispatcher.outlets.lost_claims import entry_of
from dispatcher.run_state.states import IN_FLIGHT, Record
from dispatcher.workspace import Layout


class InFlight:
    """The attempts in flight, by the groups of `limits` that they count in.

    `unknown` are the jobs whose attempts run with an entry that is not known.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits: Final = limits or Limits()
        self.unknown: set[str] = set()
        self._groups: dict[str, tuple[Group, ...]] = {}
        self._counts: Counter[Group] = Counter()
        self._freed: set[Group] = set()
        self._all_are_freed = False

    def groups(self, entry: Entry) -> tuple[Group, ...]:
        """The groups that attempts of the entry count in."""
        return self.limits.groups(entry)

    def put(self, job: str, groups: tuple[Group, ...] | None) -> None:
        """An attempt of the job is in flight; `groups` None: what it runs with is not known."""
        if not self.limits or (job in self._groups and self._groups[job] == groups):
            return
        self.drop(job)
        if groups is None:
            self.unknown.add(job)
        elif groups:
            self._groups[job] = groups
            self._counts.update(groups)

    def drop(self, job: str) -> None:
        """No attempt of the job is in flight."""
        if job in self.unknown:
            self.unknown.discard(job)
            self._all_are_freed = True
        groups = self._groups.pop(job, ())
        for group in groups:
            self._counts[group] -= 1
            if not self._counts[group]:
                del self._counts[group]
        self._freed.update(groups)

    def clear(self) -> None:
        for job in [*self._groups, *self.unknown]:
            self.drop(job)

    def full(self, groups: Iterable[Group]) -> Group | None:
        """The first of these groups in which no further attempt may be in flight."""
        unknown = len(self.unknown)
        return next((group for group in groups if self._counts[group] + unknown >= group.most), None)

    def any_full(self) -> bool:
        """Whether some group is full."""
        return self.full(self._counts) is not None or bool(self.unknown)

    def text(self, group: Group) -> str:
        """Why no attempt of this group, which is full, is begun: `max_running of bert: 4 of 4 run`."""
        known, unknown = self._counts[group], len(self.unknown)
        running = f"max_running of {group.name}: {known} of {group.most} run"
        if known >= group.most or not unknown:
            return running
        jobs = ", ".join(sorted(self.unknown)[:3])
        return f"{running}, and it is not known yet whether {unknown} more count ({jobs})"

    def drain_freed(self) -> set[Group] | None:
        """The groups in which there may be room since the last call; None: in all."""
        freed, self._freed = self._freed, set()
        is_all, self._all_are_freed = self._all_are_freed, False
        return None if is_all else freed


class AttemptEntries:
    """The entries that attempts run with, as far as that is known without opening a file.

    `read` are those that were read from their attempts' directories, by job and number of the attempt.
    """

    def __init__(self) -> None:
        self.read: dict[str, tuple[int, Entry]] = {}

    def note(self, in_flight: InFlight, job: str, record: Record | None, listed: Entry | None) -> None:
        """The record of a job has changed; `listed` is its entry in the manifest."""
        if not in_flight.limits:
            return
        if record is None or record.state not in IN_FLIGHT:
            in_flight.drop(job)
            self.read.pop(job, None)
            return
        entry = self._entry(job, record, listed)
        if entry is None and record.attempt:
            in_flight.put(job, None)
        else:
            # What a script runs for a job that no manifest has counts in no limit.
            in_flight.put(job, in_flight.groups(entry) if entry is not None else ())

    def load(self, layout: Layout, job: str, number: int) -> None:
        """Read what an attempt runs with, if that is written already."""
        entry = entry_of(layout.attempt(job, number))
        if entry is not None:
            self.read[job] = number, entry

    def _entry(self, job: str, record: Record, listed: Entry | None) -> Entry | None:
        if listed is not None and record.ran_with in (None, listed.digest()):
            return listed.owned_by(record.user)
        number, entry = self.read.get(job, (0, None))
        return entry if number == record.attempt else None


def count_all(
    limits: Limits, records: Mapping[str, Record], jobs: Iterable[str], entry_of: Callable[[str], Entry | None]
) -> InFlight:
    """The attempts of these jobs, for one look at them; `entry_of` reads what each runs with."""
    found = InFlight(limits)
    for job in jobs if limits else ():
        entry = entry_of(job)
        is_unknown = entry is None and records[job].attempt
        found.put(job, None if is_unknown else () if entry is None else limits.groups(entry))
    return found
