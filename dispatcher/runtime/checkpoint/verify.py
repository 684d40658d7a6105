"""Verification of a checkpoint's files against its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dispatcher.base import files
from dispatcher.base.messages import indented
from dispatcher.base.storing import storage_error
from dispatcher.checkpoints import checksum
from dispatcher.checkpoints.manifest import FileRecord
from dispatcher.errors import DamagedCheckpointError


def check(directory: Path, records: Iterable[FileRecord]) -> None:
    """Raise a DamagedCheckpointError that lists every file that is missing or has another size or checksum."""
    problems, present = [], []
    for record in records:
        if (directory / record.path).is_file():
            present.append(record)
        else:
            problems.append(f"{record.path}: missing")
    try:
        sums = checksum.of_files([directory / record.path for record in present])
    except OSError as error:
        # A temporary failure of the server is not damage.
        raise storage_error(error, f"{directory}: cannot be read") from error
    for record, (size, found) in zip(present, sums, strict=True):
        problems += difference(record, size, found)
    if problems:
        raise damaged(str(directory), problems)


def twice(directory: Path, records: Sequence[FileRecord]) -> None:
    """As `check`, repeated after a failure, because a file server may have returned old data."""
    try:
        check(directory, records)
    except DamagedCheckpointError:
        files.refresh_names(directory)
        check(directory, records)


def of_content(record: FileRecord, data: bytes | None) -> list[str]:
    """The faults of a small file with this content."""
    if data is None:
        return [f"{record.path}: missing"]
    return difference(record, len(data), checksum.of_bytes(data))


def difference(record: FileRecord, size: int, found: str) -> list[str]:
    """The faults of a file with this size and checksum; empty when they match the manifest."""
    if size != record.size:
        return [f"{record.path}: {size} bytes, but {record.size} were written"]
    if found != record.checksum:
        return [f"{record.path}: checksum {found}, but {record.checksum} was written"]
    return []


def damaged(where: str, problems: list[str]) -> DamagedCheckpointError:
    """One error for all damaged files of one checkpoint."""
    return DamagedCheckpointError(indented(f"{where}: the checkpoint is damaged", problems))
