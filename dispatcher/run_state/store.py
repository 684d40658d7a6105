"""The store: records read from the journal, and transactions that change them. See run_state/__init__ for the protocol.

    store = Store(layout, by="pod-0")
    with store.transaction() as tx:
        tx.change("fft_s42", Event.REQUEUED, Change(state=State.QUEUED))

A transaction happens wholly or not at all. Whatever is slow (spawning, rendering, projecting) is done outside it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.errors import DamagedJournalError, LockError, LockLostError, StatusFileError, StorageError
from dispatcher.run_state import beginning, edits, journal, rotation, status_file
from dispatcher.run_state.adoption import refuse_unadopted
from dispatcher.run_state.checksum import RunningChecksum
from dispatcher.run_state.events import Event
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.generations import encode_generation, publish
from dispatcher.run_state.hand_edits import HandEdits, Identity
from dispatcher.run_state.hardlink_lock import LOST_AFTER_S
from dispatcher.run_state.head import Head, peek_head
from dispatcher.run_state.lock import ClaimsLock
from dispatcher.run_state.lock_choice import (
    HARDLINK,
    check_wanted,
    choose_lock,
    hardlink_is_in_force,
    switch_lock_to_hardlink,
)
from dispatcher.run_state.replica import STALE_PAUSES_S, Replica
from dispatcher.run_state.states import Record
from dispatcher.run_state.transaction import Transaction
from dispatcher.workspace import STATUS_FILE, Layout

__all__ = ["Identity", "Store", "Transaction"]

_LOCK_TRIES: Final = 5


class Store:
    """The run state of one workspace, as this process sees and changes it.

    `manifest_jobs` gives the jobs of all manifests: a hand-written line of one that none has makes no record.
    `records` is complete and current after `refresh()` or inside a transaction. `problem` says what is wrong with the
    status file, if a person has left it in a state that cannot be read. `status_is_stale` says that the status file
    shows less than `records`. `manifests` are those beside which a lab's own status file may stand. Not for several
    threads, and no transaction within another.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        by: str,
        lock: str = "auto",
        lost_after_s: float = LOST_AFTER_S,
        wall_clock: Callable[[], float] = time.time,
        manifests: Iterable[Path] = (),
        manifest_jobs: Callable[[], Container[str]] | None = None,
    ) -> None:
        self.layout = layout
        self.by = by
        # A status file of somebody else, to begin the journal with.
        self.adopt_from: Path | None = None
        # The status file with which this process began the journal.
        self.began_with: Path | None = None
        self.status_is_stale = True
        # Called about every second while somebody else holds the lock.
        self.while_waiting: Callable[[], object] = lambda: None
        self._wall_clock = wall_clock
        self._wanted_lock = lock
        self._lost_after_s = lost_after_s
        self._manifests = tuple(manifests)
        self._lock: ClaimsLock | None = None
        self._head: Head | None = None
        self._head_changed = False
        self._replica = Replica(layout, mount_of(layout.root))
        self._edits = HandEdits(layout, self._replica, wall_clock, manifest_jobs)
        self._busy = False

    @property
    def fold(self) -> Fold:
        return self._replica.fold

    @property
    def records(self) -> dict[str, Record]:
        return self._replica.fold.records

    @property
    def seq(self) -> int:
        return self._replica.fold.seq

    @property
    def generation(self) -> int | None:
        """The journal's generation that was read last; None before the first."""
        return self._replica.generation

    @property
    def offset(self) -> int:
        """How many bytes of that generation `records` shows."""
        return self._replica.offset

    @property
    def reloads(self) -> int:
        """How often the records were built anew from a whole generation."""
        return self._replica.reloads

    @property
    def position(self) -> tuple[int, int, int] | None:
        """How far the journal was read: generation, length, checksum; None before anything was read."""
        replica = self._replica
        return None if replica.generation is None else (replica.generation, replica.offset, replica.checksum.value)

    def shows(self, generation: int, length: int, checksum: int) -> bool:
        """Whether `records` shows what another host's `position` showed."""
        with files.storing("reading the run state in", self.layout.run_state):
            return self._replica.shows(generation, length, checksum)

    @property
    def lock_kind(self) -> str:
        return self._claims_lock().kind

    def prepare(self) -> None:
        """Make the folders of the run state and choose the kind of lock, before the first transaction."""
        self._claims_lock()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # Reading, without the lock.

    def refresh(self, *, to_the_end: bool = False) -> None:
        """Take in what the journal has that is certain to stay; `to_the_end` for a reader that looks only once.

        What stands beyond the head may still be cut off again (a full disk), so a process that goes on must not
        believe it before the next transaction says so.
        """
        seen = self._seen()
        network = self._replica.network
        # Without the lock, a head and a journal that do not belong together may be seen.
        pauses_s = STALE_PAUSES_S if network and to_the_end else STALE_PAUSES_S[:2]
        for again in (*pauses_s[1:], None):
            try:
                with files.storing("reading the run state in", self.layout.run_state):
                    self._replica.follow(peek_head(self.layout.lock_file), to_the_end=to_the_end)
                break
            except DamagedJournalError:
                if again is None and network and not to_the_end and self.generation is not None:
                    # The next transaction knows better.
                    break
                if again is None:
                    raise
            time.sleep(again)
        self.status_is_stale |= self._seen() != seen

    # Changing, under the lock.

    @contextlib.contextmanager
    def transaction(self, timeout_s: float = 120.0) -> Iterator[Transaction]:
        """Hold the lock, be current, take in hand edits, change records; written when the block ends without error."""
        with self.held(timeout_s) as fd:
            tx = Transaction(self.fold, self.layout, self.by, journal.now_text(self._wall_clock()))
            before = self._replica.offset
            try:
                self._take_in_edits(tx)
                yield tx
                if tx.lines:
                    self._claims_lock().begin_append()
                    self._replica.append(fd, tx.lines)
                    self.status_is_stale = True
                self._finish_append()
            except BaseException:
                tx.undo(keep_directories=self._replica.in_doubt)
                # What was taken in of the status file is not: it is looked at again.
                self._edits.examined = None
                self._head = None
                if self._replica.offset != before:
                    # Interrupted when it had been written already: then it has happened, and is read again.
                    self._replica.generation = None
                if not self._replica.in_doubt:
                    with contextlib.suppress(StorageError, LockLostError):
                        self._finish_append()
                raise
            self._write_head()
        if self._lock is not None and self._lock.took_over:
            # What the old holder may still write goes to a file that nobody reads any more.
            self._lock.took_over = False
            rotation.rotate(self)

    @contextlib.contextmanager
    def held(self, timeout_s: float = 120.0) -> Iterator[int]:
        """Hold the lock and be current, for those who change the files themselves; the journal's descriptor."""
        if self._busy:
            raise RuntimeError("a transaction within a transaction: the lock would not keep them apart")
        self._busy = True
        try:
            with files.shared_umask(self.layout.root):
                fd, lock = self._begin(timeout_s)
                try:
                    yield fd
                finally:
                    try:
                        lock.unguard(fd)
                        os.close(fd)
                    finally:
                        lock.release()
        finally:
            self._busy = False

    def rotate_if_worthwhile(self) -> bool:
        """Begin a new generation of the journal when the old one says little with many lines; whether it was done."""
        if not rotation.is_worthwhile(self.seq - self._replica.base_seq, len(self.records)):
            return False
        return rotation.rotate(self)

    def _begin(self, timeout_s: float) -> tuple[int, ClaimsLock]:
        """Take the lock and come up to date; the descriptor of the journal."""
        for last in (*[False] * (_LOCK_TRIES - 1), True):
            lock = self._claims_lock()
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
        """Under the lock: the journal's descriptor; None when this is not the lock that the others use."""
        used = HARDLINK if lock.kind != HARDLINK and hardlink_is_in_force(self.layout, network=lock.network) else None
        if used is None:
            seen = self._seen()
            self._head = lock.read_head()
            self._head_changed = False
            fd = self._catch_up(lock)
            self.status_is_stale |= self._seen() != seen
            # Two first starts with different settings may both have found nothing.
            used = self.fold.lock_kind
            if used in (lock.kind, None) or lock.kind == HARDLINK:
                return fd
            os.close(fd)
        check_wanted(self.layout, self._wanted_lock, used)
        return None

    def _refresh_while_waiting(self) -> None:
        self.while_waiting()
        # Reading is better done while somebody else holds the lock than while we do.
        if self.generation is not None:
            self.refresh()

    def _catch_up(self, lock: ClaimsLock) -> int:
        fd = self._replica.catch_up(self._head, lock.guard)
        while fd is None:
            # A first start, or somebody has removed the journal: the status file alone rebuilds it.
            before = max(self.generation or 0, self._head.generation if self._head is not None else 0)
            self._head = None
            self._create_journal(before + 1)
            fd = self._replica.catch_up(None, lock.guard)
        return fd

    def begin_append(self) -> None:
        """Under the lock: before anything is written to the journal."""
        self._claims_lock().begin_append()

    def _finish_append(self) -> None:
        """Say where the journal ends, to those who cannot rely on what they are shown."""
        replica = self._replica
        in_doubt, replica.in_doubt = replica.in_doubt, True
        with files.storing("saying where the journal ends, in", self.layout.run_state):
            self._claims_lock().finish_append(replica.generation or 1, replica.offset, replica.checksum.value)
        replica.in_doubt = in_doubt

    def _write_head(self) -> None:
        """Say how far the journal goes, if that has changed."""
        head, replica = self._head, self._replica
        generation = replica.generation or 1
        current = head is not None and (head.generation, head.length) == (generation, replica.offset)
        if current and not self._head_changed:
            return
        written = Head(generation=generation, length=replica.offset, seq=self.seq, checksum=replica.checksum.value)
        if head is not None:
            written.projection, written.projected = head.projection, head.projected
        # Only a promise of freshness: the change has happened, also if this fails.
        with contextlib.suppress(OSError, LockLostError):
            self._claims_lock().write_head(written)
        self._head = written
        self._head_changed = False

    def begin_generation(self, generation: int, header: bytes, base_seq: int, checksum: RunningChecksum) -> None:
        """Under the lock: a new generation that says what this one says is in force from now on."""
        self._replica.move_to(generation, header, base_seq, checksum)
        self._finish_append()
        self._write_head()

    def _create_journal(self, generation: int) -> None:
        """The first generation; its records are adopted from a status file that is there already."""
        path = self.layout.journal(generation)
        name = str(self.adopt_from or self.layout.status_file)
        with files.storing("reading", name):
            data = files.read_fresh(name)
        lines = status_file.parse(data, name) if data is not None and data.strip() else {}
        at = journal.now_text(self._wall_clock())
        self.refuse_unrelated(lines, name)
        is_foreign = self.adopt_from not in (None, self.layout.status_file)
        first = beginning.adopt(lines, at=at, by=self.by, is_foreign=is_foreign)
        header = journal.new_header(
            generation,
            base_seq=first.base_seq,
            records=len(first.known),
            lock=self._claims_lock().kind,
            seconds=self._wall_clock(),
        )
        with files.storing("creating the journal", path):
            # Never the workspace itself: where it was unmounted, a new one would begin on the disk below.
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.layout.journal_dir)
            if publish(path, encode_generation(header, first.known + first.new)):
                self.began_with = Path(name)
            if data is not None and any(line.event is Event.REFUSED for line in first.new):
                os.makedirs(self.layout.rejected_dir, exist_ok=True)
                files.write_unique(self.layout.rejected_dir / f"{at.replace(':', '')}-{STATUS_FILE}", data)

    def refuse_unrelated(self, lines: Mapping[str, Mapping[str, Any]], name: str) -> None:
        """Raise StatusFileError when a status file without numbers of ours has no job of any manifest.

        Its keys are then no ids of jobs (`{"jobs": {...}}`), and beginning with it would queue done work anew.
        """
        if not lines or self._edits.manifest_jobs is None or any("rev" in line for line in lines.values()):
            return
        known = self._edits.manifest_jobs()
        if not known or any(job in known for job in lines):
            return
        raise StatusFileError(
            f"{name} has no job of any manifest: its first key is {next(iter(lines))!r}; expected "
            '{"JOB_ID": {"state": "done", ...}, ...} with the ids of the manifest. All jobs would be queued anew. '
            "Write it so; if it is of other jobs only, move it away. Nothing was changed"
        )

    # Hand edits.

    @property
    def problem(self) -> str | None:
        """What is wrong with the status file, if it cannot be read."""
        return self._edits.problem

    @problem.setter
    def problem(self, value: str | None) -> None:
        self._edits.problem = value

    @property
    def examined(self) -> Identity | None:
        """The status file that this process has looked at last."""
        return self._edits.examined

    def status_identity(self) -> Identity | None:
        """Inode, size and mtime of the status file as it is now."""
        return self._edits.identity()

    def pending_edits(self) -> list[edits.Outcome]:
        """What a person has changed in the status file that no transaction has taken in yet; changes nothing.

        `problem` is set when the file cannot be read.
        """
        identity = self.status_identity()
        with files.storing("reading", self.layout.lock_file):
            head = peek_head(self.layout.lock_file)
        if identity is None or (head is not None and head.projection == identity):
            self.problem = None
            return []
        return self._edits.read(head.projected if head is not None else 0) or []

    def judge(self, data: bytes, *, is_whole: bool = True) -> list[edits.Outcome] | None:
        """What `data`, a status file that somebody saved, changes; `problem` says what of it cannot be read.

        None when nothing of it can. `is_whole`: a job that has no line in it has lost it.
        """
        return self._edits.judge(data, is_whole=is_whole)

    def apply_edits(self, tx: Transaction, outcomes: list[edits.Outcome], data: bytes) -> None:
        """Record what people did to the status file `data`; what could not be used is kept word for word."""
        self._edits.apply(tx, outcomes, data)
        self.status_is_stale = True

    def accept_projection(self, identity: Identity | None, projected: int) -> None:
        """Under the lock: `identity` holds nothing that the journal does not; it shows the records at `projected`."""
        if self._head is None:
            self._head = Head(generation=self.generation or 1, length=0, seq=self.seq)
        self._head.projection = identity
        self._head.projected = projected
        self._head_changed = True

    @property
    def projected(self) -> int:
        """The `seq` that the status file shows, as the last holder of the lock left it."""
        return self._head.projected if self._head is not None else 0

    @property
    def expected_projection(self) -> Identity | None:
        return self._head.projection if self._head is not None else None

    def _take_in_edits(self, tx: Transaction) -> None:
        expected = self.expected_projection
        accepted = self._edits.take_in(tx, expected, self.projected)
        if accepted is not None:
            self.accept_projection(accepted, projected=0)
            self.status_is_stale = True
        elif expected is not None and self._edits.missing:
            self.status_is_stale = True

    # The lock.

    def use_hardlink_lock(self) -> None:
        """Go over to the hard-link lock and make all others follow at their next transaction."""
        lock = self._claims_lock()
        if lock.kind != HARDLINK:
            check_wanted(self.layout, self._wanted_lock, HARDLINK)
            self._lock = switch_lock_to_hardlink(self.layout, lock, 60.0)

    def follow_lock_kind(self) -> None:
        """Outside a transaction: go over to the hard-link lock when somebody has found that it is needed."""
        lock = self._claims_lock()
        if lock.kind != HARDLINK and hardlink_is_in_force(self.layout, network=lock.network):
            check_wanted(self.layout, self._wanted_lock, HARDLINK)
            self.close()

    def _claims_lock(self) -> ClaimsLock:
        if self._lock is None:
            if self.adopt_from is None:
                refuse_unadopted(self.layout, self._manifests)
            self._make_directories()
            self._lock = choose_lock(self.layout, self._wanted_lock, self.by, self._lost_after_s)
        return self._lock

    def _make_directories(self) -> None:
        layout = self.layout
        if not os.path.isdir(layout.root):
            raise StorageError(f"{layout.root}: no such directory; `dispatcher init DIR` makes a workspace")
        with files.shared_umask(layout.root), files.storing("creating the run state in", layout.run_state):
            if not os.path.isdir(layout.run_state):
                os.makedirs(layout.run_state, exist_ok=True)
                # New files and folders get the workspace's group, whoever makes them.
                with contextlib.suppress(PermissionError):
                    os.chown(layout.run_state, -1, os.stat(layout.root).st_gid)
                os.chmod(layout.run_state, os.stat(layout.run_state).st_mode | 0o2000)
            for directory in (layout.journal_dir, layout.pods_dir, layout.jobs_dir):
                os.makedirs(directory, exist_ok=True)

    def _seen(self) -> tuple[int, int]:
        return self.reloads, self.seq
