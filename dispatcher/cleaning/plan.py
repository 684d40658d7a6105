"""What `dispatcher clean` removes: the list is made first, shown, and only then removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from dispatcher.base.messages import readable
from dispatcher.cleaning import blobs, copies
from dispatcher.cleaning.attempts import OldAttempt, OldAttempts
from dispatcher.cleaning.blobs import Orphan
from dispatcher.cleaning.tree import Links, Size
from dispatcher.outlets.code.copies import labels_in_use
from dispatcher.run_state.states import Record
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.cleaning.checkpoints import OldCheckpoint, OldCheckpoints

# How often the records are read again while attempts are removed.
_READ_AGAIN_S = 1.0

# Told of each job that is looked at, by its number.
OnJob = Callable[[int], None]


class Removed(msgspec.Struct):
    """What was removed, and what could not be: lines for people."""

    size: Size
    failed: list[str]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Something to remove: its path below run_state/ (checkpoints: below the workspace), and when it was used."""

    what: str
    files: int
    bytes: int
    at_s: float


class RemovalPlan:
    """Things to remove; `removed` is what was, None: nothing yet.

    `skipped`: why attempts were left alone, and which; `unlooked`: why checkpoints, and whose. `read_records` reads the
    newest records.
    """

    def __init__(
        self, layout: Layout, old: OldAttempts, by: str, read_records: Callable[[], Mapping[str, Record]]
    ) -> None:
        self.attempts: list[OldAttempt] = []
        self.checkpoints: list[OldCheckpoint] = []
        self.orphans: list[Orphan] = []
        self.removed: Removed | None = None
        self._layout = layout
        self._old = old
        self._old_checkpoints: OldCheckpoints | None = None
        self._by = by
        self._read_records = read_records

    @property
    def skipped(self) -> Mapping[str, list[str]]:
        return self._old.skipped

    @property
    def unlooked(self) -> Mapping[str, list[str]]:
        return {} if self._old_checkpoints is None else self._old_checkpoints.skipped

    @property
    def size(self) -> Size:
        sizes = [one.size for one in self.attempts] + [one.size for one in self.checkpoints]
        return sum([*sizes, *(one.size for one in self.orphans)], Size())

    @property
    def items(self) -> list[Item]:
        """Everything that is to be removed."""
        return [
            *(_item(f"jobs/{one.job}/{one.number}", one.size, one.over_at_s) for one in self.attempts),
            *(_item(self.shown(one), one.size, one.saved_at_s) for one in self.checkpoints),
            *(_item(one.path, one.size, one.unused_since_s) for one in self.orphans),
        ]

    def shown(self, checkpoint: OldCheckpoint) -> str:
        """The path of a checkpoint, below the workspace if it is there."""
        path = checkpoint.series / checkpoint.name
        return str(path.relative_to(self._layout.root) if path.is_relative_to(self._layout.root) else path)

    def add_attempts(self, jobs: Mapping[str, Record | None], on_job: OnJob) -> None:
        """Look for old attempts of these jobs; one without a record was deleted."""
        links = Links(freed=True)
        for number, job in enumerate(sorted(jobs)):
            on_job(number)
            self.attempts += self._old.of_job(job, jobs[job], links)

    def add_checkpoints(self, jobs: Mapping[str, Record | None], old: OldCheckpoints, on_job: OnJob) -> None:
        """Look for superfluous checkpoints of these jobs."""
        self._old_checkpoints = old
        links = Links(freed=True)
        for number, job in enumerate(sorted(jobs)):
            on_job(number)
            self.checkpoints += old.of_job(job, jobs[job], links)

    def add_orphans(self, records: Iterable[Record], older_than_s: float) -> None:
        """Look for what nothing refers to. Raises StateError when that cannot be told."""
        records = list(records)
        self.orphans += blobs.orphans(self._layout, records, older_than_s)
        self.orphans += copies.unused(self._layout, records, older_than_s)

    def remove(self) -> Removed:
        """Remove what is listed, but what belongs to jobs that are no longer over."""
        read_records = self._read_records
        self.removed = done = Removed(Size(), [])
        links = Links(freed=True)
        records, read_at_s = read_records(), time.monotonic()
        for attempt in self.attempts:
            if time.monotonic() - read_at_s > _READ_AGAIN_S:
                records, read_at_s = read_records(), time.monotonic()
            where = f"jobs/{attempt.job}/{attempt.number}"

            def failed(path: str, error: OSError, where: str = where) -> None:
                done.failed.append(_line(f"{where}/{path}" if path else where, error))

            try:
                removed = self._old.clean(attempt, records.get(attempt.job), self._by, links, failed)
                done.size = done.size + removed
            except OSError as error:
                done.failed.append(_line(where, error))
        for checkpoint in self.checkpoints:
            if time.monotonic() - read_at_s > _READ_AGAIN_S:
                records, read_at_s = read_records(), time.monotonic()
            place = self.shown(checkpoint)

            def left(path: str, error: OSError, place: str = place) -> None:
                done.failed.append(_line(f"{place}/{path}" if path else place, error))

            assert self._old_checkpoints is not None
            try:
                removed = self._old_checkpoints.remove(checkpoint, records.get(checkpoint.job), links, left)
                done.size = done.size + removed
            except OSError as error:
                done.failed.append(_line(place, error))
        if self.orphans:
            blobs.put_back(self._layout)
        in_use, read_at_s = set[str](), float("-inf")
        for orphan in self.orphans:

            def not_removed(path: str, error: OSError) -> None:
                done.failed.append(_line(path, error))

            if copies.is_copy(orphan):
                if time.monotonic() - read_at_s > _READ_AGAIN_S:
                    in_use, read_at_s = labels_in_use(read_records().values()), time.monotonic()
                removed = copies.remove(self._layout, orphan, in_use, not_removed)
            else:
                removed = blobs.remove(self._layout, orphan, links, not_removed)
            done.size = done.size + removed
        return done


def _item(what: str, size: Size, at_s: float) -> Item:
    return Item(what=what, files=size.files, bytes=size.bytes, at_s=at_s)


def _line(path: str, error: OSError) -> str:
    return f"{readable(path)}: {error.strerror}"
