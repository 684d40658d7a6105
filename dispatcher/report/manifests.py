"""The manifests of a workspace, each parsed again only when its file has changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dispatcher.errors import ManifestError
from dispatcher.matrix import saved_entries
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import parse_manifest

# Inode, size, time of the last change in nanoseconds.
_Signature = tuple[int, int, int]


class ManifestCache:
    """Reads manifests by path. `saved` is the file with the entries of one that a pod has read."""

    def __init__(self, saved: Path) -> None:
        self._saved = saved
        self._parsed: dict[Path, tuple[_Signature, Mapping[str, Entry] | ManifestError]] = {}

    def read(self, path: Path) -> Mapping[str, Entry] | ManifestError:
        """The entries by job id, or what is wrong with the file."""
        try:
            found = os.stat(path)
            signature = (found.st_ino, found.st_size, found.st_mtime_ns)
            known = self._parsed.get(path)
            if known is not None and known[0] == signature:
                return known[1]
            data = path.read_bytes()
        except FileNotFoundError:
            problem = "there is no such file; write it, or make it with `dispatcher matrix make SWEEP`"
            return ManifestError(str(path), [problem])
        except OSError as error:
            return ManifestError(str(path), [f"cannot be read: {error.strerror}"])
        entries: Mapping[str, Entry] | ManifestError
        try:
            # Jobs may need jobs of other manifests. A need that no manifest has is shown as the reason for waiting.
            entries = saved_entries.read(self._saved, data) or parse_manifest(data, str(path), None)
        except ManifestError as error:
            entries = error
        self._parsed[path] = (signature, entries)
        return entries
