"""Checkpoints of job classes beyond their retention; the package's page says which are never touched."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.base.mounts import mount_points
from dispatcher.checkpoints import reported
from dispatcher.checkpoints.directory import DirectoryStorage
from dispatcher.checkpoints.fence import Run
from dispatcher.checkpoints.manifest import MANIFEST, Manifest, decode
from dispatcher.checkpoints.reported import Reported
from dispatcher.checkpoints.retention import Retention
from dispatcher.checkpoints.scratch import LOCK
from dispatcher.checkpoints.series import Series
from dispatcher.checkpoints.storage import SCRATCH, TREE, is_url
from dispatcher.cleaning import tree
from dispatcher.cleaning.attempts import SILENT_S, OldAttempts
from dispatcher.cleaning.tree import Links, OnError, Size
from dispatcher.errors import DispatcherError
from dispatcher.run_state.states import ENDED, Record
from dispatcher.workspace import Layout

# What a job id can be, wherever it stands in an entry: in a path, in `needs`, in a command.
_WORD: Final = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ESCAPE: Final = re.compile(rb"\\.")
_AGAIN_S: Final = 1.0
_BY_HAND: Final = Run("", "", 0, None)


class OldCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that can go: `name` below `series`, saved at `saved_at_s` (by the file server's clock).

    `seal` is that of its manifest; empty for the rest of one whose removal was interrupted.
    """

    job: str
    series: Path
    name: str
    seal: str
    saved_at_s: float
    size: Size


def named_words(documents: Iterable[bytes]) -> frozenset[str]:
    """Every word in these entries, as JSON: what they name, their jobs may read."""
    found: set[bytes] = set()
    for document in documents:
        found.update(_WORD.findall(_ESCAPE.sub(b" ", document)))
    return frozenset(word.decode() for word in found)


class OldCheckpoints:
    """Finds and removes the superfluous checkpoints of one workspace. `skipped`: why some were left alone, and whose.

    `keep`: the last so many, in place of what the jobs keep. `periodic`: also those that they keep for their step.
    """

    def __init__(
        self,
        layout: Layout,
        attempts: OldAttempts,
        *,
        keep: int | None,
        periodic: bool,
        older_than_s: float,
        named: frozenset[str],
    ) -> None:
        self.skipped: dict[str, list[str]] = {}
        self._layout = layout
        self._attempts = attempts
        self._keep = keep
        self._periodic = periodic
        now_s = files.server_now_s(layout.run_state)
        self._before_s = now_s - older_than_s
        self._silent_before_s = now_s - SILENT_S
        self._named = named
        self._mounts = mount_points()
        # Of which job superfluous checkpoints were looked for last, when, and what they are.
        self._found: tuple[str, float, set[tuple[str, str]]] | None = None

    def of_job(self, job: str, record: Record | None, links: Links) -> list[OldCheckpoint]:
        """The superfluous checkpoints of a job, which has this record; None: its record was deleted."""
        try:
            return list(self._of_job(job, record, links))
        except OSError as error:
            self._skip(f"their checkpoints cannot be read ({error.strerror})", job)
        except DispatcherError as error:
            self._skip(f"their checkpoints cannot be read: {error}", job)
        return []

    def remove(self, old: OldCheckpoint, record: Record | None, links: Links, on_error: OnError) -> Size:
        """Remove a checkpoint if it is still superfluous; what was removed. `record` is the job's at this moment."""
        if (old.name, old.seal) not in self._still(old, record):
            return Size()
        *folders, last = old.name.split("/")
        with contextlib.ExitStack() as stack:
            try:
                within = stack.enter_context(tree.opened_root(old.series))
                for folder in folders:
                    within = stack.enter_context(tree.opened(folder, within))
                fd = stack.enter_context(tree.opened(last, within))
                if _seal(fd) != old.seal:
                    # Another one has its name now.
                    return Size()
                about = os.fstat(fd)
                removed = _remove_opened(fd, links, on_error)
            except (FileNotFoundError, NotADirectoryError):
                return Size()
            # A job that saves this name again has moved the rest away, and its own is not empty.
            with contextlib.suppress(OSError):
                os.rmdir(last, dir_fd=within)
                removed = removed + Size(1, links.bytes_of(about))
                if folders == [SCRATCH]:
                    os.unlink(f"{last}{LOCK}", dir_fd=within)
            return removed

    def _still(self, old: OldCheckpoint, record: Record | None) -> set[tuple[str, str]]:
        """The superfluous checkpoints of the job by now, by name and seal; looked for again after a second."""
        if self._found is None or self._found[0] != old.job or time.monotonic() - self._found[1] > _AGAIN_S:
            found = {(each.name, each.seal) for each in self.of_job(old.job, record, Links())}
            self._found = old.job, time.monotonic(), found
        pointed = Series(DirectoryStorage(old.series), _BY_HAND).pointed()
        return {each for each in self._found[2] if each[0] != pointed}

    def _of_job(self, job: str, record: Record | None, links: Links) -> Iterator[OldCheckpoint]:
        found = None
        if record is None or (record.state in ENDED and not record.external):
            found = self._reported(job, record)
        if found is not None and is_url(found.series or ""):
            self._skip("their checkpoints are in an object store, where nothing is looked for", job)
        place = None if found is None else found.place(self._layout.root)
        if found is not None and place is not None:
            yield from self._in_series(job, record, place, found, links)

    def _in_series(
        self, job: str, record: Record | None, place: Path, found: Reported, links: Links
    ) -> Iterator[OldCheckpoint]:
        storage = DirectoryStorage(place)
        series = Series(storage, _BY_HAND)
        manifests = dict(_manifests(storage))
        why = self._why_not(job, record, place, found, manifests)
        if why:
            self._skip(why, job)
            return
        names = self._superfluous(series, storage, found, manifests)
        names += [(name, "") for name in storage.remains()]
        if not names:
            return
        why = self._attempts.why_not_over(job)
        if why:
            self._skip(why, job)
            return
        with tree.opened_root(place) as fd:
            for name, seal in names:
                one = self._measured(fd, name, seal, links)
                if one is not None:
                    saved_at_s, size = one
                    yield OldCheckpoint(job=job, series=place, name=name, seal=seal, saved_at_s=saved_at_s, size=size)

    def _reported(self, job: str, record: Record | None) -> Reported | None:
        """What the newest attempt that committed a checkpoint says of it."""
        for number in self._attempts.numbers(job):
            if record is None or number <= record.attempt:
                found = reported.read(self._layout.attempt(job, number).checkpoint)
                if found is not None:
                    return found if found.series is not None else None
        return None

    def _why_not(
        self, job: str, record: Record | None, place: Path, found: Reported, manifests: dict[str, Manifest]
    ) -> str:
        """Why the series must be left alone; empty when it is this job's and no other's."""
        if not any(each.seal == found.seal for each in manifests.values()):
            return "the checkpoint that they reported last is not at its place here"
        others = sorted({each.job or "a run by hand" for each in manifests.values() if each.job != job})
        if others:
            return f"{others[0]} has saved among their checkpoints"
        if record is not None and any(each.attempt > record.attempt for each in manifests.values()):
            return "a later attempt than this workspace knows has saved their checkpoints"
        if job in self._named or place.name in self._named:
            return "the entry of a job that has not ended names them, so their checkpoints may be wanted"
        real = os.path.realpath(place)
        if any(point.startswith(f"{real}/") for point in self._mounts):
            return "something is mounted among their checkpoints"
        return ""

    def _superfluous(
        self, series: Series, storage: DirectoryStorage, found: Reported, manifests: dict[str, Manifest]
    ) -> list[tuple[str, str]]:
        retention = found.retention
        if retention is None and self._keep is None:
            return []
        retention = retention or Retention()
        retention = Retention(
            last=self._keep or retention.last,
            every=None if self._periodic else retention.every,
            best=retention.best,
            metric=retention.metric,
            mode=retention.mode,
        )
        latest = series.latest()
        if latest is None or latest.name not in manifests:
            return []
        if not storage.is_complete(latest.name, manifests[latest.name]):
            self._skip("their last checkpoint lacks files, so the earlier ones stay", manifests[latest.name].job)
            return []
        chosen = series.superfluous(retention, latest.name)
        return [(each.name, manifests[each.name].seal) for each in chosen if each.name in manifests]

    def _measured(self, root: int, name: str, seal: str, links: Links) -> tuple[float, Size] | None:
        """When a checkpoint was saved, and its size; None when it is too young, or is none of this directory."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), contextlib.ExitStack() as stack:
            device = os.fstat(root).st_dev
            fd = root
            try:
                for part in name.split("/"):
                    fd = stack.enter_context(tree.opened(part, fd))
            except OSError:
                # A link, say: what it names is not in this series.
                return None
            about = os.fstat(fd)
            saved_at_s = os.stat(MANIFEST, dir_fd=fd).st_mtime if seal else about.st_mtime
            before_s = self._before_s if seal else min(self._before_s, self._silent_before_s)
            if about.st_dev == device and saved_at_s <= before_s:
                size = tree.measure(fd, links, lambda _path, _error: None)
                return saved_at_s, size + Size(1, links.bytes_of(about))
        return None

    def _skip(self, why: str, job: str) -> None:
        jobs = self.skipped.setdefault(why, [])
        if job not in jobs:
            jobs.append(job)


def _manifests(storage: DirectoryStorage) -> Iterator[tuple[str, Manifest]]:
    """The committed checkpoints; DamagedCheckpointError when one cannot be read: a person has to see to that first."""
    for name, data in storage.manifests():
        yield name, decode(data, f"{storage.url}/{name}/{MANIFEST}")


def _seal(fd: int) -> str:
    """The seal of the manifest in an open directory; empty when there is none."""
    try:
        file = os.open(MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    except FileNotFoundError:
        return ""
    with os.fdopen(file, "rb") as opened:
        return decode(opened.read(), MANIFEST).seal


def _remove_opened(fd: int, links: Links, on_error: OnError) -> Size:
    """Remove what is in the open directory of a checkpoint.

    The manifest goes first: without it there is no checkpoint. What says that there was one goes last, so that whoever
    comes across the rest, if this is killed, knows what it is. A job that replaces the checkpoint meanwhile moves this
    directory away, and nothing of the new one is touched.
    """
    removed = _unlinked(fd, MANIFEST, links)
    os.fsync(fd)
    removed = removed + tree.remove(fd, links, on_error, {TREE})
    if set(tree.names(fd)) == {TREE}:
        removed = removed + _unlinked(fd, TREE, links)
    return removed


def _unlinked(fd: int, name: str, links: Links) -> Size:
    try:
        about = os.stat(name, dir_fd=fd, follow_symlinks=False)
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return Size()
    return Size(1, links.bytes_of(about))
