"""Which kind of lock a workspace uses: the same for all dispatchers, because different kinds do not exclude each other.

The header of the journal names it. The file of the hard-link lock overrides the header: a dispatcher that finds that
kernel locks do not exclude creates it, and the others look for it each time that they have taken their lock.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.kernel_locks import flock_fault
from dispatcher.base.mounts import mount_of
from dispatcher.config import LockKind
from dispatcher.errors import LockError, LockTimeoutError, LockUnsupportedError
from dispatcher.run_state import journal
from dispatcher.run_state.hardlink_lock import LOST_AFTER_S
from dispatcher.run_state.head import peek_head
from dispatcher.run_state.lock import ClaimsLock
from dispatcher.workspace import Layout

AUTO: Final = "auto"
# How often the lock is tried that fails although others work.
_TRIES: Final = 3


def choose_lock(layout: Layout, wanted: str, by: str, lost_after_s: float = LOST_AFTER_S) -> ClaimsLock:
    """The lock of this workspace, not yet taken; raises LockError when it uses another kind than `wanted`."""
    used = _in_use(layout)
    if used is None:
        kind = _first_kind(layout, by) if wanted == AUTO else wanted
    else:
        check_wanted(layout, wanted, used)
        kind = used
    return ClaimsLock(layout.lock_file, kind, by, lost_after_s)


def check_wanted(layout: Layout, wanted: str, used: str) -> None:
    """Raise LockError when `wanted`, from dispatcher.yaml, is another kind than `used`."""
    if wanted not in (AUTO, used):
        raise LockError(
            f"{layout.config_file}: lock: {wanted}, but this workspace uses {used}: its dispatchers must all use the "
            f"same kind, because different kinds do not exclude each other. Set `lock: {used}` or `lock: auto`"
        )


def hardlink_is_in_force(layout: Layout, *, network: bool = True) -> bool:
    """Whether a dispatcher has found that kernel locks do not exclude here."""
    with files.storing("looking for", layout.hardlink_lock_file):
        if network:
            # A network filesystem may go on reporting for half a minute that the file does not exist.
            with contextlib.suppress(FileNotFoundError):
                files.refresh_names(layout.run_state)
        # An error is no proof that it does not exist.
        return files.stat(layout.hardlink_lock_file) is not None


def switch_lock_to_hardlink(layout: Layout, old: ClaimsLock, timeout_s: float) -> ClaimsLock:
    """Take and release the hard-link lock for the first time, which makes all other dispatchers follow.

    The old lock is held meanwhile: if it does exclude, no other process is in a transaction.
    """
    hardlink = ClaimsLock(layout.lock_file, LockKind.HARDLINK, old.by, old.lost_after_s)
    with files.shared_umask(layout.root):
        # A kind of lock that cannot be taken at all excludes no process.
        with contextlib.suppress(LockUnsupportedError):
            old.acquire(timeout_s)
        try:
            hardlink.acquire(timeout_s)
            hardlink.release()
        finally:
            with contextlib.suppress(OSError):
                old.release()
            old.close()
    return hardlink


def _in_use(layout: Layout) -> str | None:
    if hardlink_is_in_force(layout):
        return LockKind.HARDLINK
    with files.storing("reading the journal", layout.journal_dir):
        head = peek_head(layout.lock_file)
        numbers = journal.generations(layout)
        newest = head.generation if head is not None and head.generation in numbers else None
        if newest is None:
            newest = journal.newest_generation(layout)
        header = journal.read_header(layout, newest) if newest is not None else None
    return header.lock if header is not None else None


def _first_kind(layout: Layout, by: str) -> str:
    """flock if it works, else the hard-link lock; raises LockUnsupportedError when it works for other files only."""
    for last in (*[False] * (_TRIES - 1), True):
        probe = ClaimsLock(layout.lock_file, LockKind.FLOCK, by)
        try:
            with files.shared_umask(layout.root):
                probe.acquire(5.0)
                probe.release()
        except LockUnsupportedError:
            # The workspace keeps its kind of lock, so one error of a file server is not enough.
            with files.storing("testing locks in", layout.run_state):
                if flock_fault(files.temporary_name(layout.lock_file)):
                    return LockKind.HARDLINK
            if last:
                raise
            continue
        except LockTimeoutError:
            # It works: another process holds it, or a file server that has just started grants no locks yet.
            pass
        finally:
            probe.close()
        break
    return LockKind.FLOCK


def locks_refused(why: str, path: Path, wanted: str) -> LockUnsupportedError:
    """The error for kernel locks that do not exclude, where dispatcher.yaml does not allow another kind."""
    return LockUnsupportedError(
        f"{path}: {why}, and `lock: {wanted}` does not allow another kind. Cure: {mount_of(path).cure}; "
        "or set `lock: auto` or `lock: hardlink` in dispatcher.yaml"
    )
