"""How a copy of the code differs from its commit: kept as the differences of other attempts are (provenance)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dispatcher.errors import StorageError
from dispatcher.outlets.code.ship import left_out
from dispatcher.outlets.code.snapshot import Changes
from dispatcher.provenance.blobs import Blobs
from dispatcher.provenance.difference import take_difference
from dispatcher.provenance.git import SafeGit
from dispatcher.provenance.programs import Deadline, ProgramError
from dispatcher.workspace import Layout

_DEADLINE_S: Final = 10.0
_MOST_NAMES: Final = 16 << 20


def changes_between(layout: Layout, commit: str, archived: str) -> Changes:
    """What the commit `archived` has otherwise than `commit` in the workspace. Never raises for git or the storage."""
    inside = [path for path in left_out(layout) if not path.startswith("..")]
    pathspecs = [".", *(f":(exclude,literal){path}" for path in inside)]
    try:
        git = SafeGit(layout.root, Deadline(_DEADLINE_S))
        commits = (commit, archived)
        found = take_difference(git, pathspecs, _changed_bytes(git, commits, pathspecs), commits)
    except (ProgramError, OSError) as error:
        return Changes(problem=str(error))
    if found is None:
        return Changes(problem="git: shows no difference of these files")
    kept = found.data is not None
    if found.data is not None:
        try:
            Blobs(layout).add_diff(found.data)
        except (OSError, StorageError):
            kept = False
    return Changes(diff=found.digest, diff_stat=found.stat, diff_bytes=found.size, diff_omitted=not kept)


def is_kept(layout: Layout, changes: Changes) -> bool:
    """Whether the changes are known, and what is to be had of them is there."""
    if changes.diff is None:
        return False
    return changes.diff_omitted or Blobs(layout).has_diff(changes.diff)


def _changed_bytes(git: SafeGit, commits: Sequence[str], pathspecs: Sequence[str]) -> int:
    """About: the files may have changed since."""
    top = Path(git.text("rev-parse", "--show-toplevel"))
    words = ["diff", "--name-only", "--no-renames", "--ignore-submodules=dirty", "-z", *commits, "--", *pathspecs]
    size = 0
    for name in git.output(words, most_bytes=_MOST_NAMES).split(b"\0"):
        try:
            size += os.lstat(top / os.fsdecode(name)).st_size if name else 0
        except OSError:
            # It was deleted.
            continue
    return size
