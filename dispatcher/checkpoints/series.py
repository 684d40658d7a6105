"""The checkpoints of one series: their list, the latest one, the order of the next one, and their removal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import msgspec

from dispatcher.checkpoints.fence import Run
from dispatcher.checkpoints.manifest import FORMAT, MANIFEST, Manifest, decode
from dispatcher.checkpoints.reference import CheckpointRef
from dispatcher.checkpoints.retention import Retention
from dispatcher.checkpoints.storage import DAMAGED, LATEST, OLD, SET_ASIDE, Storage
from dispatcher.errors import CheckpointError, DamagedCheckpointError, DispatcherError, StorageError, SupersededError

_log = logging.getLogger(__name__)


class _Pointer(msgspec.Struct, frozen=True):
    """The file `latest`: the name of a checkpoint, and the order of the newest one when it was written."""

    checkpoint: str
    order: tuple[int, int, int]
    format: int = FORMAT


class Series:
    """The checkpoints committed in `storage`, for the run `run`."""

    def __init__(self, storage: Storage, run: Run) -> None:
        self.storage = storage
        self._run = run
        # Damaged checkpoints that could not be set aside; they are ignored.
        self._ignored: set[str] = set()

    def checkpoints(self) -> list[CheckpointRef]:
        """All checkpoints, the oldest first; FormatError when one of them has a newer format."""
        found = [CheckpointRef.of(self.storage.url, name, manifest) for name, manifest in self._readable()]
        return sorted(found, key=lambda each: each.order)

    def latest(self) -> CheckpointRef | None:
        """The checkpoint in `latest`, or a newer one that was saved since; without that file, the newest."""
        known = self.checkpoints()
        newest = next((each for each in reversed(known) if each.resumable), None)
        pointer = self._pointer()
        named = next((each for each in known if pointer is not None and each.name == pointer.checkpoint), None)
        if pointer is not None and named is not None:
            return newest if newest is not None and newest.order > pointer.order else named
        found = newest or next(reversed(known), None)
        if pointer is not None and found is not None:
            _log.warning(
                "%s/%s names %s, which does not exist: using %s, the newest one",
                *(self.storage.url, LATEST, pointer.checkpoint, found.name),
            )
        return found

    def can_resume(self) -> bool:
        """Whether there is a checkpoint; CheckpointError when all of them are damaged."""
        self.set_unreadable_aside()
        if self.latest() is not None:
            return True
        self.check_not_all_damaged()
        return False

    def check_not_all_damaged(self) -> None:
        """Raise a CheckpointError if there are damaged checkpoints: a run must not start over because of them."""
        place = self.storage.damaged()
        if place is not None:
            raise CheckpointError(
                f"{self.storage.url}: every checkpoint was damaged and set aside ({place}): there is none to resume "
                "from. Repair one and move it back, or remove them to start over"
            )
        if self._ignored:
            names = ", ".join(sorted(self._ignored))
            raise CheckpointError(
                f"{self.storage.url}: every checkpoint is damaged ({names}), and none could be "
                "set aside: there is none to resume from. Repair one, or remove them to start over"
            )

    def register(self, name: str) -> CheckpointRef:
        """Make a checkpoint the latest."""
        ref, _ = self.found(name)
        self._run.check(f"{ref.url} cannot be made the latest")
        newest = max([ref.order, *(each.order for each in self.checkpoints() if each.resumable)])
        self._point(ref.name, newest)
        return ref

    def rewind(self, name: str) -> list[str]:
        """Make a checkpoint the latest and set aside all newer ones; returns the new places of those."""
        # First, so that a process that dies halfway has rewound all the same.
        ref = self.register(name)
        newer = [each for each in reversed(self.checkpoints()) if each.order > ref.order]
        places = [self.storage.set_aside(each.name, SET_ASIDE) for each in newer]
        self._point(ref.name, ref.order)
        return places

    def advance(self, name: str, order: tuple[int, int, int]) -> None:
        """Make a new commit the latest, unless a newer one is the latest already."""
        pointer = self._pointer()
        if pointer is None or pointer.order < order:
            self._point(name, order)

    def found(self, name: str) -> tuple[CheckpointRef, Manifest]:
        """The checkpoint `name`; CheckpointError lists the existing ones when there is none of that name."""
        data = self.storage.manifest(name)
        if data is None:
            # Between the two renames of a replacement there is none, and it stays so when that process dies.
            renamed = [each.name for each in self.checkpoints() if each.name.startswith(f"{name}{OLD}")]
            if not renamed:
                raise CheckpointError(f"{self.storage.url}/{name}: no such checkpoint{self._list()}")
            name = renamed[-1]
            data = self.storage.manifest(name) or b""
        manifest = decode(data, f"{self.storage.url}/{name}/{MANIFEST}")
        return CheckpointRef.of(self.storage.url, name, manifest), manifest

    def next_order(self) -> tuple[int, int, int]:
        """The order of this run's next checkpoint, after all others: a new run begins a new term."""
        newest = max((manifest for _, manifest in self._readable()), key=lambda each: each.order, default=None)
        if newest is None:
            return 1, self._run.attempt, 1
        term = newest.term if newest.run == self._run.id else newest.term + 1
        order = term, self._run.attempt, newest.sequence + 1
        pointer = self._pointer()
        if pointer is not None and pointer.order >= order:
            # A process died during a rewind: the next checkpoint is newer than all that existed before.
            return pointer.order[0] + 1, self._run.attempt, newest.sequence + 1
        return order

    def check_current(self, doing: str) -> None:
        """Raise a SupersededError when a newer attempt of this run's job has saved, or marked this one."""
        self._run.check(doing)
        for each in self.checkpoints():
            self._check_not_superseded(each.job, each.attempt, each.url, doing)

    def check_replaceable(self, present: Manifest, name: str, ours: Manifest, doing: str) -> None:
        """Raise unless `ours` is newer than `present`, which it would replace."""
        where = f"{self.storage.url}/{name}"
        self._check_not_superseded(present.job, present.attempt, where, doing)
        if present.order >= ours.order:
            raise CheckpointError(
                f"{doing}: {where} was saved meanwhile by {present.run} (step {present.step}); do two runs save here?"
            )

    def retain(self, retention: Retention, good: str) -> None:
        """Remove what `retention` does not keep, if `good`, just committed or read, is complete; it is kept."""
        ref, manifest = self.found(good)
        if not self.storage.is_complete(ref.name, manifest):
            _log.warning("%s is incomplete: older checkpoints are kept", ref.url)
            return
        for each in self.superfluous(retention, ref.name):
            self.storage.remove(each.name)

    def superfluous(self, retention: Retention, good: str) -> list[CheckpointRef]:
        """What `retention` does not keep, the oldest first; `good` and the one in `latest` are kept in any case."""
        return retention.superfluous(self.checkpoints(), {good, self.pointed()})

    def pointed(self) -> str:
        """The name in the file `latest`; empty without it."""
        pointer = self._pointer()
        return pointer.checkpoint if pointer is not None else ""

    def set_aside(self, name: str, why: DamagedCheckpointError) -> None:
        """Move a damaged checkpoint out of the series, and log a warning."""
        self._run.check(f"{self.storage.url}/{name} is damaged, but cannot be set aside")
        try:
            place = f"it was moved to {self.storage.set_aside(name, DAMAGED)}"
        except StorageError as error:
            self._ignored.add(name)
            place = f"it stays where it is: {error}"
        _log.warning("%s\n%s; the one before it is used", why, place)

    def set_unreadable_aside(self) -> None:
        """Set aside every checkpoint whose manifest is damaged."""
        for name, data in list(self.storage.manifests()):
            try:
                decode(data, self._manifest_of(name))
            except DamagedCheckpointError:
                self._confirm_damage(name)

    def _confirm_damage(self, name: str) -> None:
        """Read a damaged manifest again, because a file server may have returned a part; set it aside if damaged."""
        if name in self._ignored:
            return
        try:
            decode(self.storage.manifest(name) or b"", self._manifest_of(name))
        except DamagedCheckpointError as error:
            self.set_aside(name, error)

    def _readable(self) -> Iterator[tuple[str, Manifest]]:
        for name, data in self.storage.manifests():
            if name in self._ignored:
                continue
            try:
                yield name, decode(data, self._manifest_of(name))
            except DamagedCheckpointError as error:
                _log.warning("%s; it is ignored", error)

    def _point(self, name: str, order: tuple[int, int, int]) -> None:
        self.storage.write_pointer(msgspec.json.encode(_Pointer(name, order)) + b"\n")

    def _pointer(self) -> _Pointer | None:
        data = self.storage.read_pointer()
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            if data is not None:
                return msgspec.json.decode(data, type=_Pointer)
        return None

    def _check_not_superseded(self, job: str, attempt: int, where: str, doing: str) -> None:
        if self._run.is_superseded_by(job, attempt):
            raise SupersededError(
                f"{doing}: attempt {attempt} of {job} has saved {where} already, so attempt {self._run.attempt} is no "
                "longer the current one. Nothing was committed; this attempt must stop"
            )

    def _manifest_of(self, name: str) -> str:
        return f"{self.storage.url}/{name}/{MANIFEST}"

    def _list(self) -> str:
        try:
            names = [each.name for each in self.checkpoints()]
        except DispatcherError:
            return ""
        return f" (known: {', '.join(names[-12:])})" if names else "; there are no checkpoints"
