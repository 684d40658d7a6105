"""CheckpointManager: save in the background of the training, and restore complete checkpoints."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import jax
import msgspec

from dispatcher.base import files
from dispatcher.checkpoints.directory import DirectoryStorage
from dispatcher.checkpoints.fence import Run
from dispatcher.checkpoints.file_tree import remove_until_quiet
from dispatcher.checkpoints.manifest import Manifest
from dispatcher.checkpoints.reference import CheckpointRef
from dispatcher.checkpoints.retention import Retention
from dispatcher.checkpoints.series import Series
from dispatcher.checkpoints.storage import SCRATCH, TREE, Storage, check_name, is_url, normal
from dispatcher.errors import CheckpointError, DamagedCheckpointError, DispatcherError
from dispatcher.runtime import collectives
from dispatcher.runtime.checkpoint import arrays, contents, tree, verify
from dispatcher.runtime.checkpoint.background import Background
from dispatcher.runtime.checkpoint.contents import Contents
from dispatcher.runtime.checkpoint.rng import RandomState

_RETRY_TIMEOUT_S: Final = 120.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was read: its tree, its reference, and its other contents."""

    tree: Any
    ref: CheckpointRef
    contents: Contents


class CheckpointManager:
    """The checkpoints below `place`, a directory or the URL of a prefix in an object store (`s3://`, `gs://`).

        with CheckpointManager("checkpoints/run1", retention=Retention(last=3)) as checkpoints:
            resumed = checkpoints.resume(state)
            if resumed is not None:
                state, step = resumed.tree, resumed.ref.step
            ...
            checkpoints.save(state, step, metrics={"loss": loss})

    `save`, `wait`, `close`, `resume`, `restore`, `load`, `register` and `rewind` are collective: all processes of a
    job call them, and process 0 commits. Any process may call the others. `scratch` is the directory in which
    checkpoints for an object store are assembled; several processes must share it. A request to an object store is
    repeated for `retry_timeout_s`. `renamed_from` has former names of leaves, or of folders of leaves, by their names
    now.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        scratch: Path | None = None,
        compress: bool = False,
        retry_timeout_s: float = _RETRY_TIMEOUT_S,
        renamed_from: Mapping[str, str] | None = None,
    ) -> None:
        self._renamed_from = dict(renamed_from or {})
        self._run = Run.current()
        self._storage = _open(normal(place), scratch, self._run, retry_timeout_s)
        self._series = Series(self._storage, self._run)
        self._retention = retention
        self._compress = compress
        self._background = Background()
        self._pending = False
        # The checkpoint from which the next one continues.
        self._parent: str | None = None

    @property
    def url(self) -> str:
        """The directory or the URL of the series."""
        return self._storage.url

    def save(
        self,
        pytree: Any,
        step: int,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        beside: Contents | None = None,
        resumable: bool = True,
    ) -> CheckpointRef:
        """Begin to save `pytree`, and return as soon as its arrays are copied off the devices.

        It is committed in the background, as `name` (default: `step-00000120`); an older checkpoint of that name is
        replaced. `wait` and the next save wait for the commit and raise its error: StorageError, SupersededError,
        CheckpointError. `metadata` is plain data, `beside` are the other contents. A `resumable` checkpoint becomes the
        latest and is subject to the retention.
        """
        self.wait()
        name = check_name(name or f"step-{step:08d}")
        doing = f"{self.url}/{name}: step {step} was not saved"
        leaves = tree.named_leaves(pytree)
        described = tree.describe(leaves)
        kept = beside or Contents()
        if metadata is not None:
            kept = replace(kept, metadata=metadata)
        if kept.random is None:
            kept = replace(kept, random=RandomState.capture())
        each_process = collectives.all_gather(kept.of_this_process())
        staged, order = self._prepare(doing)
        draft = self._draft(step, order, resumable, metrics or {})
        to_write = tree.for_orbax(leaves, described)
        try:
            place = staged / arrays.ARRAYS
            writing = arrays.begin_saving(place, to_write, compress=self._compress) if to_write else None
        except Exception as error:
            remove_until_quiet(staged)
            raise arrays.writing_error(error, doing) from error

        def finish() -> None:
            with self._cleaned(staged, doing):
                if writing is not None:
                    writing.result()
                if collectives.is_first_process():
                    kept.write(staged, each_process)
                    files.create_file(staged / TREE, tree.encode(described))
                    self._commit(staged, name, draft, doing)

        self._pending = True
        self._background.start(finish)
        if resumable:
            self._parent = name
        return CheckpointRef.of(self.url, name, draft)

    def wait(self) -> None:
        """Wait until the last save is committed; raises its error."""
        if not self._pending:
            return
        self._pending = False
        collectives.raise_on_all(self._background.wait())

    @property
    def saving(self) -> bool:
        """Whether this process is still writing its part of the last save."""
        return self._background.busy

    def close(self) -> None:
        """Wait, and remove the scratch directory."""
        try:
            self.wait()
        finally:
            self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            # The other processes may not get here, and a second error must not hide this one.
            self._background.end()
            self._storage.close()

    def checkpoints(self) -> list[CheckpointRef]:
        """All committed checkpoints, the oldest first."""
        return self._series.checkpoints()

    def latest(self) -> CheckpointRef | None:
        """The checkpoint to resume from: the newest, or the one registered since; None when there is none."""
        return self._series.latest()

    def find(self, name: str) -> CheckpointRef:
        """The checkpoint of that name; CheckpointError lists the existing ones when there is none."""
        return self._series.found(name)[0]

    def register(self, name: str) -> CheckpointRef:
        """Make a committed checkpoint the latest, until another one is saved."""
        self.wait()
        return self.find(collectives.broadcast_result(lambda: self._series.register(name).name))

    def rewind(self, name: str) -> CheckpointRef:
        """Make a committed checkpoint the latest, and set aside all that were saved after it, even the best one.

        They are moved to `set-aside/` (in an object store their manifests are renamed) and are never removed.
        """
        self.wait()
        for place in collectives.broadcast_result(lambda: self._series.rewind(name)):
            _log.info("saved after %s, now in %s", name, place)
        self._parent = name
        return self.find(name)

    def contents(self, ref: CheckpointRef) -> Contents:
        """The contents of a checkpoint other than its arrays, which are not read."""
        _, manifest = self._series.found(ref.name)
        return self._contents(ref, manifest)

    def leaves(self, ref: CheckpointRef) -> dict[str, tree.Leaf]:
        """The shapes and types of a checkpoint's tree, by name; its arrays are not read."""
        _, manifest = self._series.found(ref.name)
        return tree.decode(self._read(ref, manifest, TREE) or b"", f"{ref.url}/{TREE}")

    def restore(self, target: Any, ref: CheckpointRef | None = None, *, partial: bool = False) -> Any:
        """The tree of the latest checkpoint, or of `ref`, with `target`'s structure and on its devices. See `load`."""
        return self.load(target, ref, partial=partial).tree

    def load(self, target: Any, ref: CheckpointRef | None = None, *, partial: bool = False) -> Restored:
        """Read the latest checkpoint, or `ref`, onto the devices of `target`, a tree of arrays or of their shapes.

        A damaged latest checkpoint is reported and set aside, and the one before it is used; a damaged `ref` is a
        DamagedCheckpointError. A leaf that is missing, unknown or of another shape or type is a
        CheckpointMismatchError; with `partial` the checkpoint may have more leaves than the target.

        After the latest is read, the retention is applied, which may free the space that the next save needs.
        """
        self.wait()
        while True:
            chosen, manifest = self._choose(ref)
            try:
                restored = self._load(chosen, manifest, target, partial=partial)
            except DamagedCheckpointError as error:
                if ref is not None:
                    raise
                collectives.broadcast_result(functools.partial(self._series.set_aside, chosen.name, error))
            else:
                self._parent = chosen.name
                if ref is None:
                    self._retain(chosen.name)
                return restored

    def resume(self, target: Any, *, partial: bool = False) -> Restored | None:
        """As `load` of the latest; None when nothing was ever saved, and the run starts from the beginning.

        CheckpointError when all checkpoints are damaged: the run must not start over because of that.
        """
        self.wait()
        if not collectives.broadcast_result(self._series.can_resume):
            return None
        return self.load(target, partial=partial)

    def _prepare(self, doing: str) -> tuple[Path, tuple[int, int, int]]:
        """The directory in which the checkpoint is assembled, and its order."""

        def prepare() -> list[Any]:
            self._series.check_current(doing)
            order = self._series.next_order()
            return [str(self._storage.staging()), list(order)]

        staged, order = collectives.broadcast_result(prepare)
        missing = None
        if not Path(staged).is_dir():
            missing = CheckpointError(f"{doing}: {staged} is not seen by process {jax.process_index()}")
        collectives.raise_on_all(missing)
        return Path(staged), (order[0], order[1], order[2])

    def _draft(self, step: int, order: tuple[int, int, int], resumable: bool, metrics: Mapping[str, float]) -> Manifest:
        return Manifest(
            step=step,
            term=order[0],
            attempt=order[1],
            sequence=order[2],
            run=self._run.id,
            job=self._run.job,
            created=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            parent=self._parent,
            resumable=resumable,
            metrics={name: float(value) if math.isfinite(value) else None for name, value in metrics.items()},
            processes=jax.process_count(),
            files=(),
        )

    def _commit(self, staged: Path, name: str, draft: Manifest, doing: str) -> None:
        def guard(present: Manifest | None) -> None:
            if present is None:
                self._series.check_current(doing)
            else:
                self._series.check_replaceable(present, name, draft, doing)

        committed = self._storage.publish(staged, name, draft, guard)
        if not draft.resumable:
            return
        with self._saved_already(name):
            self._series.advance(name, draft.order)
            if self._retention is not None:
                self._series.retain(self._retention, name)
        with self._saved_already(name):
            self._run.report(self.url, name, committed, self._retention)

    @contextlib.contextmanager
    def _saved_already(self, name: str) -> Iterator[None]:
        """Log errors after the commit as warnings: they are no reason to stop."""
        try:
            yield
        except DispatcherError as error:
            _log.warning("%s/%s is saved, but: %s", self.url, name, error)

    def _retain(self, read: str) -> None:
        """Apply the retention after the checkpoint `read` was read; errors are logged as warnings."""
        if self._retention is None or not collectives.is_first_process():
            return
        try:
            self._series.check_current("older checkpoints are kept")
            self._series.retain(self._retention, read)
        except DispatcherError as error:
            _log.warning("%s", error)

    @contextlib.contextmanager
    def _cleaned(self, staged: Path, doing: str) -> Iterator[None]:
        """Remove `staged` at the end, and convert errors into those of this package."""
        try:
            yield
        except DispatcherError:
            raise
        except Exception as error:
            # One array failed, and Orbax does not wait for the writes of the others.
            if collectives.is_first_process():
                remove_until_quiet(staged)
            raise arrays.writing_error(error, doing) from error
        finally:
            if collectives.is_first_process():
                self._storage.clean(staged)

    def _choose(self, ref: CheckpointRef | None) -> tuple[CheckpointRef, Manifest]:
        def choose() -> list[Any]:
            if ref is None:
                self._series.set_unreadable_aside()
            chosen = ref or self._series.latest()
            if chosen is None:
                self._series.check_not_all_damaged()
                raise CheckpointError(f"{self.url}: there is no checkpoint to restore")
            found, manifest = self._series.found(chosen.name)
            return [found.name, msgspec.to_builtins(manifest)]

        name, built = collectives.broadcast_result(choose)
        manifest = msgspec.convert(built, Manifest)
        return CheckpointRef.of(self.url, name, manifest), manifest

    def _load(self, ref: CheckpointRef, manifest: Manifest, target: Any, *, partial: bool) -> Restored:
        with contextlib.ExitStack() as stack:
            with _together():
                directory, verified = stack.enter_context(self._storage.opened(ref.name, manifest))
                kept = self._contents(ref, manifest)
                saved = tree.decode(self._read(ref, manifest, TREE) or b"", f"{ref.url}/{TREE}")
                here = tree.named_leaves(target)
                names = tree.saved_names(here, saved, self._renamed_from)
                leaves = {names[name]: leaf for name, leaf in here.items()}
                described = tree.describe(leaves)
                tree.check_fit(saved, described, f"{ref.url}/{arrays.ARRAYS}", partial=partial)
            abstract = tree.abstract(leaves, described)
            if not verified:
                # Before Orbax reads them, whose errors for damaged files are obscure. Each process checks a share.
                with _together():
                    verify.twice(directory, manifest.files[jax.process_index() :: jax.process_count()])
            restored = _arrays(directory, abstract, ref, partial=partial) if abstract else {}
            return Restored(tree.rebuild(target, restored, saved, names), ref, kept)

    def _contents(self, ref: CheckpointRef, manifest: Manifest) -> Contents:
        return contents.read(lambda path: self._read(ref, manifest, path), ref.url, jax.process_index())

    def _read(self, ref: CheckpointRef, manifest: Manifest, path: str) -> bytes | None:
        """The verified content of a small file; None when the checkpoint has no such file."""
        record = manifest.file(path)
        if record is None:
            return None
        data = self._storage.read(ref.name, manifest, path)
        problems = verify.of_content(record, data)
        if problems:
            raise verify.damaged(ref.url, problems)
        return data


def _arrays(directory: Path, abstract: Mapping[str, Any], ref: CheckpointRef, *, partial: bool) -> dict[str, Any]:
    try:
        return arrays.load(directory / arrays.ARRAYS, abstract, partial=partial)
    except Exception as error:
        raise arrays.writing_error(error, f"{ref.url}: the arrays cannot be read") from error


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Raise an error of the block on all processes."""
    raised: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001  # raise_on_all raises it, here and on the other processes
        raised = error
    collectives.raise_on_all(raised)


def _open(place: str, scratch: Path | None, run: Run, retry_timeout_s: float) -> Storage:
    if not is_url(place):
        return DirectoryStorage(Path(place))
    from dispatcher.runtime.checkpoint.objects import ObjectStorage, default_scratch

    if scratch is None and jax.process_count() > 1:
        if run.directory is None:
            raise CheckpointError(
                f"{place}: several processes need a shared directory to assemble a checkpoint: pass scratch=..."
            )
        scratch = run.directory / SCRATCH
    return ObjectStorage(place, scratch or default_scratch(), run, retry_timeout_s)
