"""manifest.json: the files of a checkpoint. It is written last, so a directory without one is no checkpoint."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from dispatcher.checkpoints import checksum
from dispatcher.errors import DamagedCheckpointError, FormatError

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"


class FileRecord(msgspec.Struct, frozen=True):
    """One file: its path below the checkpoint's directory, its size in bytes, its checksum."""

    path: str
    size: int
    checksum: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint's contents and its place in the order of checkpoints.

    `term` increases by one with each run that saves here, `sequence` with each checkpoint. `run` is the run's id, `job`
    and `attempt` its job and attempt (empty and 0: started by hand). `parent` is the checkpoint that the run restored
    or saved before. `blobs` is the prefix of the files' keys in an object store.
    """

    format: int = FORMAT
    step: int
    term: int
    attempt: int
    sequence: int
    run: str
    job: str
    created: str
    parent: str | None
    resumable: bool
    metrics: dict[str, float | None]
    processes: int
    checksum: str = checksum.ALGORITHM
    blobs: str = ""
    files: tuple[FileRecord, ...]
    # The checksum of the manifest itself, taken with this field empty.
    seal: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        """The sort key within a series: checkpoints of a later attempt are newer than those of an earlier one."""
        return self.term, self.attempt, self.sequence

    def file(self, path: str) -> FileRecord | None:
        """The record of one file."""
        return next((record for record in self.files if record.path == path), None)


class _Version(msgspec.Struct):
    format: int


def encode(manifest: Manifest) -> bytes:
    """The manifest as JSON, with its seal."""
    sealed = msgspec.structs.replace(manifest, seal=seal_of(manifest))
    return msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    """Parse `data`, the manifest at the path or URL `where`.

    FormatError for a newer version, DamagedCheckpointError for anything that `encode` did not write.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).format
        if version > FORMAT:
            raise FormatError(
                f"{where}: format {version}, written by a newer dispatcher; this one knows format {FORMAT}. "
                "Nothing was changed. Install that version, or restore from another directory"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedCheckpointError(f"{where}: not a manifest: {error}") from None
    if manifest.seal != seal_of(manifest):
        raise DamagedCheckpointError(
            f"{where}: its content does not have the checksum {manifest.seal or '(none)'} that it states"
        )
    for path in (manifest.blobs, *(record.path for record in manifest.files)):
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            # Such a manifest could make this host read or replace any file.
            raise DamagedCheckpointError(f"{where}: lists {path!r}, which is outside of the checkpoint")
    return manifest


def seal_of(manifest: Manifest) -> str:
    """The checksum of the manifest, without its seal."""
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    del plain["seal"]
    return checksum.of_bytes(msgspec.json.encode(plain))
