"""Adoption: a lab's own script has kept a status file, and no dispatcher has run here yet.

Such scripts put `matrix_status.json` beside the manifest or into the workspace's root. Without its records all jobs
would be queued and finished work would run again. So nothing that changes the run state starts before they are adopted,
or before dispatcher.yaml says that the file stays where it is.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.times import parse_time
from dispatcher.errors import StateError, StorageError
from dispatcher.run_state import edits, journal, status_file
from dispatcher.workspace import STATUS_FILE, Layout

# The clock of the host that began the run state and that of the file server may differ.
_CLOCK_SLACK_S: Final = 5.0


def has_run_state(layout: Layout) -> bool:
    """Whether there is a run state: a journal, or the status file that begins one."""
    return os.path.lexists(layout.status_file) or bool(journal.generations(layout))


def find_unadopted(layout: Layout, manifests: Iterable[Path] = ()) -> Path | None:
    """The status file of a lab's own script that was not adopted; None without one, or when there is a run state."""
    return None if has_run_state(layout) else next(_lab_files(layout, manifests), None)


def _lab_files(layout: Layout, manifests: Iterable[Path]) -> Iterator[Path]:
    places = (layout.matrix_dir, *(path.parent for path in manifests), layout.root)
    found = (place / STATUS_FILE for place in dict.fromkeys(places))
    return (path for path in found if path != layout.status_file and path.is_file())


def ignored_file_text(layout: Layout, manifests: Iterable[Path] = ()) -> str:
    """What is wrong when a script still writes a status file that no dispatcher reads; empty when none does."""
    found = list(_lab_files(layout, manifests))
    began_s = _began_s(layout) if found else None
    written = [path for path in found if began_s is not None and path.stat().st_mtime > began_s + _CLOCK_SLACK_S]
    if not written:
        return ""
    return (
        f"{written[0]} was written after dispatchers began here, and none of them reads it: they claim the same jobs "
        f"as the script that writes it. Stop the script, let it write {layout.status_file}, or remove the file"
    )


def _began_s(layout: Layout) -> float | None:
    """When the run state began, by the clock of the host that began it."""
    numbers = journal.generations(layout)
    header = journal.read_header(layout, numbers[0]) if numbers else None
    return None if header is None else parse_time(header.at)


def refuse_unadopted(layout: Layout, manifests: Iterable[Path] = ()) -> None:
    """Raise StateError when a status file waits to be adopted."""
    path = find_unadopted(layout, manifests)
    if path is not None:
        raise StateError(f"{adopt_hint(layout, path)}. Nothing was changed")


def adopt_hint(layout: Layout, path: Path) -> str:
    """What to do about a status file that was not adopted."""
    named = os.path.relpath(path, layout.root)
    return (
        f"{path} has records that no dispatcher has adopted: all its jobs would be queued again. "
        f"Run `dispatcher init --adopt {shlex.quote(named)}` (in {layout.root}) to adopt them, or write "
        f"`status_file: {named}` into {layout.config_file.name} to keep the file where it is"
    )


def read_lab_file(layout: Layout, path: Path) -> list[edits.Outcome]:
    """What adopting the status file at `path` would do, line by line. Raises StatusFileError when it is broken."""
    with files.storing("reading", path):
        data = files.read_fresh(path)
    if data is None:
        raise StorageError(f"{path}: no such file; name the status file of your own script")
    found = status_file.parse_first(data, str(path), is_foreign=path != layout.status_file)
    return edits.adopt(found.jobs, found.others)
