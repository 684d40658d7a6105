"""The store: records read from the journal, and transactions that change them. See run_state/__init__ for the protocol.

    store = Store(layout, by="pod-0")
    with store.transaction() as tx:
        tx.change("fft_s42", Event.REQUEUED, Change(state=State.QUEUED))

A transaction is committed as a whole or not at all. Slow work (starting jobs, rendering, projecting) is done outside.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

from dispatcher.base import files, host
from dispatcher.base.file_identity import Identity
from dispatcher.base.mounts import mount_of
from dispatcher.run_state import journal, rotation
from dispatcher.run_state.edits.changes import Changes
from dispatcher.run_state.edits.saved import HandEdits
from dispatcher.run_state.first_journal import FirstJournal
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.hardlink_lock import LOST_AFTER_S
from dispatcher.run_state.head import Head, peek_head
from dispatcher.run_state.locked_journal import LockedJournal
from dispatcher.run_state.prepared import PreparedClaims
from dispatcher.run_state.records import Records
from dispatcher.run_state.replaced import saved_late
from dispatcher.run_state.replica import Replica
from dispatcher.run_state.transaction import Transaction
from dispatcher.workspace import Layout

__all__ = ["Store", "Transaction"]


class Store:
    """The run state of one workspace, as this process reads and changes it.

    `manifest_jobs` gives the jobs of all manifests: a hand-written line of a job that none has makes no record.
    `manifests` are those beside which a lab's own status file may be. `records` is complete and current after
    `refresh()` or inside a transaction. `first` begins the journal. `status_is_stale` says that the status file shows
    less than `records`. `clock` tells when to compare the whole journal again. Not for several threads, and no
    transaction within another.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        by: str,
        lock: str = "auto",
        lost_after_s: float = LOST_AFTER_S,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        manifests: Iterable[Path] = (),
        manifest_jobs: Callable[[], Container[str]] | None = None,
    ) -> None:
        self.layout = layout
        self.by = by
        self._wall_clock = wall_clock
        self.first = FirstJournal(layout, by, wall_clock, manifests, manifest_jobs)
        self._replica = Replica(layout, mount_of(layout.root), clock)
        self._journal = LockedJournal(self._replica, by, lock, lost_after_s, self.first)
        claimant = f"{by}\n{host.here()}\n".encode()
        self._prepared = PreparedClaims(layout, claimant, network=self._replica.network)
        self._edits = HandEdits(self._journal, wall_clock, manifest_jobs)
        # The state of `records` that the status file is known to show; None when it does not show all of it.
        self._shown: tuple[int, int] | None = None

    @property
    def fold(self) -> Fold:
        return self._replica.fold

    @property
    def records(self) -> Records:
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

    def shortage(self, head: Head | None) -> list[str]:
        """What is wrong when the journal, read after this head, is shorter than it says: what transactions raise."""
        with files.storing("reading the run state in", self.layout.run_state):
            problem = self._replica.shortage(head)
        return [] if problem is None else [str(problem)]

    @property
    def reloads(self) -> int:
        """How often the records were rebuilt from a whole generation."""
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
    def status_is_stale(self) -> bool:
        """Whether the status file shows less than `records`."""
        return self._shown != (self.reloads, self.seq)

    @status_is_stale.setter
    def status_is_stale(self, value: bool) -> None:
        self._shown = None if value else (self.reloads, self.seq)

    def refresh(self, *, to_the_end: bool = False, for_display: bool = False) -> None:
        """Read what the journal has that is certain to stay, without the lock.

        `to_the_end`: also what its writer may still cut off; for a process that reads only once. `for_display`: what a
        pod has saved of a long journal counts without all of that being read again; a transaction does so.
        """
        self._journal.refresh(to_the_end=to_the_end, for_display=for_display)

    @contextlib.contextmanager
    def transaction(self, timeout_s: float = 120.0) -> Iterator[Transaction]:
        """Hold the lock, catch up, apply hand edits, change records; committed when the block ends without error."""
        locked = self._journal
        with locked.held(timeout_s) as fd:
            now = journal.now_text(self._wall_clock())
            tx = Transaction(self.fold, self.layout, self.by, now, self._prepared)
            before = self._replica.offset
            try:
                if self._edits.take_in(tx):
                    self.status_is_stale = True
                yield tx
                if tx.lines:
                    locked.append(fd, tx.lines)
                locked.finish_append()
            except BaseException:
                tx.undo(keep_directories=self._replica.in_doubt)
                # The hand edits are undone too: the status file is read again.
                self._edits.examined = None
                locked.abort(before)
                raise
            locked.write_head()
            tx.end(undone=False)
        if locked.took_over():
            # What the old holder may still write goes to a file that no process reads any more.
            rotation.rotate(locked)

    def prepare_claims(self, jobs: Iterable[str], count: int) -> None:
        """Outside a transaction: do ahead what the next `count` claims, probably of `jobs`, would do under the lock."""
        self._prepared.prepare(jobs, count)

    def rotate(self) -> bool:
        """Begin a new generation of the journal; False when another process has done so meanwhile."""
        return rotation.rotate(self._journal)

    def rotate_if_worthwhile(self) -> bool:
        """Begin a new generation of the journal when the old one has many lines per record; whether it was done."""
        if not rotation.is_worthwhile(self.seq - self._replica.base_seq, len(self.records)):
            return False
        return self.rotate()

    def save(self) -> None:
        """Outside a transaction: spare those who open the workspace later what this process has read of the journal."""
        write = self.begin_save()
        if write is not None:
            write()

    def begin_save(self) -> Callable[[], None] | None:
        """As `save`, but what is returned does the writing, which takes seconds for a million jobs. For a thread."""
        return self._replica.begin_save()

    # The lock.

    @property
    def lock_kind(self) -> str:
        return self._journal.lock_kind

    @property
    def while_waiting(self) -> Callable[[], object]:
        """Called about every second while another process holds the lock."""
        return self._journal.while_waiting

    @while_waiting.setter
    def while_waiting(self, value: Callable[[], object]) -> None:
        self._journal.while_waiting = value

    def prepare(self) -> None:
        """Make the folders of the run state and choose the kind of lock, before the first transaction."""
        self._journal.lock()

    def held(self, timeout_s: float = 120.0) -> contextlib.AbstractContextManager[int]:
        """Hold the lock and be current; the journal's descriptor. For what takes in no edits and changes no record."""
        return self._journal.held(timeout_s)

    def guard(self, fd: int) -> None:
        """In a transaction: lock another file that is written, so that a host that was cut off cannot do it late."""
        self._journal.lock().guard(fd)

    def use_hardlink_lock(self) -> None:
        """Change to the hard-link lock; all other processes follow at their next transaction."""
        self._journal.use_hardlink_lock()

    def follow_lock_kind(self) -> None:
        """Outside a transaction: change to the hard-link lock when another process has found that it is needed."""
        self._journal.follow_lock_kind()

    def close(self) -> None:
        self._prepared.close()
        self._journal.close()

    # Hand edits and the projection.

    @property
    def problem(self) -> str | None:
        """What is wrong with the status file, if it cannot be read."""
        return self._edits.problem

    @problem.setter
    def problem(self, value: str | None) -> None:
        self._edits.problem = value

    @property
    def examined(self) -> Identity | None:
        """The status file that this process has read last."""
        return self._edits.examined

    def status_identity(self) -> Identity | None:
        """Inode, size and mtime of the status file as it is now."""
        return self._edits.identity()

    def pending_edits(self) -> Changes:
        """What a person has changed in the status file that no transaction has applied yet; changes nothing.

        `problem` is set when the file cannot be read.
        """
        identity = self.status_identity()
        with files.storing("reading", self.layout.lock_file):
            head = peek_head(self.layout.lock_file)
        # Of a file that was replaced only what can be parsed is shown; it may be half written.
        late = sum((self.find_edits(data) for data in saved_late(self.layout.status_file)), Changes())
        if identity is None or (head is not None and head.projection == identity):
            self.problem = None
            return late
        return late + self._edits.read(head.projected if head is not None else 0)

    def find_edits(self, data: bytes, *, is_whole: bool = True) -> Changes:
        """What `data`, a saved status file, changes; `problem` says what of it cannot be read.

        `is_whole`: a job without a line in it has lost its line.
        """
        return self._edits.find(data, is_whole=is_whole)

    def apply_edits(self, tx: Transaction, found: Changes, data: bytes) -> None:
        """Record what people did to the status file `data`; what could not be used is kept word for word."""
        self._edits.record(tx, found, data)
        self.status_is_stale = True

    def accept_projection(self, identity: Identity | None, projected: int) -> None:
        """Under the lock: the file `identity` has no unrecorded edits, and shows the records at `projected`."""
        self._journal.accept_projection(identity, projected)

    @property
    def projected(self) -> int:
        """The `seq` that the status file shows, as the last holder of the lock left it."""
        return self._journal.projected

    @property
    def expected_projection(self) -> Identity | None:
        return self._journal.projection
