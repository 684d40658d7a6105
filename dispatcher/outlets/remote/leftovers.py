"""Temporary directories of dispatchers that were killed: `PREFIX<pid>-<anything>`."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path


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
