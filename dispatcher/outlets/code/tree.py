"""Extracted archives: directories that are complete or absent, read-only, and durable before they are visible."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import stat
import tarfile
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.errors import CodeError

_AGAIN: Final = "`dispatcher requeue` takes a new copy of the code"
_PART: Final = 1 << 20
_WRITE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def extract(archive: Path, digest: str, place: Path, run_state: Path) -> None:
    """Make `place` the directory of what is in the archive; several processes may do so at once.

    Its name run_state leads to the workspace's. Raises CodeError and StorageError; `place` is then absent.
    """
    with files.storing("extracting the code in", place.parent):
        if files.exists_fresh(place):
            return
        remove_leftovers(place.parent)
        partial = files.temporary_name(place)
        os.mkdir(partial)
        try:
            _fill(partial, archive, digest)
            os.symlink(run_state, partial / run_state.name)
            _make_durable_and_read_only(partial)
            _rename(partial, place)
        finally:
            remove_tree(partial)


def remove_tree(place: Path) -> None:
    """Remove a directory whose files are read-only; nothing happens when there is none. Raises OSError."""
    for directory, names, _ in os.walk(place):
        os.chmod(directory, 0o700)
        for name in names:
            if not os.path.islink(os.path.join(directory, name)):
                os.chmod(os.path.join(directory, name), 0o700)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(place)


def remove_atomically(place: Path) -> None:
    """Remove a directory that others may be about to use: they find it complete or not at all. Raises OSError."""
    aside = files.temporary_name(place)
    with contextlib.suppress(FileNotFoundError):
        os.rename(place, aside)
        remove_tree(aside)


def remove_leftovers(directory: Path) -> None:
    """Remove what processes of this host have left that were killed while they wrote here. Raises OSError."""
    for path in files.leftovers(directory):
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)


def _fill(place: Path, archive: Path, digest: str) -> None:
    if not archive.exists():
        raise CodeError(f"{archive}: the archive is gone; {_AGAIN}")
    with open(archive, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            raise CodeError(f"{archive}: the archive is damaged: its SHA-256 is {found}; {_AGAIN}")
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                _add(tar, member, place / member.name)


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Extract a file or a link, which is all that archives have (ArchiveWriter)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        os.symlink(member.linkname, path)
        return
    content = tar.extractfile(member)
    assert content is not None
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, member.mode & ~_WRITE)
    with content, open(fd, "wb") as file:
        shutil.copyfileobj(content, file, _PART)


def _make_durable_and_read_only(place: Path) -> None:
    for directory, _, _ in os.walk(place):
        os.chmod(directory, os.stat(directory).st_mode & ~_WRITE)
    # After a power cut a directory with empty files would be taken for complete.
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    finally:
        os.close(fd)


def _rename(partial: Path, place: Path) -> None:
    try:
        os.rename(partial, place)
    except OSError:
        # Another process was quicker.
        if not files.exists_fresh(place):
            raise
    else:
        files.sync_directory(place.parent)
