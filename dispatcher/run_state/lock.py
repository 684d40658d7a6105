"""The claims lock: held by at most one process of all hosts. The head is kept in its file, which is never replaced.

There are three kinds, and all dispatchers of a workspace use the same one: `flock` (the default), `lockf` (byte ranges,
for file servers that support only these) and `hardlink` (where kernel locks do not exclude). flock and lockf exclude
each other on NFS, so they are never mixed. To add a kind, add it to config.LockKind; its calls to base/kernel_locks.py
if it is a kernel lock; to ClaimsLock._try_kernel_lock and _release_kernel_lock; to doctor/lock_test.py: held. Then
decide about it wherever a member of LockKind is compared (grep LockKind): pod/trusted_locks.py and
doctor/prove_locks.py prove that it excludes, run_state/liveness.py and pod/run.py say whether liveness locks can be
trusted beside it.

The lock is taken by non-blocking tries on a descriptor that stays open: blocking calls starve or sleep for seconds on
some NFS servers. On a local disk, processes try one after the other (lock_queue).

The head is in the locked file because that is the one content that every NFS version keeps current for the holder of
the lock. It is a lower bound of how far the journal goes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from dispatcher.base import files
from dispatcher.base.kernel_locks import CANNOT_LOCK, flock_holder, release_flock, release_range, try_flock, try_range
from dispatcher.base.mounts import mount_of
from dispatcher.config import LOCK_KINDS, LockKind
from dispatcher.errors import LockError, LockLostError, LockTimeoutError, LockUnsupportedError, nearest
from dispatcher.run_state.end_mark import EndMark
from dispatcher.run_state.hardlink_lock import LOST_AFTER_S, HardLinkLock
from dispatcher.run_state.head import HEAD_SIZE, Head, decode_head, encode_head, peek_head
from dispatcher.run_state.lock_queue import LockQueue

KINDS: Final = tuple(kind for kind in LOCK_KINDS if kind != "auto")
_NO_SUCH_LOCKS: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_FIRST_PAUSE_S: Final = 0.0002
_LONGEST_PAUSE_S: Final = 0.01
_LONGEST_NETWORK_PAUSE_S: Final = 0.02
# The process whose turn it is tries often, so that the lock is not free for long: at first after this time, then after
# a part of the time that it has waited already, because a holder that takes long may take longer.
_TURN_PAUSE_S: Final = 0.00003
_PART_OF_WAIT: Final = 0.1
# A process that has the turn and does not use it (it was stopped) delays others by no more than this.
_LONGEST_TURN_S: Final = 0.25
# Pauses between attempts to open the file.
_OPEN_PAUSES_S: Final = (0.0001, 0.01, 0.25)
# How often `while_waiting` runs: the heartbeat of a waiting dispatcher must go on.
_WAITING_S: Final = 1.0
# File servers take up to this long to drop all locks of a host once they have given one of them to another.
_GUARD_S: Final = 30.0


class ClaimsLock:
    """The lock in one process.

    Raises LockUnsupportedError when the filesystem cannot lock, LockTimeoutError when the lock is held for longer than
    the caller waits, LockLostError when the file server took it away.

    A hard-link lock whose holder is on another host is taken over when it has been held for `lost_after_s`; then
    `took_over` is set, and stays so until the caller resets it.
    """

    def __init__(self, path: Path, kind: str, by: str, lost_after_s: float = LOST_AFTER_S) -> None:
        self._fd = -1
        self._queue: LockQueue | None = None
        if kind not in KINDS:
            raise LockError(f"lock: {kind!r} is no kind of lock{nearest(kind, KINDS)}")
        self.path = path
        self.kind = kind
        self.by = by
        self.lost_after_s = lost_after_s
        self.took_over = False
        mount = mount_of(path.parent)
        self.network = mount.is_network
        self._old_content_s = mount.old_content_s
        self._mark = EndMark(path.with_name("journal_end")) if mount.shows_old_content else None
        is_hardlink = kind == LockKind.HARDLINK
        self._hardlink = HardLinkLock(path.with_suffix(".hardlink"), lost_after_s) if is_hardlink else None
        self._tokens = 0
        self._token = f"held by {by[:200]}, {os.getpid()}."

    def acquire(self, timeout_s: float, while_waiting: Callable[[], object] | None = None) -> None:
        """Take the lock.

        While another process holds it, `while_waiting` runs every second, and at once when it is this one's turn next.
        """
        try:
            if not (self._may_try() and self._try()):
                self._wait(timeout_s, while_waiting)
        except BaseException:
            self.pass_turn()
            raise

    def _wait(self, timeout_s: float, while_waiting: Callable[[], object] | None) -> None:
        """Try again and again until the lock is taken."""
        now_s = start_s = next_s = turn_s = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        longest_s = _LONGEST_NETWORK_PAUSE_S if self.network else _LONGEST_PAUSE_S
        while True:
            if now_s - start_s > timeout_s:
                raise LockTimeoutError(
                    f"{self.path}: held by another process for {timeout_s:g} s ({self._holder()}). "
                    "Nothing was changed; try again, or look at that process"
                )
            if self._queue is not None and not self._queue.is_ours and now_s - start_s <= _LONGEST_TURN_S:
                if not self._queue.wait(_LONGEST_TURN_S):
                    time.sleep(_FIRST_PAUSE_S)
                turn_s = next_s = time.monotonic()
            elif while_waiting is not None and now_s >= next_s:
                while_waiting()
                next_s = time.monotonic() + _WAITING_S
            elif self._queue is not None and self._queue.is_ours:
                time.sleep(min(max(_TURN_PAUSE_S, (now_s - turn_s) * _PART_OF_WAIT), longest_s))
            else:
                time.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(pause_s * 1.5, longest_s)
            now_s = time.monotonic()
            if self._may_try(now_s - start_s) and self._try():
                return

    def pass_turn(self) -> None:
        """Let the next process try the lock from now on, although this one still holds it; `release` does so at last.

        Best before something that takes its time but no processor, because the next one begins by reading.
        """
        if self._queue is not None:
            with contextlib.suppress(OSError):
                self._queue.end()

    def release(self) -> None:
        """Release the lock; without effect when it was lost or never taken."""
        self._release()
        self.pass_turn()

    def _release(self) -> None:
        if self._hardlink is not None:
            # Without a kernel lock, only closing makes sure that the file server has what was written.
            with contextlib.suppress(OSError):
                self.close()
            self._hardlink.release()
        elif self._fd >= 0:
            try:
                self._release_kernel_lock(self._fd, HEAD_SIZE)
            except OSError:
                # The server has forgotten it. What was written is valid, and closing releases whatever is left.
                with contextlib.suppress(OSError):
                    self.close()

    def read_head(self) -> Head | None:
        """The head; on a network filesystem, also proves by a synchronous write that the lock is still held.

        That write goes behind the head: a host that is shown an old head must not put it back in force.
        """
        if self.network:
            self._tokens += 1
            token = f"{self._token}{self._tokens}".encode()[: HEAD_SIZE - 1]
            try:
                files.write_all(self._fd, token.ljust(HEAD_SIZE - 1) + b"\n", HEAD_SIZE)
                os.fsync(self._fd)
            except OSError as error:
                if error.errno in files.STORAGE_IS_FULL:
                    raise
                self._lost(error)
        head = decode_head(os.pread(self._fd, HEAD_SIZE, 0))
        return head if self._mark is None else self._with_end(head, self._mark)

    def peek_head(self) -> Head | None:
        """The head as it is while another process holds the lock; None when it is just being written."""
        return decode_head(os.pread(self._fd, HEAD_SIZE, 0)) if self._fd >= 0 else None

    def _with_end(self, head: Head | None, mark: EndMark) -> Head | None:
        """The head, which may be an old one, with the end of the journal according to `mark`."""
        end = mark.read()
        if (end is None and self._has_journal()) or (end is not None and not end.is_settled):
            # The process that was to write it has died, or there is none yet: wait until all that exists is shown.
            time.sleep(self._old_content_s)
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
        """Call before writing to the journal; raises LockLostError when this process may no longer write."""
        if self._hardlink is not None:
            self._hardlink.check_still_held()
        if self._mark is not None:
            self._mark.begin()

    @property
    def publishes_end(self) -> bool:
        """Whether `finish_append` has anything to do here."""
        return self._mark is not None

    def finish_append(self, generation: int, length: int, checksum: int) -> None:
        """Publish where the journal ends, according to what this process has read and written."""
        if self._mark is not None:
            self._mark.finish(generation, length, checksum)

    def guard(self, fd: int) -> None:
        """On a network filesystem: lock the open journal until `unguard`, or until `fd` is closed.

        A host that was cut off may write late what it wrote under a lock that the file server has given to others
        meanwhile. The server rejects such a write only when the descriptor that it came through held a lock itself.
        """
        if not self.network:
            return
        end_s: float | None = None
        while True:
            try:
                is_locked = self._try_kernel_lock(fd, 0)
            except OSError as error:
                if self._hardlink is not None or error.errno in _NO_SUCH_LOCKS:
                    return
                self._lost(error)
            # Where the hard-link lock is used, kernel locks may not work at all.
            if is_locked or self._hardlink is not None:
                return
            if end_s is None:
                end_s = time.monotonic() + _GUARD_S
            elif time.monotonic() > end_s:
                self._lost(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
            # Some file servers notice late that the last holder has closed the file.
            time.sleep(_LONGEST_PAUSE_S)

    def unguard(self, fd: int) -> None:
        """Closing does the same, but on FUSE somewhat later."""
        if self.network:
            with contextlib.suppress(OSError):
                self._release_kernel_lock(fd, 0)

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
        fd, self._fd = self._fd, -1
        queue, self._queue = self._queue, None
        try:
            if fd >= 0:
                # Even if this fails (a late error of the file server), the number may be reused for another file.
                os.close(fd)
        finally:
            if queue is not None:
                queue.close()

    def __del__(self) -> None:
        # Of a workspace that was dropped without being closed, as in notebooks.
        with contextlib.suppress(OSError):
            self.close()

    def _may_try(self, waited_s: float = 0.0) -> bool:
        """Whether it is this process's turn; no process waits for longer than _LONGEST_TURN_S for it."""
        if self.network or self._hardlink is not None:
            return True
        if self._fd < 0:
            self._open()
        try:
            if self._queue is None:
                self._queue = LockQueue(self.path)
            is_ours = self._queue.take()
        except OSError:
            return True
        return is_ours or waited_s > _LONGEST_TURN_S

    def _try(self) -> bool:
        if self._fd < 0:
            self._open()
        if self._hardlink is not None:
            return self._try_hardlink(self._hardlink)
        try:
            if not self._try_kernel_lock(self._fd, HEAD_SIZE):
                return False
        except OSError as error:
            if error.errno in CANNOT_LOCK:
                raise self._unsupported(error) from error
            if error.errno in (errno.ESTALE, errno.EBADF):
                # The server has forgotten this descriptor (it was down, or this host was cut off): open the file again.
                self.close()
                return False
            raise files.storage_error(error, "locking", self.path) from error
        if os.fstat(self._fd).st_nlink == 0:
            # The file was removed or replaced: processes that open it now would lock another one.
            self.close()
            return False
        return True

    def _try_hardlink(self, lock: HardLinkLock) -> bool:
        if not lock.try_acquire():
            return False
        self.took_over |= lock.took_over
        lock.took_over = False
        # No kernel lock refreshes the client's cache here; opening does (close-to-open).
        self.close()
        self._open()
        return True

    def _try_kernel_lock(self, fd: int, length: int) -> bool:
        """`length` is how many bytes to lock where ranges are used (0: all); flock locks the whole file."""
        return try_range(fd, 0, length) if self.kind == LockKind.LOCKF else try_flock(fd)

    def _release_kernel_lock(self, fd: int, length: int) -> None:
        if self.kind == LockKind.LOCKF:
            release_range(fd, 0, length)
        else:
            release_flock(fd)

    def _open(self) -> None:
        # O_RDWR: a lock on a read-only descriptor is EBADF on NFSv4. Never O_TRUNC: the head is in the file.
        with files.storing("opening the lock", self.path):
            for pause_s in _OPEN_PAUSES_S:
                # GlusterFS reports EEXIST to one of two hosts that create it at the same moment.
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
        """Which process holds the lock, as far as this host can tell."""
        if self._hardlink is not None:
            return self._hardlink.holders() or "holder unknown"
        data = os.pread(self._fd, 2 * HEAD_SIZE, 0) if self._fd >= 0 else b""
        head, token = decode_head(data), data[HEAD_SIZE:].decode(errors="replace").rpartition(", ")[0]
        last = f"last {token}" if token else f"last taken by {head.by}" if head and head.by else "holder unknown"
        if self._fd < 0:
            return last
        pid = flock_holder(self._fd)
        return last if pid is None else f"pid {pid} of this host, {last}"
