"""The control groups of this process: where their directories are, in either version, and what their files say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dispatcher.base.mounts import unescaped

# The name of version 2, which has no controllers of its own in /proc/self/cgroup.
UNIFIED: Final = ""


def own_directory(controller: str = UNIFIED, proc: Path = Path("/proc/self")) -> tuple[Path, Path] | None:
    """The cgroup of this process, and where its hierarchy is mounted; None where it cannot be seen.

    `controller` is one of version 1, such as `memory`. In a container the mount may show only what is below a cgroup.
    """
    try:
        path = _own_path(controller, (proc / "cgroup").read_text())
        mounted = _mount(controller, (proc / "mountinfo").read_text(errors="surrogateescape"))
    except OSError:
        return None
    if path is None or mounted is None:
        return None
    point, root = mounted
    below = os.path.relpath(path, root)
    directory = point if below.startswith("..") else point / below
    return (directory, point) if directory.is_dir() else None


def with_parents(controller: str = UNIFIED, proc: Path = Path("/proc/self")) -> list[Path]:
    """The directories of the cgroups whose limits hold for this process, its own first; none where it has none."""
    found = own_directory(controller, proc)
    if found is None:
        return []
    directory, point = found
    return [one for one in (directory, *directory.parents) if one.is_relative_to(point)]


def words_of(file: Path) -> list[str]:
    """The words of a file; none where it cannot be read."""
    try:
        return file.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []


def _own_path(controller: str, text: str) -> str | None:
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") if controller else (number, controllers) == ("0", ""):
            return path
    return None


def _mount(controller: str, text: str) -> tuple[Path, str] | None:
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, (fstype, _, options) = before.split(), after.split(" ", 2)
        if fstype == "cgroup" and controller in options.split(",") if controller else fstype == "cgroup2":
            return Path(unescaped(fields[4])), unescaped(fields[3])
    return None
