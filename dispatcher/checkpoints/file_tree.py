"""The files and directories below a directory: to list them, and to remove them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LONGEST_WRITING_S: Final = 10.0
_CHECK_EVERY_S: Final = 0.1
_QUIET_CHECKS: Final = 3


def files_below(directory: Path) -> Iterator[tuple[str, Path]]:
    """Every file below `directory`, as a relative POSIX path and a path, in a fixed order."""
    for place, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            yield path.relative_to(directory).as_posix(), path


def directories_below(directory: Path) -> Iterator[Path]:
    """`directory` and every directory below it, the deepest first."""
    for place, _, _ in os.walk(directory, topdown=False):
        yield Path(place)


def remove_tree(directory: Path) -> None:
    """Remove a directory that is no longer needed; what cannot be removed stays."""
    shutil.rmtree(directory, ignore_errors=True)


def remove_until_quiet(directory: Path) -> None:
    """Remove a directory in which threads that cannot be joined may still write: again, until it stays away."""
    deadline_s = time.monotonic() + _LONGEST_WRITING_S
    quiet = 0
    while quiet < _QUIET_CHECKS and time.monotonic() < deadline_s:
        remove_tree(directory)
        time.sleep(_CHECK_EVERY_S)
        quiet = 0 if directory.exists() else quiet + 1
