"""The journal under the claims lock: take the lock, catch up, append, and record in the head how far it goes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Final

from dispatcher.base import files
from dispatcher.base.file_identity import Identity
from dispatcher.config import LockKind
from dispatcher.errors import DamagedJournalError, LockError, LockLostError, StorageError
from dispatcher.run_state.checksum import RunningChecksum
from dispatcher.run_state.first_journal import FirstJournal
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.head import Head, peek_head
from dispatcher.run_state.journal import Line
from dispatcher.run_state.lock import ClaimsLock
from dispatcher.run_state.lock_choice import (
    check_wanted,
    choose_lock,
    hardlink_is_in_force,
    switch_lock_to_hardlink,
)
from dispatcher.run_state.replica import STALE_PAUSES_S, Replica
from dispatcher.workspace import Layout

_LOCK_TRIES: Final = 5
# Of the run state git has the page that explains it, if there is one.
GITIGNORE: Final = "*\n!README.md\n"
# How often it is checked whether the workspace's group may write.
_UMASK_CHECK_S: Final = 1.0


class LockedJournal:
    """The journal of one workspace as this process reads and extends it.

    `while_waiting` is called about every second while another process holds the lock. `first` creates the journal of a
    workspace that has none.
    """

    def __init__(self, replica: Replica, by: str, wanted_lock: str, lost_after_s: float, first: FirstJournal) -> None:
        self.layout = replica.layout
        self.by = by
        self.replica = replica
        self.while_waiting: Callable[[], object] = lambda: None
        self._wanted_lock = wanted_lock
        self._lost_after_s = lost_after_s
        self._first = first
        self._lock: ClaimsLock | None = None
        self._head: Head | None = None
        self._head_changed = False
        self._busy = False
        self._umask = 0
        self._next_umask_s = 0.0

    @property
    def fold(self) -> Fold:
        return self.replica.fold

    @property
    def lock_kind(self) -> str:
        return self.lock().kind

    def lock(self) -> ClaimsLock:
        """The claims lock, chosen when it is first needed; the folders of the run state are made before."""
        if self._lock is None:
            self._first.check()
            _make_directories(self.layout)
            self._lock = choose_lock(self.layout, self._wanted_lock, self.by, self._lost_after_s)
        return self._lock

    def close(self) -> None:
        self.replica.file.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # Without the lock.

    def refresh(self, *, to_the_end: bool = False, for_display: bool = False) -> None:
        """Read the part of the journal that is certain to stay; `to_the_end`: all of it, to be read only once.

        `for_display`: see LoadedGeneration.load.

        What is beyond the head may still be cut off again (a full disk), so a process that continues to run must not
        use it before the next transaction has confirmed it.
        """
        replica = self.replica
        # Without the lock, a head and a journal that do not belong together may be seen.
        pauses_s = STALE_PAUSES_S if replica.network and to_the_end else STALE_PAUSES_S[:2]
        for again in (*pauses_s[1:], None):
            try:
                with files.storing("reading the run state in", self.layout.run_state):
                    replica.follow(peek_head(self.layout.lock_file), to_the_end=to_the_end, for_display=for_display)
                return
            except DamagedJournalError:
                if again is None and replica.network and not to_the_end and replica.generation is not None:
                    # The next transaction will know: it reads under the lock.
                    return
                if again is None:
                    raise
            time.sleep(again)

    # Under the lock.

    @contextlib.contextmanager
    def held(self, timeout_s: float = 120.0) -> Iterator[int]:
        """Hold the lock and be current; the journal's descriptor, open for writing."""
        if self._busy:
            raise RuntimeError("a transaction within a transaction: the lock would not keep them apart")
        self._busy = True
        try:
            self.replica.check()
            users = os.umask(self._shared_umask())
            try:
                fd, lock = self._acquire(timeout_s)
                try:
                    yield fd
                except BaseException:
                    # Whatever is wrong with the open file, the next transaction begins with another.
                    self.replica.file.close()
                    raise
                finally:
                    try:
                        self._leave_journal(lock)
                    finally:
                        lock.release()
            finally:
                os.umask(users)
        finally:
            self._busy = False

    def begin_append(self) -> None:
        """Before anything is written to the journal."""
        self.lock().begin_append()

    def append(self, fd: int, lines: list[Line]) -> None:
        """Make changes durable that the fold has already, or leave the journal as it was."""
        self.begin_append()
        self.lock().pass_turn()
        self.replica.append(fd, lines)

    def finish_append(self) -> None:
        """Publish where the journal ends, for hosts that may be shown old content."""
        lock, replica = self.lock(), self.replica
        if not lock.publishes_end:
            return
        in_doubt, replica.in_doubt = replica.in_doubt, True
        with files.storing("publishing where the journal ends, in", self.layout.run_state):
            lock.finish_append(replica.generation or 1, replica.offset, replica.checksum.value)
        replica.in_doubt = in_doubt

    def write_head(self) -> None:
        """Write down how far the journal goes, if that has changed."""
        head, replica = self._head, self.replica
        generation = replica.generation or 1
        current = head is not None and (head.generation, head.length) == (generation, replica.offset)
        if current and not self._head_changed:
            return
        seq, checksum = replica.fold.seq, replica.checksum.value
        written = Head(generation=generation, length=replica.offset, seq=seq, checksum=checksum)
        if head is not None:
            written.projection, written.projected = head.projection, head.projected
        # Only a promise of freshness: the change has happened, also if this fails.
        with contextlib.suppress(OSError, LockLostError):
            self.lock().write_head(written)
        self._head = written
        self._head_changed = False

    def abort(self, offset: int) -> None:
        """A transaction has failed that began when the journal was read up to `offset`."""
        self._head = None
        if self.replica.offset != offset:
            # Interrupted when it had been written already: then it has happened, and is read again.
            self.replica.generation = None
        if not self.replica.in_doubt:
            with contextlib.suppress(StorageError, LockLostError):
                self.finish_append()

    def begin_generation(self, generation: int, header: bytes, base_seq: int, checksum: RunningChecksum) -> None:
        """Continue with a new generation, which has the content of this one and is in force from now on."""
        self.replica.move_to(generation, header, base_seq, checksum)
        self.finish_append()
        self.write_head()

    def took_over(self) -> bool:
        """Whether the lock was taken from a holder that seems dead and may still write; True once for each time."""
        if self._lock is None or not self._lock.took_over:
            return False
        self._lock.took_over = False
        return True

    # The status file, according to the head.

    @property
    def projection(self) -> Identity | None:
        """The status file as the last holder of the lock wrote or examined it."""
        return self._head.projection if self._head is not None else None

    @property
    def projected(self) -> int:
        """The `seq` that the status file shows."""
        return self._head.projected if self._head is not None else 0

    def accept_projection(self, identity: Identity | None, projected: int) -> None:
        """The status file `identity` has no edits that the journal lacks; it shows the records at `projected`."""
        if self._head is None:
            self._head = Head(generation=self.replica.generation or 1, length=0, seq=self.fold.seq)
        self._head.projection = identity
        self._head.projected = projected
        self._head_changed = True

    # The kind of lock.

    def use_hardlink_lock(self) -> None:
        """Change to the hard-link lock; all other processes follow at their next transaction."""
        lock = self.lock()
        if lock.kind != LockKind.HARDLINK:
            check_wanted(self.layout, self._wanted_lock, LockKind.HARDLINK)
            self._lock = switch_lock_to_hardlink(self.layout, lock, 60.0)

    def follow_lock_kind(self) -> None:
        """Outside a transaction: change to the hard-link lock when another process has found that it is needed."""
        lock = self.lock()
        if lock.kind != LockKind.HARDLINK and hardlink_is_in_force(self.layout, network=lock.network):
            check_wanted(self.layout, self._wanted_lock, LockKind.HARDLINK)
            self.close()

    def _acquire(self, timeout_s: float) -> tuple[int, ClaimsLock]:
        """Take the lock and come up to date; the descriptor of the journal."""
        for last in (*[False] * (_LOCK_TRIES - 1), True):
            lock = self.lock()
            lock.acquire(timeout_s, self._refresh_while_waiting)
            try:
                fd = self._become_current(lock)
            except LockLostError:
                lock.release()
                if last:
                    raise
            except BaseException:
                lock.release()
                raise
            else:
                if fd is not None:
                    return fd, lock
                lock.release()
                self.close()
        raise LockError(f"{self.layout.lock_file}: the lock was lost or changed its kind {_LOCK_TRIES} times in a row")

    def _become_current(self, lock: ClaimsLock) -> int | None:
        """The journal's descriptor; None when this is not the lock that the others use."""
        if lock.network:
            # Makes the names in this folder current for all that follows: this file, and the status file.
            with contextlib.suppress(FileNotFoundError):
                files.refresh_names(self.layout.run_state)
        is_outdated = lock.kind != LockKind.HARDLINK and hardlink_is_in_force(self.layout, network=False)
        used: str | None = LockKind.HARDLINK if is_outdated else None
        if used is None:
            self._head = lock.read_head()
            self._head_changed = False
            fd = self._catch_up(lock)
            # Two first starts with different settings may both have found nothing.
            used = self.fold.lock_kind
            if used in (lock.kind, None) or lock.kind == LockKind.HARDLINK:
                return fd
            self.replica.file.close()
        check_wanted(self.layout, self._wanted_lock, used)
        return None

    def _catch_up(self, lock: ClaimsLock) -> int:
        fd = self.replica.catch_up(self._head, lock.guard)
        while fd is None:
            # A first start, or the journal was removed: the status file alone rebuilds it.
            before = max(self.replica.generation or 0, self._head.generation if self._head is not None else 0)
            self._head = None
            self._first.create(before + 1, lock.kind)
            fd = self.replica.catch_up(None, lock.guard)
        return fd

    def _leave_journal(self, lock: ClaimsLock) -> None:
        file = self.replica.file
        if file.is_open and lock.network:
            lock.unguard(file.fd)
            file.close()

    def _shared_umask(self) -> int:
        """As `files.shared_umask`, without a look at the workspace for each transaction."""
        now_s = time.monotonic()
        if now_s >= self._next_umask_s:
            self._umask = files.umask_of(self.layout.root)
            self._next_umask_s = now_s + _UMASK_CHECK_S
        return self._umask

    def _refresh_while_waiting(self) -> None:
        self.while_waiting()
        # Reading is better done while another process holds the lock than while this one does.
        if self.replica.network or not self.replica.file.is_open:
            if self.replica.generation is not None:
                self.refresh()
            return
        head = self.lock().peek_head()
        if head is not None:
            # What is wrong is found again under the lock.
            with contextlib.suppress(DamagedJournalError):
                self.replica.follow_open_file(head)


def _make_directories(layout: Layout) -> None:
    if not os.path.isdir(layout.root):
        raise StorageError(f"{layout.root}: no such directory; `dispatcher init DIR` makes a workspace")
    with files.shared_umask(layout.root), files.storing("creating the run state in", layout.run_state):
        if not os.path.isdir(layout.journal_dir):
            os.makedirs(layout.run_state, exist_ok=True)
            # New files and folders get the group of the workspace. The folder may come from a clone.
            with contextlib.suppress(PermissionError):
                os.chown(layout.run_state, -1, os.stat(layout.root).st_gid)
                shared = 0o2020 if files.group_may_write(layout.root) else 0o2000
                os.chmod(layout.run_state, os.stat(layout.run_state).st_mode | shared)
            if not os.path.lexists(layout.run_state_ignored):
                files.write_new(layout.run_state_ignored, GITIGNORE.encode())
        for directory in (layout.journal_dir, layout.pods_dir, layout.jobs_dir):
            os.makedirs(directory, exist_ok=True)
