"""Whose the jobs of a new manifest are.

A manifest that is made again keeps the owners of the jobs that it has had: a person who adds a seed to a
colleague's sweep owns the new jobs, and not the colleague's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dispatcher.errors import ManifestError
from dispatcher.matrix.entry import OWNER
from dispatcher.matrix.manifest import parse_manifest, read_file


def with_owners(documents: Iterable[Mapping[str, Any]], user: str, before: Path) -> Iterator[dict[str, Any]]:
    """The entries, each with its owner: as written, else as in the manifest `before`, else `user`."""
    known = _owners_in(before)
    for one in documents:
        owner = one.get(OWNER) or known.get(one.get("job_id", ""), user)
        yield {**one, OWNER: owner}


def _owners_in(path: Path) -> Mapping[str, str]:
    """The owners of the jobs in a manifest; none where it is not there or has faults."""
    try:
        data, owner = read_file(path)
        entries = parse_manifest(data, str(path), None, owner)
    except ManifestError:
        return {}
    return {job: entry.user for job, entry in entries.items() if entry.user is not None}
