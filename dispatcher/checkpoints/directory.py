"""Checkpoints in a directory. A commit is one rename of a directory that is complete, its manifest included."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.base.storing import storage_error, storing
from dispatcher.checkpoints import checksum
from dispatcher.checkpoints.file_tree import directories_below, files_below, remove_tree
from dispatcher.checkpoints.manifest import MANIFEST, FileRecord, Manifest, decode, encode
from dispatcher.checkpoints.scratch import Scratch
from dispatcher.checkpoints.storage import DAMAGED, LATEST, OLD, SCRATCH, SET_ASIDE, TREE, Guard
from dispatcher.errors import CheckpointError, DamagedCheckpointError

_OCCUPIED: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_TRIES: Final = 5


class DirectoryStorage:
    """A series of checkpoints below `root`, which several hosts may share."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root
        self._scratch = Scratch(root / SCRATCH)

    def staging(self) -> Path:
        return self._scratch.make_directory(f"{self._root}: cannot prepare a checkpoint")

    def clean(self, staged: Path) -> None:
        remove_tree(staged)

    def publish(self, staged: Path, name: str, draft: Manifest, guard: Guard) -> Manifest:
        target = self._root / name
        with storing(f"{target}: the checkpoint could not be written"):
            names, paths = zip(*files_below(staged), strict=True)
            sums = checksum.of_files(paths, sync=True)
            records = [FileRecord(each, *found) for each, found in zip(names, sums, strict=True)]
            manifest = msgspec.structs.replace(draft, files=tuple(records))
            data = encode(manifest)
            files.create_file(staged / MANIFEST, data)
            for folder in directories_below(staged):
                files.sync_directory(folder)
            self._check_parents(name)
            os.makedirs(target.parent, exist_ok=True)
            guard(None)
            for _ in range(_TRIES):
                if self._place(staged, target, data, guard):
                    break
            else:
                raise CheckpointError(f"{target}: other processes keep changing it; do several jobs save here?")
            files.sync_directory(target.parent)
            self._remove_replaced(target)
        return manifest

    def manifests(self) -> Iterator[tuple[str, bytes]]:
        for name, data in self._below(self._root, ""):
            if data is not None:
                yield name, data

    def remains(self) -> Iterator[str]:
        """What no process will finish: the rests of interrupted removals, and directories of saves that were killed."""
        for name, data in self._below(self._root, ""):
            if data is None:
                yield name
        yield from (f"{SCRATCH}/{token}" for token in self._scratch.dead())

    def manifest(self, name: str) -> bytes | None:
        with storing(f"{self._root / name}: cannot be read"):
            return _content(self._root / name / MANIFEST)

    def is_complete(self, name: str, manifest: Manifest) -> bool:
        try:
            return all(os.stat(self._root / name / each.path).st_size == each.size for each in manifest.files)
        except OSError:
            return False

    @contextlib.contextmanager
    def opened(self, name: str, manifest: Manifest) -> Iterator[tuple[Path, bool]]:
        yield self._root / name, False

    def read(self, name: str, manifest: Manifest, path: str) -> bytes | None:
        with storing(f"{self._root / name / path}: cannot be read"):
            return _content(self._root / name / path)

    def remove(self, name: str) -> None:
        with storing(f"{self._root / name}: the checkpoint could not be removed"):
            self._discard(self._root / name)

    def set_aside(self, name: str, folder: str) -> str:
        aside = self._root / folder / f"{name.replace('/', '_')}.{uuid.uuid4().hex[:8]}"
        with storing(f"{self._root / name}: the checkpoint could not be set aside"):
            os.makedirs(aside.parent, exist_ok=True)
            os.rename(self._root / name, aside)
            files.sync_directory((self._root / name).parent)
        return str(aside)

    def damaged(self) -> str | None:
        aside = self._root / DAMAGED
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return str(aside) if os.listdir(aside) else None
        return None

    def read_pointer(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return _content(self._root / LATEST)
        return None

    def write_pointer(self, data: bytes) -> None:
        with storing(f"{self._root / LATEST}: cannot be written"):
            files.replace_file(self._root / LATEST, data)

    def close(self) -> None:
        self._scratch.close()

    def _place(self, staged: Path, target: Path, data: bytes, guard: Guard) -> bool:
        """Rename `staged` to `target`; False when `target` has changed meanwhile and the caller has to retry."""
        try:
            os.rename(staged, target)
        except OSError as error:
            # An NFS client repeats a request whose answer was late, and fails although the first one renamed it.
            if error.errno == errno.ENOENT and _content(target / MANIFEST) == data:
                return True
            if error.errno not in _OCCUPIED:
                raise
        else:
            return True
        present = _content(target / MANIFEST)
        if present is None:
            self._clear(target)
            return False
        with contextlib.suppress(DamagedCheckpointError):
            guard(decode(present, str(target / MANIFEST)))
        old = target.with_name(f"{target.name}{OLD}{uuid.uuid4().hex[:8]}")
        try:
            os.rename(target, old)
        except FileNotFoundError:
            # It was superfluous, and `dispatcher clean` has just removed it.
            return False
        # Another process may have replaced it between the check and the rename: then put it back. Without a manifest it
        # is being removed by another process.
        if _content(old / MANIFEST) not in (present, None):
            os.rename(old, target)
            return False
        os.rename(staged, target)
        return True

    def _clear(self, target: Path) -> None:
        """Remove the rest of a checkpoint whose removal was interrupted; anything else is an error."""
        try:
            names = os.listdir(target)
        except FileNotFoundError:
            # The removal has just ended.
            return
        except NotADirectoryError:
            names = [target.name]
        # A removal in progress ends with TREE, and leaves a directory that a rename replaces.
        if not names:
            return
        if TREE not in names:
            raise CheckpointError(f"{target}: exists and is not a checkpoint; move it away or choose another name")
        self._discard(target)

    def _check_parents(self, name: str) -> None:
        for parent in list(Path(name).parents)[:-1]:
            if (self._root / parent / MANIFEST).exists():
                raise CheckpointError(
                    f"{self._root / name}: {parent} is a checkpoint itself, and nothing can be saved inside it"
                )

    def _remove_replaced(self, target: Path) -> None:
        for entry in os.listdir(target.parent):
            if entry.startswith(f"{target.name}{OLD}"):
                self._discard(target.with_name(entry))

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint, its manifest first: without one it is no checkpoint."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path / MANIFEST)
            files.sync_directory(path)
        try:
            discarded = self._scratch.new()
            os.rename(path, discarded)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in files.STORAGE_IS_FULL:
                raise
            # No space even for the directory to which it would be moved.
            discarded = path
            for entry in list(path.iterdir()):
                # TREE goes last: by it the rest is known for what it is.
                if entry.name != TREE:
                    remove_tree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
        remove_tree(discarded)

    def _below(self, folder: Path, prefix: str) -> Iterator[tuple[str, bytes | None]]:
        """Every checkpoint with its manifest, and with None what is left of one whose removal was interrupted."""
        try:
            with os.scandir(folder) as scan:
                entries = {entry.name: entry.is_dir() for entry in scan}
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise storage_error(error, f"{folder}: cannot be listed") from error
        if prefix and MANIFEST in entries:
            data = _content(folder / MANIFEST)
            if data is not None:
                yield prefix, data
            return
        if prefix and (TREE in entries or not entries):
            yield prefix, None
            return
        for name in sorted(entries):
            if entries[name] and not name.startswith(".") and (prefix or name not in (SCRATCH, DAMAGED, SET_ASIDE)):
                yield from self._below(folder / name, f"{prefix}/{name}" if prefix else name)


def _content(path: Path) -> bytes | None:
    """The content of a file now; None when it does not exist, also where one of its parents is a file."""
    try:
        return files.read_fresh(path)
    except NotADirectoryError:
        return None
