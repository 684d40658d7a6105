"""The manifests of a workspace, each parsed again only when its file has changed."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from dispatcher.base import files
from dispatcher.base.file_identity import ExactIdentity, exact_identity_of
from dispatcher.base.users import name_of
from dispatcher.errors import ManifestError
from dispatcher.matrix import saved_entries
from dispatcher.matrix.entries import Entries
from dispatcher.matrix.manifest import parse_manifest


class ManifestCache:
    """Reads manifests by path. `saved` is the file with the entries of one that a pod has read."""

    def __init__(self, saved: Path) -> None:
        self._saved = saved
        self._parsed: dict[Path, tuple[ExactIdentity, Entries | ManifestError]] = {}

    def read(self, path: Path, known_ids: Collection[str] = ()) -> Entries | ManifestError:
        """The entries by job id, or what is wrong with the file. `known_ids` are kept in memory anyway."""
        try:
            # Opened, because NFS clients show old sizes and times of what is not.
            with open(path, "rb", opener=files.open_at_once) as file:
                # It also changes with the owner.
                identity = exact_identity_of(os.fstat(file.fileno()))
                known = self._parsed.get(path)
                if known is None or known[0] != identity:
                    known = self._parsed[path] = identity, self._read(path, file, known_ids)
                return known[1]
        except FileNotFoundError:
            problem = "there is no such file; write it, or make it with `dispatcher matrix make SWEEP`"
            return ManifestError(str(path), [problem])
        except OSError as error:
            return ManifestError(str(path), [f"cannot be read: {error.strerror}"])

    def _read(self, path: Path, file: BinaryIO, known_ids: Collection[str]) -> Entries | ManifestError:
        entries = saved_entries.read(self._saved, file, known_ids)
        if entries is not None:
            return entries
        file.seek(0)
        try:
            # Jobs may need jobs of other manifests. A need that no manifest has is shown as the reason for waiting.
            return parse_manifest(file.read(), str(path), None, name_of(os.fstat(file.fileno()).st_uid))
        except ManifestError as error:
            return error
