"""The projects of Google Cloud in which this workspace has created VMs: `run_state/tpu_projects`, one a line.

A VM is found by its label in whatever zone it is, but only in a project that is asked. The configuration and gcloud's
own setting may name another project by now.
"""

from __future__ import annotations

import os
import re
from typing import Final

from dispatcher.base import files
from dispatcher.workspace import Layout

# What Google takes as the id of a project, with the domain that old ones have.
_PROJECT: Final = re.compile(r"([a-z0-9.-]+:)?[a-z0-9-]+")


def known_projects(layout: Layout) -> list[str]:
    """In the order in which they were first used; raises StorageError."""
    with files.storing("reading", layout.tpu_projects):
        text = (files.read_fresh_small(layout.tpu_projects) or b"").decode(errors="replace")
    return [line for line in dict.fromkeys(text.split()) if _PROJECT.fullmatch(line)]


def remember_project(layout: Layout, project: str) -> None:
    """Note that something was created there; raises StorageError."""
    if not _PROJECT.fullmatch(project) or project in known_projects(layout):
        return
    with files.storing("noting the project in", layout.tpu_projects), files.shared_umask(layout.root):
        layout.run_state.mkdir(parents=True, exist_ok=True)
        # One short write at the end: lines of two dispatchers never mix.
        file = os.open(layout.tpu_projects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, f"{project}\n".encode())
        finally:
            os.close(file)
