"""Where a secret can be seen that was written into one file alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def files_with(secret: str, directories: Iterable[Path], allowed: Path) -> list[str]:
    """Files below these that contain it, but for the one where it belongs."""
    found = []
    for directory in directories:
        for folder, _, names in os.walk(directory):
            for path in (Path(folder, name) for name in names):
                if path.is_file() and path != allowed and secret.encode() in path.read_bytes():
                    found.append(str(path))
    return found


def command_lines_with(secret: str) -> list[str]:
    """Processes that show it to everybody (`ps`)."""
    found = []
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        try:
            line = Path("/proc", pid, "cmdline").read_bytes()
        except OSError:
            continue
        if secret.encode() in line and int(pid) != os.getpid():
            found.append(line.decode(errors="replace"))
    return found
