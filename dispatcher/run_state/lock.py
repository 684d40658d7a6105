"""The claims lock, in whose file the head stands. The file is never removed and never replaced.

Three kinds, of which all dispatchers of a workspace use one: `flock` (the default), `lockf` (byte ranges, for servers
that know only these), and `hardlink` (filelock's hard-link lock, where the kernel's locks do not lock). flock and lockf
exclude each other on NFS, so they are never mixed.

The lock is taken by non-blocking tries on a descriptor that stays open: blocking calls starve or sleep for seconds on
some NFS servers. The head stands in the locked file because that is the one content that every NFS version keeps fresh
for the lock's holder; it is a lower bound of what the journal must show, never the truth itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from dispatcher.base import files
from dispatcher.base.kernel_locks import CANNOT_LOCK, release_flock, release_range, try_flock, try_range
from dispatcher.base.mounts import mount_of
from dispatcher.errors import LockError, LockLostError, LockTimeoutError, LockUnsupportedError, nearest
from dispatcher.run_state.end_mark import EndMark
from dispatcher.run_state.head import HEAD_SIZE, Head, decode_head, encode_head, peek_head

if TYPE_CHECKING:
    from filelock import StrictSoftFileLock

    from dispatcher.run_state.liveness import Watch

KINDS: Final = ("flock", "lockf", "hardlink")
LOST_AFTER_S: Final = 600.0
_NO_SUCH_LOCKS: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_FIRST_PAUSE_S: Final = 0.0002
_LONGEST_PAUSE_S: Final = 0.01
# Whoever is next looks often, so that the lock is not free for long; all others may be lazy.
_NEXT_PAUSE_S: Final = 0.0001
_COURTESY_S: Final = 0.25
_LONGEST_NETWORK_PAUSE_S: Final = 0.02
# How often who waits looks after other things: its heartbeat must go on.
_WAITING_S: Final = 1.0
# A hard-link lock that was held for longer is looked at again before anything is written under it.
_SURELY_HELD_S: Final = 2.0
# As long as file servers take to forget all locks of a host, once they have given one of them to another.
_GUARD_S: Final = 30.0
# Longer than clients show old content: GlusterFS has several caches of a second each.
_OLD_CONTENT_S: Final = 4.0
_STORAGE_IS_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class ClaimsLock:
    """The lock of a workspace, held by at most one process of all hosts.

    Raises LockUnsupportedError when the filesystem cannot lock, LockTimeoutError when somebody holds it for longer than
    asked, LockLostError when the file server took it away. A hard-link lock whose holder this host knows nothing of is
    taken away when it has been held for `lost_after_s`; `took_over` says that this has happened.
    """

    def __init__(self, path: Path, kind: str, by: str, lost_after_s: float = LOST_AFTER_S) -> None:
        if kind not in KINDS:
            raise LockError(f"lock: {kind!r} is no kind of lock{nearest(kind, KINDS)}")
        self.path = path
        self.kind = kind
        self.by = by
        self.lost_after_s = lost_after_s
        self.took_over = False
        mount = mount_of(path.parent)
        self.network = mount.is_network
        self._mark = EndMark(path.with_name("journal_end")) if mount.shows_old_content else None
        self._fd = -1
        self._hardlink: StrictSoftFileLock | None = None
        self._hardlink_since_s = 0.0
        self._claims_watch: Watch | None = None
        self._has_turn = False
        self._tokens = 0

    def acquire(self, timeout_s: float, while_waiting: Callable[[], object] | None = None) -> None:
        """Take the lock; `while_waiting` runs at once and then every second while somebody else holds it."""
        begun = next_s = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        longest_s = _LONGEST_NETWORK_PAUSE_S if self.network else _LONGEST_PAUSE_S
        try:
            while not (self._may_try(begun) and self._try()):
                if while_waiting is not None and time.monotonic() >= next_s:
                    while_waiting()
                    next_s = time.monotonic() + _WAITING_S
                    continue
                if time.monotonic() - begun > timeout_s:
                    raise LockTimeoutError(
                        f"{self.path}: held by somebody else for {timeout_s:g} s ({self._holder()}). "
                        "Nothing was changed; try again, or look at that process"
                    )
                if self._has_turn:
                    time.sleep(_NEXT_PAUSE_S)
                    continue
                time.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(pause_s * 1.5, longest_s)
        finally:
            self._end_turn()

    def release(self) -> None:
        """Give the lock back; also after it was lost, when there is nothing left to give."""
        if self.kind == "hardlink":
            self._release_hardlink()
            return
        try:
            if self._fd >= 0:
                self._release_kernel_lock(self._fd, HEAD_SIZE)
        except OSError:
            # The server has forgotten it. What was written stands, and closing gives back whatever is left.
            with contextlib.suppress(OSError):
                self.close()

    def _make_sure(self) -> None:
        """Raise LockLostError when a hard-link lock may have been taken away from a slow holder.

        Who takes it away waits twice as long as a holder may go on.
        """
        if self.kind != "hardlink" or self._hardlink is None:
            return
        held_s = time.monotonic() - self._hardlink_since_s
        if held_s < min(_SURELY_HELD_S, self.lost_after_s / 4):
            return
        if held_s > self.lost_after_s / 2 or not self._is_claimed(self._hardlink):
            raise LockLostError(
                f"{self.path}: this process has held the lock for {held_s:.0f} s, and others may have taken it since; "
                "nothing was changed, the step is tried again"
            )

    def _is_claimed(self, strict: StrictSoftFileLock) -> bool:
        from dispatcher.run_state.liveness import claim_host

        me = claim_host(), os.getpid()
        return any((claim.hostname, claim.pid) == me for claim in strict.claims)

    def read_head(self) -> Head | None:
        """The head; on a network filesystem, also proves by a synchronous write that the lock is still ours.

        What is written stands behind the head: a host that is shown an old one must not put it back in force.
        """
        if self.network:
            self._tokens += 1
            token = f"held by {self.by[:200]}, {os.getpid()}.{self._tokens}".encode()[: HEAD_SIZE - 1]
            try:
                files.write_all(self._fd, token.ljust(HEAD_SIZE - 1) + b"\n", HEAD_SIZE)
                os.fsync(self._fd)
            except OSError as error:
                if error.errno in _STORAGE_IS_FULL:
                    raise
                self._lost(error)
        head = decode_head(os.pread(self._fd, HEAD_SIZE, 0))
        return head if self._mark is None else self._with_end(head, self._mark)

    def _with_end(self, head: Head | None, mark: EndMark) -> Head | None:
        """The head, which may be an old one, with the journal's end as the mark says it."""
        end = mark.read()
        if (end is None and self._has_journal()) or (end is not None and not end.is_settled):
            # Its writer has died, or nobody has said it yet: what there is must be seen, and will be by then.
            time.sleep(_OLD_CONTENT_S)
            head, end = peek_head(self.path), mark.read()
        if end is None or (head is not None and (head.generation, head.length) >= (end.generation, end.length)):
            return head
        known = head or Head(generation=0, length=0, seq=0)
        generation, length, checksum = end.position
        return msgspec.structs.replace(known, generation=generation, length=length, checksum=checksum)

    def _has_journal(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return bool(os.listdir(self.path.with_name("journal")))
        return False

    def begin_append(self) -> None:
        """Before anything is written to the journal: raise LockLostError when this process may not, or not any more."""
        self._make_sure()
        if self._mark is not None:
            self._mark.begin()

    def finish_append(self, generation: int, length: int, checksum: int) -> None:
        """The journal ends here, by what this process has read and written."""
        if self._mark is not None:
            self._mark.finish(generation, length, checksum)

    def guard(self, fd: int) -> None:
        """On a network filesystem: lock another file for as long as `fd` is open, until `unguard`.

        A host that was cut off may write late what it wrote under a lock that the file server has given to others
        meanwhile; the server refuses it only where the descriptor that was written to held a lock itself.
        """
        if not self.network:
            return
        end_s = time.monotonic() + _GUARD_S
        while True:
            try:
                is_ours = self._try_kernel_lock(fd, 0)
            except OSError as error:
                if self.kind == "hardlink" or error.errno in _NO_SUCH_LOCKS:
                    return
                self._lost(error)
            # The hard-link lock is used where these may not work at all.
            if is_ours or self.kind == "hardlink":
                return
            if time.monotonic() > end_s:
                self._lost(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
            # Some file servers are late to notice that the last holder has closed the file.
            time.sleep(_LONGEST_PAUSE_S)

    def unguard(self, fd: int) -> None:
        """Closing does the same, but on FUSE somewhat later."""
        if self.network:
            with contextlib.suppress(OSError):
                self._release_kernel_lock(fd, 0)

    def _try_kernel_lock(self, fd: int, length: int) -> bool:
        """`length` bytes from the start of the file where ranges are locked, 0 for all; flock locks the whole file."""
        return try_range(fd, 0, length) if self.kind == "lockf" else try_flock(fd)

    def _release_kernel_lock(self, fd: int, length: int) -> None:
        if self.kind == "lockf":
            release_range(fd, 0, length)
        else:
            release_flock(fd)

    def write_head(self, head: Head) -> None:
        """Write the head in place. No fsync: it promises freshness, not durability."""
        head.by = self.by
        try:
            files.write_all(self._fd, encode_head(head), 0)
        except OSError as error:
            if error.errno == errno.EIO and self.network:
                self._lost(error)
            raise

    def close(self) -> None:
        fd, self._fd, self._has_turn = self._fd, -1, False
        if fd >= 0:
            # Also where this fails (a file server that reports a late error) the number may be another file's next.
            os.close(fd)

    def _may_try(self, begun: float) -> bool:
        """Whether it is this process's turn: one at a time waits for the lock itself, the others for their turn.

        Without it, whoever has just released the lock takes it again before a waiting process wakes up. It is only a
        courtesy: a process that was stopped while it had the turn holds nobody up for long.
        """
        if self.network or self.kind == "hardlink" or self._has_turn:
            return True
        if self._fd < 0:
            self._open()
        try:
            self._has_turn = try_range(self._fd, HEAD_SIZE, 1)
        except OSError:
            return True
        return self._has_turn or time.monotonic() - begun > _COURTESY_S

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            release_range(self._fd, HEAD_SIZE, 1)

    def _try(self) -> bool:
        if self._fd < 0:
            self._open()
        if self.kind == "hardlink":
            return self._try_hardlink()
        try:
            if not self._try_kernel_lock(self._fd, HEAD_SIZE):
                return False
        except OSError as error:
            if error.errno in CANNOT_LOCK:
                raise self._unsupported(error) from error
            if error.errno in (errno.ESTALE, errno.EBADF):
                # The server has forgotten this descriptor (it was down, or we were cut off): open the file again.
                self.close()
                return False
            raise files.storage_error(error, "locking", self.path) from error
        if os.fstat(self._fd).st_nlink == 0:
            # Somebody has removed or replaced the file: those who open it now would lock another one.
            self.close()
            return False
        return True

    def _try_hardlink(self) -> bool:
        from filelock import SoftFileLockProtocolError, StrictSoftFileLock, Timeout

        if self._hardlink is None:
            self._hardlink = StrictSoftFileLock(self.path.with_suffix(".hardlink"), timeout=0, thread_local=False)
        try:
            try:
                self._hardlink.acquire(timeout=0, blocking=False)
            except Timeout:
                self._break_dead_claims(self._hardlink)
                return False
        except SoftFileLockProtocolError as error:
            where = mount_of(self.path)
            raise LockUnsupportedError(f"{self.path}: no hard-link lock on {where}: {error}") from error
        except (OSError, ExceptionGroup) as error:
            if _passes(error):
                # The next try removes what this one has left.
                return False
            raise files.storage_error(_first_os_error(error), "taking the hard-link lock", self.path) from error
        self._hardlink_since_s = time.monotonic()
        # No kernel lock refreshes the client's cache here; opening does (close-to-open).
        self.close()
        self._open()
        return True

    def _break_dead_claims(self, strict: StrictSoftFileLock) -> None:
        from dispatcher.run_state.liveness import Watch, claim_owner_is_gone

        if self._claims_watch is None:
            self._claims_watch = Watch(longest_gap_s=5 * _WAITING_S)
        for claim in strict.claims:
            gone = claim_owner_is_gone(claim.hostname, claim.pid, claim.start)
            # Every holder writes claims of its own, so one that stays is one that somebody does not give back.
            still_s = self._claims_watch.unchanged_s(claim.name, True)
            if gone or still_s >= self.lost_after_s:
                with contextlib.suppress(FileNotFoundError):
                    strict.force_break(claim.name)
                self.took_over |= not gone

    def _release_hardlink(self) -> None:
        if self._hardlink is None:
            return
        strict = self._hardlink
        # Without a kernel lock, only closing brings what was written to the file server before the next holder looks.
        with contextlib.suppress(OSError):
            self.close()
        try:
            strict.release()
        except (OSError, ExceptionGroup) as error:
            # As it stands it would count as held by this process at the next try.
            self._hardlink = None
            raise files.storage_error(_first_os_error(error), "giving back the hard-link lock", self.path) from error

    def _open(self) -> None:
        # O_RDWR: a lock on a read-only descriptor is EBADF on NFSv4. Never O_TRUNC: the head stands in it.
        with files.storing("opening the lock", self.path):
            for pause_s in (_NEXT_PAUSE_S, _LONGEST_PAUSE_S, _COURTESY_S):
                # GlusterFS says EEXIST to one of two hosts that create it at the same moment.
                with contextlib.suppress(FileExistsError):
                    self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                    return
                time.sleep(pause_s)
            self._fd = files.open_existing(self.path, os.O_RDWR)

    def _lost(self, error: OSError) -> NoReturn:
        self.close()
        raise LockLostError(
            f"{self.path}: the file server took the lock away from this host ({error.strerror}); "
            "nothing was changed, the step is tried again"
        ) from error

    def _unsupported(self, error: OSError) -> LockUnsupportedError:
        mount = mount_of(self.path)
        return LockUnsupportedError(
            f"{self.path}: {self.kind} fails with {files.error_name(error)} "
            f"({error.strerror}) on {mount}. Cure: {mount.cure}; or set `lock: hardlink` in dispatcher.yaml"
        )

    def _holder(self) -> str:
        """Who holds the lock, as far as this host can tell."""
        if self._hardlink is not None:
            holders = {f"pid {claim.pid} of host {claim.hostname.partition('?')[0]}" for claim in self._hardlink.claims}
            return ", ".join(sorted(holders)) or "holder unknown"
        data = os.pread(self._fd, 2 * HEAD_SIZE, 0) if self._fd >= 0 else b""
        head, token = decode_head(data), data[HEAD_SIZE:].decode(errors="replace").rpartition(", ")[0]
        last = f"last {token}" if token else f"last taken by {head.by}" if head and head.by else "holder unknown"
        if self._fd < 0:
            return last
        inode = os.fstat(self._fd).st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            # Locks of bytes belong to an open file, not to a process: they name nobody.
            if fields[1] == "FLOCK" and fields[5].rsplit(":", 1)[1] == str(inode):
                return f"pid {fields[4]} of this host, {last}"
        return last


def _passes(error: Exception) -> bool:
    """Whether an error while the hard-link lock was taken is one of a race, on NFS between old names and new ones.

    filelock groups the loss of a record (to somebody who took it for a leftover) with what closing it then says.
    """
    if isinstance(error, ExceptionGroup):
        return all(map(_passes, error.exceptions))
    if isinstance(error, OSError):
        return error.errno == errno.ESTALE
    return type(error).__module__.startswith("filelock")


def _first_os_error(error: Exception) -> OSError:
    """The error itself, or the first of the filesystem's in a group; a group without one is raised."""
    if isinstance(error, OSError):
        return error
    found = error.subgroup(OSError) if isinstance(error, ExceptionGroup) else None
    if found is None:
        raise error
    return _first_os_error(found.exceptions[0])
