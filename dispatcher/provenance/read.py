"""The provenance of an attempt as readers see it: the pod's record, completed by what the host has told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from dispatcher.errors import StorageError
from dispatcher.provenance.blobs import Blobs
from dispatcher.provenance.record import HostFacts, Provenance
from dispatcher.workspace import Layout

T = TypeVar("T")

# Far more than a record has; the job may write its directory, so a huge file or a pipe may stand there.
_LONGEST: Final = 16 << 20


def read_provenance(layout: Layout, job: str, attempt: int) -> Provenance | None:
    """What an attempt ran from; None when that is not recorded.

    What the host has told (`provenance-host.json`) completes what the pod has recorded.
    """
    paths = layout.attempt(job, attempt)
    found = _read(paths.provenance, Provenance)
    there = _read(paths.provenance_host, HostFacts)
    if found is None or there is None:
        return found
    return msgspec.structs.replace(
        found,
        git=found.git or there.git,
        environment=found.environment or there.environment,
        host=found.host or there.host,
        driver=found.driver or there.driver,
        gpus=found.gpus or there.gpus,
        python=found.python or there.python,
        packages=found.packages or there.packages,
        problems=(*found.problems, *there.problems),
    )


def package_lines(layout: Layout, job: str, attempt: int) -> list[str] | None:
    """The packages of an attempt's Python, such as `numpy==2.1.0`, sorted; None when that is not recorded."""
    found = read_provenance(layout, job, attempt)
    if found is not None and found.packages is not None:
        return Blobs(layout).packages(found.packages)
    there = _read(layout.attempt(job, attempt).provenance_host, HostFacts)
    return None if there is None or there.package_lines is None else list(there.package_lines)


def with_shared_packages(layout: Layout, content: bytes) -> bytes:
    """What a host has told, with its list of packages moved to where attempts share one; as it is where that fails."""
    try:
        there = msgspec.json.decode(content, type=HostFacts)
        if there.package_lines is None:
            return content
        digest = Blobs(layout).add_packages(there.package_lines)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError, StorageError):
        return content
    return msgspec.json.encode(msgspec.structs.replace(there, packages=digest, package_lines=None)) + b"\n"


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        # Without O_NONBLOCK, opening a named pipe in its place would block.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.read(fd, _LONGEST)
        finally:
            os.close(fd)
        return msgspec.json.decode(data, type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
