"""Temporary directories, and those that killed processes have left: `PREFIX<pid>-<anything>`."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

# A pid may be one of another container with the same directory for temporary files, but nothing there takes a day.
OLD_S: Final = 86400.0


@contextlib.contextmanager
def directory(purpose: str) -> Iterator[Path]:
    """A temporary directory; old ones for the same purpose are removed whose process was killed."""
    prefix = f"dispatcher-{purpose}-"
    _clean(tempfile.gettempdir(), prefix)
    with tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-") as made:
        yield Path(made)


@functools.cache
def _clean(parent: str, prefix: str) -> None:
    """Once in a process: the directory may have very many entries."""
    remove_leftovers(parent, prefix, shutil.rmtree, older_than_s=OLD_S)


def remove_leftovers(parent: str, prefix: str, remove: Callable[[Path], object], older_than_s: float = 0.0) -> None:
    """Remove those of this user in `parent` whose process is gone and that have not changed for `older_than_s`.

    What cannot be removed stays.
    """
    for path in Path(parent).glob(f"{prefix}*"):
        # Others may have put any name there.
        named = re.fullmatch(rf"{prefix}([0-9]+)-\w+", path.name, re.ASCII)
        with contextlib.suppress(OSError):
            found = path.lstat()
            is_old = time.time() - found.st_mtime >= older_than_s
            if named and is_old and found.st_uid == os.getuid() and not os.path.exists(f"/proc/{named[1]}"):
                remove(path)
