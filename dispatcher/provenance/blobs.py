"""What attempts share: differences of the code and lists of packages, each written once and named after its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from dispatcher.base import files
from dispatcher.workspace import Layout


class Blobs:
    """The blobs of one workspace. Writers need no lock: a blob is renamed into place, and equal names are equal."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def add_diff(self, data: bytes) -> str:
        """Keep a difference; its digest. Raises OSError."""
        digest = hashlib.sha256(data).hexdigest()
        self._add(self._layout.provenance_diff(digest), data)
        return digest

    def add_packages(self, lines: Iterable[str]) -> str:
        """Keep a list of packages; its digest. Raises OSError."""
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(data).hexdigest()
        self._add(self._layout.provenance_packages(digest), data)
        return digest

    def has_diff(self, digest: str) -> bool:
        """Whether the difference with this digest is kept; it counts as used."""
        return _touch(self._layout.provenance_diff(digest))

    def diff(self, digest: str) -> bytes | None:
        """The difference with this digest; None when it is not there or is damaged."""
        return _read(self._layout.provenance_diff(digest), digest)

    def packages(self, digest: str) -> list[str] | None:
        """The list with this digest, such as `numpy==2.1.0`; None when it is not there or is damaged."""
        data = _read(self._layout.provenance_packages(digest), digest)
        return None if data is None else data.decode("utf-8", "replace").splitlines()

    def _add(self, path: Path, data: bytes) -> None:
        if _touch(path):
            return
        mode = 0o666 & ~files.umask_of(self._layout.root)
        # Not `shared_umask`: the umask is the whole process's, and this may be called in a thread.
        for directory in (path.parent.parent, path.parent):
            if not directory.is_dir():
                directory.mkdir(exist_ok=True)
                # With the set-group-id bit that it has got from the directory above.
                os.chmod(directory, directory.stat().st_mode & 0o2000 | mode | 0o111)
        replace_shared(path, data, mode)


def replace_shared(path: Path, data: bytes, mode: int) -> None:
    """Write a file that appears complete, with this mode whatever the umask; raises OSError."""
    temporary = files.temporary_name(path)
    try:
        files.create_file(temporary, data, durable=False)
        os.chmod(temporary, mode)
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _touch(path: Path) -> bool:
    """Whether the file exists and was noted as used: what was not for long may be removed (cleaning/blobs.py).

    Another user's is to be replaced for that.
    """
    try:
        os.utime(path)
    except (FileNotFoundError, PermissionError):
        return False
    return True


def _read(path: Path, digest: str) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None
