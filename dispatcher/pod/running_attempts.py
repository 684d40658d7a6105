"""The attempts that this pod has in flight, wherever they run: watched, stopped, collected."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dispatcher.base import files
from dispatcher.outlets.base import (
    Ended,
    GpuUse,
    Key,
    Outlet,
    Pending,
    Placement,
    Report,
    Running,
    Slot,
)
from dispatcher.outlets.kinds import DEFAULT
from dispatcher.pod import outcome
from dispatcher.pod.pack import Pack, is_last
from dispatcher.pod.placements import has_run, placement_of
from dispatcher.pod.unknown import UnknownAttempts
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.states import Record
from dispatcher.workspace import AttemptPaths, Layout

# So many reasons fit into a pod's file, which is written with every heartbeat.
_PUBLISHED: Final = 100


class RunningAttempt:
    """One attempt of this pod. `ended` is set when it has ended and is kept until that is recorded."""

    def __init__(self, key: Key, outlet: str, slot: Slot, paths: AttemptPaths, pack: Pack | None = None) -> None:
        self.key = key
        self.outlet = outlet
        self.slot = slot
        self.pack = pack
        self.paths = paths
        self.placement: Placement | None = None
        self.has_begun = False
        # Whether its outlet has not started it yet, nor another one of its pack.
        self.is_pending = False
        # What its outlet reports about why it has not begun.
        self.waits_for = ""
        # What is known of its GPUs; None: nothing.
        self.gpu_use: GpuUse | None = None
        self.ended: Ended | None = None
        # Whether it was asked to stop or killed, and the revision of the record that asked for the latter.
        self.is_stopping = False
        self.killed_rev: int | None = None
        self.released = False
        self.claimed_s = time.monotonic()
        # What the journal has of it; None when it has lost the claim.
        self._recorded: tuple[Placement | None, bool] | None = (None, False)

    @property
    def is_recorded(self) -> bool:
        """Whether the journal has all that is known of where it runs."""
        return self._recorded == (self.placement, self.has_begun)

    @property
    def is_answered(self) -> bool:
        """Whether its outlet has accepted it, or refused it for good."""
        has_place = self.placement is not None and (self.placement.handle or self.placement.pid) is not None
        return has_place or self.ended is not None

    def mark_recorded(self) -> None:
        self._recorded = (self.placement, self.has_begun)

    def mark_forgotten(self) -> None:
        """The journal has gone back: it does not have the claim any more."""
        self._recorded = None

    def take_in(self, report: Report) -> None:
        """What its outlet knows by now."""
        if report.placement is not None:
            self.placement = report.placement
        self.has_begun |= has_run(report.status, self.placement)
        if self.pack is not None:
            self.pack.has_begun |= self.has_begun
        self.gpu_use = report.status.gpu_use if isinstance(report.status, Running) else None
        self.waits_for = report.status.why if isinstance(report.status, Pending) else ""
        self.is_pending = isinstance(report.status, Pending) and not (self.pack is not None and self.pack.has_begun)
        if isinstance(report.status, Ended):
            self.ended = outcome.judge(report.status, self.paths)


class RunningAttempts:
    """All attempts in flight of one pod, by job id.

    `without_slots` are further outlets, which have none of these, but those of dead dispatchers; more may join them.
    """

    def __init__(
        self, layout: Layout, outlets: Mapping[str, Outlet], without_slots: Mapping[str, Outlet] = MappingProxyType({})
    ) -> None:
        self._layout = layout
        self._outlets = outlets
        self._without_slots = without_slots
        self.by_job: dict[str, RunningAttempt] = {}
        self._unknown = UnknownAttempts()

    def __len__(self) -> int:
        return len(self.by_job)

    def __iter__(self) -> Iterator[RunningAttempt]:
        return iter(self.by_job.values())

    def add(self, key: Key, outlet: str, slot: Slot, pack: Pack | None = None) -> RunningAttempt:
        """Watch an attempt that was claimed just now, or that an earlier dispatcher of this pod's name had claimed."""
        attempt = RunningAttempt(key, outlet, slot, self._layout.attempt(key.job_id, key.number), pack)
        self.by_job[key.job_id] = attempt
        return attempt

    def adopt(self, records: Mapping[str, Record]) -> list[RunningAttempt]:
        """Find again what an earlier dispatcher of this pod's name had claimed; those that its outlets can watch."""
        by_outlet: dict[str, dict[Key, Placement]] = {}
        for job, record in records.items():
            by_outlet.setdefault(record.outlet or DEFAULT, {})[Key(job, record.attempt)] = placement_of(record)
        found = []
        for name, placements in by_outlet.items():
            if name in self._outlets:
                slots = self._outlets[name].adopt(placements)
                found += [self.add(key, name, slot) for key, slot in slots.items()]
        return found

    def collect(self) -> list[RunningAttempt]:
        """Those that have ended and are not recorded yet.

        Every outlet is polled: one that has none of these may wait for a program that it runs for orphans.
        """
        for outlet in self._without_slots.values():
            outlet.poll([])
        self._poll({**dict.fromkeys(self._outlets, ()), **_by_outlet(one for one in self if one.ended is None)})
        return [attempt for attempt in self if attempt.ended is not None]

    def poll(self, attempts: Iterable[RunningAttempt]) -> None:
        """Take in what the outlets know by now of these attempts: one query for each outlet."""
        self._poll(_by_outlet(attempts))

    def _poll(self, by_outlet: Mapping[str, Sequence[Key]]) -> None:
        for name, keys in by_outlet.items():
            reports = self._outlets[name].poll(keys)
            self._unknown.take_in(name, reports)
            for key, report in reports.items():
                self.by_job[key.job_id].take_in(report)

    def drop(self, attempts: Sequence[RunningAttempt]) -> None:
        """Forget attempts whose ends are recorded; one without an exit status is superseded wherever it may live."""
        for attempt in attempts:
            del self.by_job[attempt.key.job_id]
        for name, keys in _by_outlet(one for one in attempts if files.is_missing(one.paths.exit)).items():
            self._outlets[name].fence(keys)
        for name, keys in _by_outlet(attempts).items():
            self._outlets[name].forget(keys)

    def stop(self, attempts: Iterable[RunningAttempt], reason: str = "") -> None:
        """Ask attempts to end, once; `reason` is what their exit status will tell beside the number."""
        asked = [attempt for attempt in attempts if not attempt.is_stopping and attempt.ended is None]
        for attempt in asked:
            attempt.is_stopping = True
        for name, keys in _by_outlet(asked).items():
            self._outlets[name].cancel(keys, reason=reason)

    def kill(self, attempt: RunningAttempt, rev: int = 0) -> None:
        """End an attempt at once, also one that was asked to stop, and once more for another revision of its record."""
        if attempt.killed_rev == rev:
            return
        attempt.is_stopping, attempt.killed_rev = True, rev
        self._outlets[attempt.outlet].cancel([attempt.key], force=True)

    def release(self, attempts: Iterable[RunningAttempt]) -> None:
        """Free the slots of attempts that have ended, once, however often their ends must be recorded."""
        for attempt in attempts:
            if not attempt.released:
                attempt.released = True
                if is_last(attempt.pack):
                    self._outlets[attempt.outlet].capacity.release(attempt.slot)

    def unrecorded(self) -> list[RunningAttempt]:
        """Those of which the journal does not have yet where they run."""
        return [attempt for attempt in self if not attempt.is_recorded]

    def pending(self) -> dict[str, str]:
        """Why jobs that were submitted have not begun, for the pod's file; not more than it has room for."""
        waiting = ((attempt.key.job_id, attempt.waits_for) for attempt in self if attempt.waits_for)
        return dict(itertools.islice(waiting, _PUBLISHED))

    def notes(self) -> list[str]:
        """Which attempts are in a state that their outlets cannot tell, and why."""
        return self._unknown.notes()

    def wait_fds(self) -> list[int]:
        """Descriptors that become readable when `collect` has news."""
        return [fd for outlet in self._all() for fd in outlet.wait_fds()]

    def due_in_s(self) -> float | None:
        """Seconds until `collect` has to be called although no descriptor is readable."""
        waits = (outlet.due_in_s() for outlet in self._all())
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def slot_infos(self) -> list[SlotInfo]:
        """The slots of all outlets."""
        return [info for outlet in self._outlets.values() for info in outlet.slot_infos()]

    def _all(self) -> list[Outlet]:
        return [*self._outlets.values(), *self._without_slots.values()]


def _by_outlet(attempts: Iterable[RunningAttempt]) -> dict[str, list[Key]]:
    keys: dict[str, list[Key]] = {}
    for attempt in attempts:
        keys.setdefault(attempt.outlet, []).append(attempt.key)
    return keys
