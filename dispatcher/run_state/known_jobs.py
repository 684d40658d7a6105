"""The jobs of all manifests of a workspace, which share one status file. Submitted jobs are known by their records."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from dispatcher.base import files
from dispatcher.base.file_identity import Identity, identity_of
from dispatcher.config import Config
from dispatcher.matrix.manifest import job_ids
from dispatcher.run_state import liveness


class ManifestJobs:
    """The ids of all manifests, read on demand; a file that has not changed is not read twice.

    `matrix` is the manifest that a pod was started with, if it is not the configuration's.
    """

    def __init__(self, config: Config, matrix: Path | None = None) -> None:
        self._config = config
        self._matrix = matrix
        self._ids: dict[Path, tuple[Identity, Collection[str]]] = {}

    def ids(self) -> frozenset[str]:
        """The ids in the manifests as they are now. Examines all manifests and pods: call it once for many jobs."""
        return frozenset().union(*map(self._read, self._paths()))

    def _paths(self) -> Iterator[Path]:
        layout = self._config.layout
        named = (Path(pod.matrix) for pod in liveness.read_pods(layout) if pod.matrix)
        first = () if self._matrix is None else (self._matrix,)
        paths = (*first, self._config.matrix, *named, *layout.manifests())
        yield from dict.fromkeys(layout.root / path for path in paths if layout.root / path != layout.status_file)

    def _read(self, path: Path) -> Collection[str]:
        """The ids in one manifest; none when it cannot be read."""
        try:
            signature = identity_of(os.stat(path))
            known = self._ids.get(path)
            if known is None or known[0] != signature:
                self._ids[path] = known = (signature, job_ids(files.read_plain(path)))
        except OSError:
            return frozenset()
        return known[1]
