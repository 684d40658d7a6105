"""The hard-link lock, for filesystems on which kernel locks do not exclude. No other module imports filelock.

It is filelock's StrictSoftFileLock: each holder links a claim into a directory beside the lock, and the claim names its
host, pid and start time. filelock never removes the claim of another process, so this module does: at once when the
owner is a process of this host that has ended, otherwise after the claim has been there unchanged for `lost_after_s`.
A holder that is merely slow must therefore call `check_still_held` before it writes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dispatcher.base import files, host
from dispatcher.base.mounts import mount_of
from dispatcher.errors import LockLostError, LockUnsupportedError
from dispatcher.run_state.liveness import Watch

if TYPE_CHECKING:
    from filelock import StrictSoftFileLock

LOST_AFTER_S: Final = 600.0
# A lock that was held for longer is checked before anything is written under it.
_CHECK_AFTER_S: Final = 2.0
# An observer that could not look for longer has not seen that a claim did not change meanwhile.
_LONGEST_GAP_S: Final = 5.0


class HardLinkLock:
    """Not reentrant. `took_over` is set when the claim of an owner of unknown fate was removed."""

    def __init__(self, path: Path, lost_after_s: float = LOST_AFTER_S) -> None:
        self.path = path
        self.took_over = False
        self._lost_after_s = lost_after_s
        self._lock: StrictSoftFileLock | None = None
        self._since_s = 0.0
        self._watch = Watch(longest_gap_s=_LONGEST_GAP_S)

    def try_acquire(self) -> bool:
        """Take the lock without waiting; False when another process holds it.

        Raises LockUnsupportedError where hard links do not work, StorageError for other failures.
        """
        from filelock import SoftFileLockProtocolError, StrictSoftFileLock, Timeout

        if self._lock is None:
            self._lock = StrictSoftFileLock(self.path, timeout=0, thread_local=False)
        try:
            self._lock.acquire(timeout=0, blocking=False)
        except Timeout:
            self._remove_dead_claims(self._lock)
            return False
        except SoftFileLockProtocolError as error:
            where = mount_of(self.path.parent)
            raise LockUnsupportedError(f"{self.path}: no hard-link lock on {where}: {error}") from error
        except (OSError, ExceptionGroup) as error:
            if _is_a_lost_race(error):
                # The next try removes what this one has left.
                return False
            raise files.storage_error(_first_os_error(error), "taking the hard-link lock", self.path) from error
        self._since_s = time.monotonic()
        return True

    def release(self) -> None:
        """Also after the lock was lost."""
        if self._lock is None:
            return
        try:
            self._lock.release()
        except (OSError, ExceptionGroup) as error:
            # filelock would count it as held by this process at the next try.
            self._lock = None
            raise files.storage_error(_first_os_error(error), "giving back the hard-link lock", self.path) from error

    def check_still_held(self) -> None:
        """Raise LockLostError when others may have removed this process's claim because it was slow.

        They wait for twice as long as a holder may go on.
        """
        if self._lock is None:
            return
        held_s = time.monotonic() - self._since_s
        if held_s < min(_CHECK_AFTER_S, self._lost_after_s / 4):
            return
        if held_s > self._lost_after_s / 2 or not self._has_own_claim(self._lock):
            raise LockLostError(
                f"{self.path}: this process has held the lock for {held_s:.0f} s, and others may have taken it since; "
                "nothing was changed, the step is tried again"
            )

    def holders(self) -> str:
        """Who has a claim, for people; empty when unknown."""
        claims = self._lock.claims if self._lock is not None else ()
        return ", ".join(sorted({f"pid {claim.pid} of host {claim.hostname.partition('?')[0]}" for claim in claims}))

    def _has_own_claim(self, lock: StrictSoftFileLock) -> bool:
        own = _host_in_claims(), os.getpid()
        return any((claim.hostname, claim.pid) == own for claim in lock.claims)

    def _remove_dead_claims(self, lock: StrictSoftFileLock) -> None:
        for claim in lock.claims:
            is_gone = owner_is_gone(claim.hostname, claim.pid, claim.start)
            # Every acquisition links a new claim, so one that stays is one that its owner does not release.
            unchanged_s = self._watch.unchanged_s(claim.name, True)
            if is_gone or unchanged_s >= self._lost_after_s:
                with contextlib.suppress(FileNotFoundError):
                    lock.force_break(claim.name)
                self.took_over |= not is_gone


def owner_is_gone(hostname: str, pid: int, start: int | None) -> bool:
    """Whether the owner of a claim was certainly a process of this host that has ended.

    `start` holds the boot id above 64 bits of start time in clock ticks. Another boot of the same host name may be
    another host of that name, so nothing is concluded from it.
    """
    if hostname != _host_in_claims():
        return False
    if start is not None and start >> 64 != int(host.boot_id().replace("-", ""), 16):
        return False
    return host.is_gone(pid, None if start is None else start % 2**64)


def _host_in_claims() -> str:
    """This host as filelock names it in claims: marked where the process has a PID namespace of its own."""
    namespace = host.pid_namespace()
    # Only where this lock is used: light commands do without sockets.
    import socket

    return socket.gethostname() + ("" if namespace in (0, host.FIRST_PID_NAMESPACE) else f"?pidns-{namespace:x}")


def remove_files(path: Path) -> None:
    """Remove what a released lock at `path` has left."""
    folder = path.with_name(f"{path.name}.filelock")
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder / "claims")
        os.rmdir(folder)


def _is_a_lost_race(error: Exception) -> bool:
    """Whether acquiring failed because of other processes, on NFS because of old names, and may be tried again.

    filelock groups the loss of a record (another process took it for a leftover) with the errors of its clean-up.
    """
    if isinstance(error, ExceptionGroup):
        return all(map(_is_a_lost_race, error.exceptions))
    if isinstance(error, OSError):
        return error.errno == errno.ESTALE
    return type(error).__module__.startswith("filelock")


def _first_os_error(error: Exception) -> OSError:
    """The error itself, or the first OSError in a group; a group without one is raised."""
    if isinstance(error, OSError):
        return error
    found = error.subgroup(OSError) if isinstance(error, ExceptionGroup) else None
    if found is None:
        raise error
    return _first_os_error(found.exceptions[0])
