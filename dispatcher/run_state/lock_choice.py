"""Which kind of lock a workspace uses: one for all dispatchers, for different kinds do not exclude each other.

The journal's header names it. The hard-link lock's own file is the sign that all go over to that one: whoever finds
that the kernel's locks do not exclude creates it, and the others see it under their next lock.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.errors import LockError, LockTimeoutError, LockUnsupportedError
from dispatcher.run_state import journal
from dispatcher.run_state.hardlink_lock import LOST_AFTER_S
from dispatcher.run_state.head import peek_head
from dispatcher.run_state.lock import ClaimsLock
from dispatcher.workspace import Layout

AUTO: Final = "auto"
HARDLINK: Final = "hardlink"


def choose_lock(layout: Layout, wanted: str, by: str, lost_after_s: float = LOST_AFTER_S) -> ClaimsLock:
    """The lock of this workspace, not yet taken; raises LockError when `wanted` is not the kind that it uses."""
    used = _in_use(layout)
    if used is None:
        kind = _first_kind(layout, by) if wanted == AUTO else wanted
    else:
        check_wanted(layout, wanted, used)
        kind = used
    return ClaimsLock(layout.lock_file, kind, by, lost_after_s)


def check_wanted(layout: Layout, wanted: str, used: str) -> None:
    """Raise LockError when dispatcher.yaml asks for another kind than `used`."""
    if wanted not in (AUTO, used):
        raise LockError(
            f"{layout.config_file}: lock: {wanted}, but this workspace uses {used}: all dispatchers of a workspace "
            f"must use one kind, for they do not exclude each other. Set `lock: {used}` or `lock: auto`"
        )


def hardlink_is_in_force(layout: Layout, *, network: bool = True) -> bool:
    """Whether somebody has found that the kernel's locks do not exclude here."""
    if network:
        # A network filesystem may remember for half a minute that the file was not there.
        with contextlib.suppress(FileNotFoundError):
            files.look_at(layout.run_state)
    return os.path.exists(layout.hardlink_lock_file)


def switch_lock_to_hardlink(layout: Layout, old: ClaimsLock, timeout_s: float) -> ClaimsLock:
    """Take the hard-link lock for the first time, which makes all others follow; returned released.

    Where the old kind does exclude after all, nobody is in a transaction meanwhile.
    """
    strict = ClaimsLock(layout.lock_file, HARDLINK, old.by, old.lost_after_s)
    with files.shared_umask(layout.root):
        # Where the old kind cannot be had at all it keeps nobody away either.
        with contextlib.suppress(LockUnsupportedError):
            old.acquire(timeout_s)
        try:
            strict.acquire(timeout_s)
            strict.release()
        finally:
            with contextlib.suppress(OSError):
                old.release()
            old.close()
    return strict


def _in_use(layout: Layout) -> str | None:
    if hardlink_is_in_force(layout):
        return HARDLINK
    with files.storing("reading the journal", layout.journal_dir):
        head = peek_head(layout.lock_file)
        numbers = journal.generations(layout)
        newest = head.generation if head is not None and head.generation in numbers else None
        if newest is None:
            newest = journal.newest_generation(layout)
        header = journal.read_header(layout, newest) if newest is not None else None
    return header.lock if header is not None else None


def _first_kind(layout: Layout, by: str) -> str:
    """flock where it works, else the hard-link lock."""
    probe = ClaimsLock(layout.lock_file, "flock", by)
    try:
        with files.shared_umask(layout.root):
            probe.acquire(5.0)
            probe.release()
    except LockUnsupportedError:
        return HARDLINK
    except LockTimeoutError:
        # Somebody holds it, or a file server that has just started does not give any yet: it works all the same.
        pass
    finally:
        probe.close()
    return "flock"


def locks_refused(why: str, path: Path, wanted: str) -> LockUnsupportedError:
    return LockUnsupportedError(
        f"{path}: {why}, and lock: {wanted} does not allow another kind. Cure: {mount_of(path).cure}; "
        "or set `lock: auto` or `lock: hardlink` in dispatcher.yaml"
    )
