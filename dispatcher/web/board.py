"""The one reader for all viewers: what a workspace shows now, and what has changed since a viewer last asked.

For one thread. `look` reads the files; everything else answers from memory.
"""

from __future__ import annotations

import itertools
import operator
import os
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.api import Workspace
from dispatcher.base.file_identity import identity_at
from dispatcher.errors import StateError, UsageError
from dispatcher.matrix.condition import Where
from dispatcher.query.known_results import KnownResults
from dispatcher.query.snapshot import PodStatus, Snapshot
from dispatcher.query.snapshot_reader import SnapshotReader
from dispatcher.query.values import JobValues
from dispatcher.run_state import journal
from dispatcher.run_state.records import Records
from dispatcher.run_state.results import parse_result
from dispatcher.run_state.states import Record, State
from dispatcher.web.age import Age
from dispatcher.web.answers import encode, fitted
from dispatcher.web.overview import OverviewPage
from dispatcher.web.pods import pods
from dispatcher.workspace import Layout

# Parts that depend on the clock are made again after this time, though nothing has changed.
_OUTDATED_S: Final = 60.0
# While results are read, pages learn this often how many there are.
_RESULTS_S: Final = 3.0
# So many versions are remembered, and so many jobs of them are named; who asks for older ones gets everything.
_VERSIONS: Final = 500
_CHANGED_JOBS: Final = 500
# So many filters have their parts kept.
_FILTERS: Final = 16
# All parts together are less than an answer may have.
_PART_BYTES: Final = {"running": 300_000}
_OTHER_PART_BYTES: Final = 80_000
_NO_RECORD: Final = Record(State.QUEUED)


class FilterError(UsageError):
    """A filter that makes no sense: its parameter in the request, and its number among those of that name."""

    def __init__(self, text: str, name: str, number: int) -> None:
        super().__init__(text.removeprefix("--where "))
        self.name = name
        self.number = number


class Filter(msgspec.Struct, frozen=True):
    """Which jobs a request asks for; `failure` and `waiting` are keys of causes and reasons on the first screen."""

    states: frozenset[State] = frozenset()
    where: Where = Where()
    failure: str = ""
    waiting: str = ""

    def __bool__(self) -> bool:
        return bool(self.states or self.where or self.failure or self.waiting)


class _Parts:
    """The parts of the first screen for one filter, encoded, each with the version in which it changed last."""

    def __init__(self) -> None:
        self.encoded: dict[str, tuple[int, bytes]] = {}
        self.version = -1
        self.made_s = 0.0

    def update(self, parts: Mapping[str, Any], version: int) -> bool:
        """Note new parts; whether any has changed."""
        changed = False
        for name, value in parts.items():
            data = fitted({name: value}, _PART_BYTES.get(name, _OTHER_PART_BYTES))[name]
            known = self.encoded.get(name)
            if known is None or known[1] != data:
                self.encoded[name] = (version, data)
                changed = True
        return changed

    def since(self, version: int) -> dict[str, bytes]:
        """The parts that have changed after that version."""
        return {name: data for name, (changed, data) in self.encoded.items() if changed > version}


class Board:
    """What is shown of the workspace at `root`. `facts` are parts of the first screen that never change."""

    def __init__(self, root: Path, facts: Mapping[str, Any]) -> None:
        self._root = root
        self._facts = facts
        # Positions that an earlier server gave mean nothing here.
        self._instance = secrets.token_hex(4)
        self.version = 0
        self.age = Age()
        self._columns = JobValues()
        self._columns_are_behind = True
        # The jobs whose records have changed since the columns were asked for; None: maybe all.
        self._not_in_columns: frozenset[str] | None = None
        self._snapshot: Snapshot | None = None
        self._steps: deque[tuple[int, frozenset[str] | None]] = deque(maxlen=_VERSIONS)
        self._whole = _Parts()
        self._filters: dict[Filter, _Parts] = {}
        self._extras: dict[str, Any] = {}
        self._results_shown_s = 0.0
        self._settings: tuple[int, int, int] | None = None
        self._open()

    def _open(self) -> None:
        """Open the workspace as its settings are now."""
        self._settings = identity_at(Layout(self._root).config_file)
        workspace = Workspace(self._root)
        self._workspace = workspace
        self._store = workspace.store
        self.layout = workspace.layout
        self.reader = SnapshotReader(workspace.layout, workspace.config, workspace.store)
        self.shown = OverviewPage(self.layout)
        self.results = KnownResults(self._result)

    @property
    def config(self) -> Any:
        """The settings of dispatcher.yaml."""
        return self._workspace.config

    @property
    def snapshot(self) -> Snapshot:
        """What was read last."""
        if self._snapshot is None:
            raise StateError(f"{self._root} has not been read yet: ask again in a few seconds")
        return self._snapshot

    @property
    def columns(self) -> JobValues:
        """The values of all jobs; brought up to date when they are asked for."""
        if self._columns_are_behind:
            self._columns.follow(self.snapshot, self._not_in_columns)
            self._not_in_columns, self._columns_are_behind = frozenset(), False
            # For any request: viewers learn the keys.
            self._show({"keys": self._keys()}, is_new=False)
        return self._columns

    @property
    def seq(self) -> int | None:
        """How far the journal was read; None before it was."""
        return None if self._snapshot is None else self._store.seq

    @property
    def position(self) -> str:
        """What a viewer gives back to learn what has changed since."""
        return f"{self._instance}.{self.version}"

    def look(self) -> None:
        """Read what has changed in the files. Raises DispatcherError when they cannot be read."""
        self._check_that_it_is_there()
        if identity_at(Layout(self._root).config_file) != self._settings or self._journal_was_cut():
            self._open()
            self._snapshot = None
        snapshot = self.reader.read()
        before, self._snapshot = self._snapshot, snapshot
        self.age.note(self.layout, self._store, snapshot)
        changed = _changed_jobs(before, snapshot)
        if before is None or changed or changed is None or before.entries is not snapshot.entries:
            self._not_in_columns = (
                None if changed is None or self._not_in_columns is None else self._not_in_columns | changed
            )
            self._columns_are_behind = True
            self.results.follow(snapshot, changed)
        touched = None if before is None or changed is None else changed | _touched(before, snapshot)
        is_new = before is None or touched is None or bool(touched) or _others(before) != _others(snapshot)
        if is_new or time.monotonic() - self._whole.made_s > _OUTDATED_S:
            parts = self.shown.parts(snapshot, snapshot)
            more = {**self._facts, **self._extras, "keys": self._keys(), **self._results_parts()}
            self._show({**parts, **more}, touched if is_new else frozenset(), is_new=is_new)
            self._whole.made_s = time.monotonic()

    def _journal_was_cut(self) -> bool:
        """Whether the journal has less than was read of it: a backup was restored, or a copy was made anew."""
        store = self._store
        if store.generation is None:
            return False
        try:
            # Opened, because NFS clients show old sizes of what is not.
            with open(self.layout.journal(store.generation), "rb") as file:
                return os.fstat(file.fileno()).st_size < store.offset
        except FileNotFoundError:
            # There is a newer generation.
            return False

    def _show(self, parts: Mapping[str, Any], jobs: frozenset[str] | None = frozenset(), *, is_new: bool) -> None:
        """Show these parts; it is a new version when one of them has changed, or the jobs have."""
        version = self.version + 1
        if self._whole.update(parts, version) or is_new:
            self.version = version
            self._steps.append((version, jobs))

    def _check_that_it_is_there(self) -> None:
        """A run state that is gone must not be shown as it was: the reader of the journal takes that for a moment."""
        store = self._store
        if store.generation is not None and journal.newest_generation(self.layout) is None:
            raise StateError(f"the journal of {self._root} is gone ({self.layout.journal_dir}): is the disk mounted?")

    def places(self, wanted: Filter) -> Sequence[int]:
        """The places, among all jobs, of those that a filter selects. Raises UsageError for an unknown key."""
        _ = self.snapshot
        for number, condition in enumerate(wanted.where.conditions):
            try:
                self.columns.check(condition)
            except UsageError as error:
                raise FilterError(str(error), "where", number) from error
        found = self.columns.places(wanted.states, wanted.where)
        for name, key in (("failure", wanted.failure), ("waiting", wanted.waiting)):
            if key:
                # One that is gone has no jobs any more.
                jobs = self.shown.groups.get((name, key), frozenset())
                found = [place for place in found if self.columns.jobs[place] in jobs]
        return found

    def select(self, wanted: Filter) -> list[str]:
        """The jobs that a filter selects, in their order."""
        return [self.columns.jobs[place] for place in self.places(wanted)]

    def only(self, jobs: Sequence[str]) -> Snapshot:
        """The snapshot with only these jobs."""
        snapshot = self.snapshot
        records = snapshot.records
        if isinstance(records, Records):
            return snapshot.only(records.ordered(jobs, _NO_RECORD))
        return snapshot.only({job: records[job] for job in jobs})

    def put(self, name: str, value: Any) -> None:
        """Set a part of the first screen that is made elsewhere."""
        self._extras[name] = value
        self._show({name: value}, is_new=False)

    def read_results(self) -> int:
        """Read some results; how many are still to be read."""
        if self._snapshot is not None:
            # Read when no request waits for it.
            _ = self.columns
            self.results.step(self._snapshot)
        now_s = time.monotonic()
        if not self.results.pending or now_s - self._results_shown_s > _RESULTS_S:
            self._results_shown_s = now_s
            self._show(self._results_parts(), is_new=False)
        return self.results.pending

    def _results_parts(self) -> dict[str, Any]:
        results = self.results
        return {
            "metrics": results.names()[:_CHANGED_JOBS],
            "results": {"known": len(results.known), "pending": results.pending},
        }

    def _keys(self) -> list[dict[str, Any]]:
        columns = self._columns.keys
        return [{"key": key, "values": len(column.values) - 1} for key, column in columns.items()][:_CHANGED_JOBS]

    def _result(self, snapshot: Snapshot, job: str) -> Mapping[str, Any] | None:
        _, data = self.reader.last_result(job, snapshot.records[job])
        return None if data is None else parse_result(data) or {}

    # Answers.

    def overview(self, wanted: Filter) -> dict[str, bytes]:
        """All parts of the first screen."""
        _ = self.snapshot
        return self._both(wanted, -1)

    def pods(self) -> dict[str, Any]:
        """Pods and their slots."""
        return pods(self.layout, self.snapshot)

    def changes(self, since: str, wanted: Filter) -> dict[str, bytes] | None:
        """What has changed since a position: parts, and the jobs with other rows; None when nothing has."""
        instance, _, number = since.partition(".")
        if instance != self._instance or not number.isdecimal() or int(number) > self.version:
            return {"reset": b"true", **self.overview(wanted)}
        version = int(number)
        if version == self.version:
            return None
        jobs = self._jobs_since(version)
        if jobs is None:
            return {"reset": b"true", **self.overview(wanted)}
        found = self._both(wanted, version)
        named = sorted(jobs)[:_CHANGED_JOBS]
        return {**found, "jobs": encode(named), "jobs_more": encode(len(jobs) > len(named))}

    def _both(self, wanted: Filter, version: int) -> dict[str, bytes]:
        found = self._whole.since(version)
        if not wanted:
            return found
        own = self._filtered(wanted)
        # What the filter has of its own is never that of all jobs, also where only the latter has changed.
        return {name: data for name, data in found.items() if name not in own.encoded} | own.since(version)

    def _filtered(self, wanted: Filter) -> _Parts:
        """The parts that a filter has of its own."""
        found = self._filters.pop(wanted, None) or _Parts()
        self._filters[wanted] = found
        if len(self._filters) > _FILTERS:
            del self._filters[next(iter(self._filters))]
        if found.version != self.version or time.monotonic() - found.made_s > _OUTDATED_S:
            chosen = self.only(self.select(wanted))
            found.update(self.shown.parts(chosen, self.snapshot), self.version)
            found.version, found.made_s = self.version, time.monotonic()
        return found

    def _jobs_since(self, version: int) -> set[str] | None:
        if self._steps and self._steps[0][0] > version + 1:
            return None
        jobs: set[str] = set()
        for number, changed in self._steps:
            if number > version:
                if changed is None:
                    return None
                jobs |= changed
        return jobs


def _changed_jobs(before: Snapshot | None, after: Snapshot) -> frozenset[str] | None:
    """The jobs whose records differ; None: all may."""
    if before is None or before.records is after.records:
        return None if before is None else frozenset()
    one, other = before.records, after.records
    if not (isinstance(one, Records) and isinstance(other, Records)) or len(one) != len(other):
        return None
    if not all(map(operator.is_, one, other)) and list(one) != list(other):
        return None
    packed = (data for _, data in one.packed()), (data for _, data in other.packed())
    return frozenset(itertools.compress(other, map(operator.ne, *packed)))


def _touched(before: Snapshot, after: Snapshot) -> frozenset[str]:
    """The jobs of which something else than the record has changed."""
    pairs = ((before.progress, after.progress), (before.external, after.external))
    found = {job for one, other in pairs for job in one.keys() | other.keys() if one.get(job) != other.get(job)}
    found |= before.stalled.keys() ^ after.stalled.keys()
    found |= before.gpu_idle.keys() ^ after.gpu_idle.keys()
    found |= before.edited ^ after.edited
    one, other = before.newer_inputs, after.newer_inputs
    found |= {job for job in one.keys() | other.keys() if one.get(job) != other.get(job)}
    return frozenset(found)


def _others(snapshot: Snapshot) -> tuple[object, ...]:
    """What else the first screen shows."""
    return (
        snapshot.pauses,
        snapshot.refusals,
        snapshot.problem,
        snapshot.warnings,
        snapshot.untold,
        id(snapshot.entries),
        [_pod(pod) for pod in snapshot.pods],
    )


def _pod(pod: PodStatus) -> tuple[object, ...]:
    """What matters of a pod: its heartbeat rises, and memory and use of its GPUs change, all the time."""
    info = pod.info
    slots = [msgspec.structs.replace(slot, memory_used_mib=None, busy_percent=None) for slot in info.slots]
    still = msgspec.structs.replace(info, heartbeat=0, heartbeat_at="", journal=None, slots=slots)
    return pod.state, pod.is_draining, still
