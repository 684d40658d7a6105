"""Whether the files of a checkpoint are those that its manifest lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dispatcher.base import files
from dispatcher.base.messages import indented
from dispatcher.errors import DamagedCheckpointError
from dispatcher.runtime.checkpoint import checksum
from dispatcher.runtime.checkpoint.manifest import FileRecord
from dispatcher.runtime.storing import storage_error


def check(directory: Path, records: Iterable[FileRecord]) -> None:
    """Raise a DamagedCheckpointError that lists every file which is missing, of another size or another content."""
    problems, present = [], []
    for record in records:
        if (directory / record.path).is_file():
            present.append(record)
        else:
            problems.append(f"{record.path}: missing")
    try:
        sums = checksum.of_files([directory / record.path for record in present])
    except OSError as error:
        # A server that fails for a moment is no damage.
        raise storage_error(error, f"{directory}: cannot be read") from error
    for record, (size, found) in zip(present, sums, strict=True):
        problems += difference(record, size, found)
    if problems:
        raise damaged(str(directory), problems)


def twice(directory: Path, records: Sequence[FileRecord]) -> None:
    """As `check`, but a file server may have shown old data: only what is damaged at a second look is damaged."""
    try:
        check(directory, records)
    except DamagedCheckpointError:
        files.look_at(directory)
        check(directory, records)


def of_content(record: FileRecord, data: bytes | None) -> list[str]:
    """What is wrong with a small file of this content."""
    if data is None:
        return [f"{record.path}: missing"]
    return difference(record, len(data), checksum.of_bytes(data))


def difference(record: FileRecord, size: int, found: str) -> list[str]:
    """What is wrong with a file of this size and checksum; nothing when it is what the manifest says."""
    if size != record.size:
        return [f"{record.path}: {size} bytes, but {record.size} were written"]
    if found != record.checksum:
        return [f"{record.path}: checksum {found}, but {record.checksum} was written"]
    return []


def damaged(where: str, problems: list[str]) -> DamagedCheckpointError:
    """One error for all damaged files of one checkpoint."""
    return DamagedCheckpointError(indented(f"{where}: the checkpoint is damaged", problems))
