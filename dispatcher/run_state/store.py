"""The store: records read from the journal, and transactions that change them. See run_state/__init__ for the protocol.

    store = Store(layout, by="pod-0")
    with store.transaction() as tx:
        tx.change("fft_s42", "requeued", {"state": "queued"})

A transaction happens wholly or not at all. Whatever is slow (spawning, rendering, projecting) is done outside it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from dispatcher.errors import (
    DamagedJournalError,
    LockError,
    LockLostError,
    LockUnsupportedError,
    StaleViewError,
    StatusFileError,
    StorageError,
)
from dispatcher.run_state import edits, files, journal, status_file
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.generations import Generation, newest_generation
from dispatcher.run_state.journal import Line
from dispatcher.run_state.lock import ClaimsLock, Head, decode_head
from dispatcher.run_state.mounts import mount_of
from dispatcher.run_state.states import Record, check_transition, parse_state
from dispatcher.workspace import AttemptPaths, Layout

Identity = tuple[int, int, int]
_BULK: Final = 2_000
_STALE_PAUSES_S: Final = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
_LOCK_TRIES: Final = 5


class Transaction:
    """Changes under the lock; they are applied in memory at once and written together at the end."""

    def __init__(self, store: Store, at: str) -> None:
        self._store = store
        self.at = at
        self.lines: list[Line] = []
        self._directories: list[AttemptPaths] = []
        fold = store.fold
        self._undo: dict[str, tuple[Record | None, int | None]] = {}
        self._rest = (fold.seq, dict(fold.pauses), dict(fold.refusals), dict(fold.streaks), fold.lock_kind)

    def record(self, job: str) -> Record | None:
        """The record as it is now, with the changes of this transaction."""
        return self._store.fold.records.get(job)

    def change(
        self,
        job: str,
        event: str,
        fields: dict[str, Any],
        *,
        data: dict[str, Any] | None = None,
        by: str | None = None,
    ) -> Record | None:
        """Change a record's fields (None removes one); raises TransitionError for a state change that cannot be."""
        fold = self._store.fold
        old = fold.records.get(job)
        if old is not None and "state" in fields and event != "adopted":
            new = parse_state(fields["state"])
            if new is not old.state:
                check_transition(job, old.state, new)
        self._undo.setdefault(job, (old, fold.born.get(job)))
        self._add(Line(seq=fold.seq + 1, at=self.at, by=by or self._store.by, event=event, job=job, set=fields, data=data))
        return fold.records.get(job)

    def forget(self, job: str) -> None:
        """Remove a record for good; its history stays in the journal."""
        self.change(job, "forgotten", {})

    def note(self, event: str, data: dict[str, Any], *, job: str | None = None, by: str | None = None) -> None:
        """Something that is no record: a pause, a refused edit, the kind of lock."""
        fold = self._store.fold
        self._add(Line(seq=fold.seq + 1, at=self.at, by=by or self._store.by, event=event, job=job, data=data))

    def make_attempt(self, job: str, attempt: int) -> AttemptPaths | None:
        """Create the directory of a new attempt: the second fence of a claim. None when it is there already."""
        paths = self._store.layout.attempt(job, attempt)
        with files.storing("creating the attempt's directory", paths.directory):
            try:
                os.mkdir(paths.directory)
            except FileExistsError:
                return None
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(paths.directory.parent)
                try:
                    os.mkdir(paths.directory)
                except FileExistsError:
                    return None
            self._directories.append(paths)
            files.write_new(paths.claimant, self._store.by.encode() + b"\n")
        return paths

    def undo(self) -> None:
        """Take everything back in memory, and the directories that were made."""
        fold = self._store.fold
        for job, (record, born) in self._undo.items():
            if record is None:
                fold.records.pop(job, None)
                fold.born.pop(job, None)
            else:
                fold.records[job] = record
                fold.born[job] = born or 0
            fold.touched.add(job)
        fold.seq, fold.pauses, fold.refusals, fold.streaks, fold.lock_kind = self._rest
        for paths in self._directories:
            with contextlib.suppress(OSError):
                os.unlink(paths.claimant)
                os.rmdir(paths.directory)

    def _add(self, line: Line) -> None:
        self._store.fold.extend((line,))
        self.lines.append(line)


class Store:
    """The run state of one workspace, as this process sees and changes it.

    `records` is complete and current after `refresh()` or inside a transaction. `problem` says what is wrong with the
    status file, if a person has left it in a state that cannot be read.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        by: str,
        lock: str = "auto",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.layout = layout
        self.by = by
        self.fold = Fold()
        self.problem: str | None = None
        self.generation: int | None = None
        self.reloads = 0
        self.status_is_stale = True
        self._wall_clock = wall_clock
        self._offset = 0
        self._wanted_lock = lock
        self._lock: ClaimsLock | None = None
        self._head: Head | None = None
        self._head_changed = False
        self._examined: Identity | None = None
        self._network = mount_of(layout.root).is_network

    @property
    def records(self) -> dict[str, Record]:
        return self.fold.records

    @property
    def seq(self) -> int:
        return self.fold.seq

    @property
    def lock_kind(self) -> str:
        return self._claims_lock().kind

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
        head = self._peek_head()
        newest = head.generation if head is not None else newest_generation(self.layout)
        if newest is None:
            return
        if newest != self.generation:
            self._load(newest, head)
        fd = self._open_journal()
        try:
            end = os.fstat(fd).st_size
            if head is not None and head.generation == self.generation and not to_the_end:
                end = min(end, head.length)
            if end > self._offset:
                data = files.read_fd(fd, self._offset, end - self._offset)
                self._take_in(*journal.parse_consecutive(data, self.seq))
        finally:
            os.close(fd)

    # Changing, under the lock.

    @contextlib.contextmanager
    def transaction(self, timeout_s: float = 120.0) -> Iterator[Transaction]:
        """Hold the lock, be current, take in hand edits, change records; written when the block ends without error."""
        with files.shared_umask(self.layout.root):
            fd, lock = self._begin(timeout_s)
            try:
                tx = Transaction(self, journal.now_text(self._wall_clock()))
                try:
                    self._take_in_edits(tx)
                    yield tx
                    self._commit(fd, lock, tx)
                except BaseException:
                    tx.undo()
                    raise
            finally:
                os.close(fd)
                lock.release()

    def _begin(self, timeout_s: float) -> tuple[int, ClaimsLock]:
        """Take the lock and come up to date; the descriptor of the journal."""
        for last in (*[False] * (_LOCK_TRIES - 1), True):
            lock = self._claims_lock()
            lock.acquire(timeout_s, self._refresh_while_waiting)
            try:
                if lock.kind != "strict" and self._strict_is_in_force():
                    lock.release()
                    self._switch_to_strict()
                    continue
                self._head = lock.read_head()
                return self._catch_up(), lock
            except LockLostError:
                if last:
                    raise
            except BaseException:
                lock.release()
                raise
        raise LockError(f"{self.layout.lock_file}: the lock was lost {_LOCK_TRIES} times in a row")

    def _refresh_while_waiting(self) -> None:
        # Reading is better done while somebody else holds the lock than while we do.
        if self.generation is not None:
            self.refresh()

    def _catch_up(self) -> int:
        """Take in everything, cut off what was never finished; the journal's descriptor, opened for writing."""
        head = self._head
        if head is not None and not journal.generations(self.layout):
            # Somebody removed the journal: the status file alone rebuilds it.
            head = self._head = None
            self.generation, self._examined = None, None
        current = head.generation if head is not None else newest_generation(self.layout)
        if current is None:
            current = self._create_journal()
        if current != self.generation:
            self._load(current, head)
        for pause_s in _STALE_PAUSES_S:
            if pause_s:
                time.sleep(pause_s)
                files.look_at(self.layout.journal_dir)
            fd = self._open_journal(os.O_RDWR)
            try:
                problem = self._read_to_the_end(fd, head)
                if problem is None:
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            if not self._network:
                break
        mount = mount_of(self.layout.journal_dir)
        cure = mount.cure if mount.is_network else (
            "if the file was cut (a damaged disk, a restored copy), `dispatcher doctor --repair` goes on from what is "
            "there and from the newer lines of matrix_status.json"
        )  # fmt: skip
        raise StaleViewError(f"{problem}. This host is shown old data by {mount}, or the file was cut. Cure: {cure}")

    def _read_to_the_end(self, fd: int, head: Head | None) -> str | None:
        """Take in the rest of the journal; what is wrong when this cannot be the journal that the head names."""
        path = self.layout.journal(self.generation or 0)
        size = os.fstat(fd).st_size
        if head is not None and size < head.length:
            return f"{path}: {size} bytes, but the lock file says that {head.length} were written"
        if size < self._offset:
            return f"{path}: {size} bytes, but {self._offset} were there before"
        if size == self._offset:
            return None
        data = files.read_fd(fd, self._offset, size - self._offset)
        certain = 0 if head is None else max(0, head.length - self._offset)
        if certain:
            try:
                lines = journal.parse_lines(data[:certain], path, self._offset)
            except DamagedJournalError as error:
                if self._network:
                    return str(error)
                raise
            if lines and (lines[0].seq != self.seq + 1 or lines[-1].seq != lines[0].seq + len(lines) - 1):
                return f"{path}: line numbers jump from {self.seq} to {lines[0].seq}..{lines[-1].seq}"
            self._take_in(lines, certain)
        # Beyond the head: whole lines count (their writer died before it could say so), the rest was never finished.
        self._take_in(*journal.parse_consecutive(data[certain:], self.seq))
        if self._offset < size:
            with files.storing("cutting off an unfinished line of", path):
                os.ftruncate(fd, self._offset)
        return None

    def _take_in(self, lines: list[Line], length: int) -> None:
        if len(lines) > _BULK:
            self.fold.extend_in_bulk(lines)
        else:
            self.fold.extend(lines)
        self._offset += length
        if lines:
            self.status_is_stale = True

    def _commit(self, fd: int, lock: ClaimsLock, tx: Transaction) -> None:
        if tx.lines:
            data = b"".join([journal.encode(line) + b"\n" for line in tx.lines])
            path = self.layout.journal(self.generation or 0)
            try:
                files.write_all(fd, data, self._offset)
                os.fsync(fd)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, self._offset)
                if error.errno == errno.EIO and self._network:
                    raise LockLostError(f"{path}: the file server refused the write ({error.strerror})") from error
                raise files.storage_error(error, "writing to the journal", path) from error
            self._offset += len(data)
            self.status_is_stale = True
        if tx.lines or self._head_changed or self._head is None or self._head.length != self._offset:
            head = Head(generation=self.generation or 1, length=self._offset, seq=self.seq)
            if self._head is not None:
                head.projection, head.projected, head.token = (
                    self._head.projection, self._head.projected, self._head.token,
                )  # fmt: skip
            # Only a promise of freshness: the change has happened, also if this fails.
            with contextlib.suppress(OSError):
                lock.write_head(head)
            self._head = head
            self._head_changed = False

    # Generations.

    def _load(self, generation: int, head: Head | None) -> None:
        loaded = Generation.read(self.layout, generation)
        old = set(self.fold.records)
        self.fold = Fold()
        self.fold.lock_kind = loaded.header.lock
        self.fold.seq = loaded.header.base_seq
        snapshot, start = loaded.snapshot()
        self.fold.extend_in_bulk(snapshot)
        for job in self.fold.records:
            self.fold.born[job] = 0
        self.fold.touched |= old
        self.generation = generation
        self._offset = start
        self.reloads += 1
        rest = loaded.data[start:]
        certain = 0
        if head is not None and head.generation == generation:
            certain = max(0, min(len(rest), head.length - start))
            lines = journal.parse_lines(journal.complete_part(rest[:certain]), self.layout.journal(generation), start)
            certain = len(journal.complete_part(rest[:certain]))
            self._check_consecutive(lines, generation)
            self._take_in(lines, certain)
        self._take_in(*journal.parse_consecutive(rest[certain:], self.seq))

    def _check_consecutive(self, lines: list[Line], generation: int) -> None:
        if lines and (lines[0].seq != self.seq + 1 or lines[-1].seq != self.seq + len(lines)):
            raise DamagedJournalError(
                f"{self.layout.journal(generation)}: after line {self.seq} comes {lines[0].seq}, and {len(lines)} lines "
                f"end with {lines[-1].seq}; nothing was changed. `dispatcher doctor --repair` goes on from what is whole"
            )

    def _create_journal(self) -> int:
        """The first generation; its records are adopted from a status file that is there already."""
        path = self.layout.journal(1)
        adopted: list[edits.Outcome] = []
        base = 0
        data = files.read_fresh(self.layout.status_file)
        if data is not None and data.strip():
            lines = status_file.parse(data, str(self.layout.status_file))
            adopted = edits.adopt(lines, str(self.layout.status_file))
            revs = (line.get("rev") for line in lines.values())
            base = max((rev for rev in revs if isinstance(rev, int)), default=0)
        at = journal.now_text(self._wall_clock())
        header = journal.Header(
            format=journal.FORMAT, version=journal.VERSION, base_seq=base, lock=self._claims_lock().kind, at=at
        )
        body = [journal.encode(header)]
        for number, outcome in enumerate(adopted, base + 1):
            line = Line(seq=number, at=at, by=self.by, event="adopted", job=outcome.job, set=dict(outcome.fields))
            body.append(journal.encode(line))
        with files.storing("creating the journal", path):
            os.makedirs(self.layout.journal_dir, exist_ok=True)
            # Under the lock and with no complete generation: what is there is the rest of a start that died.
            files.replace_file(path, b"\n".join(body) + b"\n")
        return 1

    def _open_journal(self, flags: int = os.O_RDONLY) -> int:
        path = self.layout.journal(self.generation or 0)
        if self._network:
            files.look_at(self.layout.journal_dir)
        with files.storing("opening the journal", path):
            return files.open_existing(path, flags)

    # Hand edits.

    def status_identity(self) -> Identity | None:
        """Inode, size and mtime of the status file as it is now."""
        try:
            if self._network:
                files.look_at(self.layout.run_state)
                fd = os.open(self.layout.status_file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    found = os.fstat(fd)
                finally:
                    os.close(fd)
            else:
                found = os.stat(self.layout.status_file)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return None
            raise files.storage_error(error, "looking at", self.layout.status_file) from error
        return found.st_ino, found.st_size, found.st_mtime_ns

    def pending_edits(self) -> list[edits.Outcome]:
        """What a person has changed in the status file that no transaction has taken in yet; changes nothing.

        `problem` is set when the file cannot be read.
        """
        identity = self.status_identity()
        head = self._peek_head()
        if identity is None or (head is not None and head.projection == identity):
            self.problem = None
            return []
        return self._read_edits() or []

    def _take_in_edits(self, tx: Transaction) -> None:
        identity = self.status_identity()
        expected = self._head.projection if self._head is not None else None
        if identity is None:
            if expected is not None:
                self.status_is_stale = True
            self.problem = None
            return
        if identity in (expected, self._examined):
            if identity == expected:
                self.problem = None
            return
        outcomes = self._read_edits()
        self._examined = identity
        if outcomes is None:
            return
        self.apply_edits(tx, outcomes)
        self.accept_projection(identity, projected=0)

    def apply_edits(self, tx: Transaction, outcomes: list[edits.Outcome]) -> None:
        """Record what people did to the status file; what could not be used is kept word for word in rejected/."""
        who = f"hand edit ({_owner(self.layout)})"
        for outcome in outcomes:
            if outcome.event == "refused":
                known = self.fold.refusals.get(outcome.job)
                if known is None or (known.line, known.why) != (outcome.line, outcome.why):
                    self._reject(outcome)
                    data = {"why": outcome.why, "line": outcome.line[:2000]}
                    tx.note("refused", data, job=outcome.job or None, by=who)
            else:
                tx.change(outcome.job, outcome.event, dict(outcome.fields), by=who)
        self.status_is_stale = True

    def accept_projection(self, identity: Identity | None, projected: int) -> None:
        """Under the lock: `identity` holds nothing that the journal does not; it shows the records at `projected`."""
        if self._head is None:
            self._head = Head(generation=self.generation or 1, length=self._offset, seq=self.seq)
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

    def _read_edits(self) -> list[edits.Outcome] | None:
        """What the status file changes; None, and `problem` says why, when it cannot be read."""
        data = files.read_fresh(self.layout.status_file)
        if data is None:
            return []
        return self.judge(data)

    def judge(self, data: bytes) -> list[edits.Outcome] | None:
        """What `data`, a status file that somebody saved, changes; None when it cannot be read (see `problem`)."""
        try:
            lines = status_file.parse(data, str(self.layout.status_file))
        except StatusFileError as error:
            self.problem = (
                f"{error}. The dispatchers go on from the journal and leave the file alone: correct it, or "
                "`dispatcher status --restore` writes it anew and keeps this one under run_state/rejected/"
            )
            return None
        self.problem = None
        return edits.merge(lines, self.fold.records, self.fold.born, self.seq, self._version)

    def _version(self, job: str, rev: int) -> Record | None:
        found = self.fold.version(job, rev)
        if found is not None:
            return found
        older = Fold()
        for line in journal.history(self.layout, job):
            if line.seq > rev:
                break
            older.extend((line,))
        record = older.records.get(job)
        return record if record is not None and record.rev == rev else None

    def _reject(self, outcome: edits.Outcome) -> None:
        directory = self.layout.rejected_dir
        name = f"{journal.now_text(self._wall_clock()).replace(':', '')}-{outcome.job or 'file'}.json"
        with files.storing("keeping a refused edit in", directory):
            os.makedirs(directory, exist_ok=True)
            if outcome.line:
                files.write_new(directory / name, f"{outcome.line}\n".encode())
            else:
                files.write_new(directory / name, files.read_fresh(self.layout.status_file) or b"")

    # The lock.

    def _claims_lock(self) -> ClaimsLock:
        if self._lock is None:
            self._make_directories()
            self._lock = ClaimsLock(self.layout.lock_file, self._choose_lock(), self.by)
        return self._lock

    def _choose_lock(self) -> str:
        """The kind of lock that this workspace uses; a different setting is refused."""
        used = self._lock_in_use()
        wanted = self._wanted_lock
        if used is None:
            return self._first_lock() if wanted == "auto" else wanted
        if wanted not in ("auto", used):
            raise LockError(
                f"{self.layout.config_file}: lock: {wanted}, but this workspace uses {used}: all dispatchers of a "
                f"workspace must use one kind, for they do not exclude each other. Set `lock: {used}` or `lock: auto`"
            )
        return used

    def _lock_in_use(self) -> str | None:
        if self._strict_is_in_force():
            return "strict"
        if self.fold.lock_kind is not None:
            return self.fold.lock_kind
        newest = newest_generation(self.layout)
        if newest is None:
            return None
        return Generation.read_header(self.layout, newest).lock

    def _first_lock(self) -> str:
        """flock where it works, else the hard-link lock."""
        probe = ClaimsLock(self.layout.lock_file, "flock", self.by)
        try:
            probe.acquire(5.0)
            probe.release()
        except LockUnsupportedError:
            return "strict"
        finally:
            probe.close()
        return "flock"

    def _strict_is_in_force(self) -> bool:
        # The hard-link lock's own file is the sign: whoever finds that kernel locks do not lock creates it.
        return os.path.exists(self.layout.strict_lock_file)

    def _switch_to_strict(self) -> None:
        if self._wanted_lock not in ("auto", "strict"):
            raise LockError(
                f"{self.layout.config_file}: lock: {self._wanted_lock}, but another dispatcher has found that these "
                "locks do not exclude on this filesystem and uses strict. Set `lock: auto` or `lock: strict`"
            )
        if self._lock is not None:
            self._lock.close()
        self._lock = ClaimsLock(self.layout.lock_file, "strict", self.by)

    def use_strict_lock(self) -> None:
        """Go over to the hard-link lock and make all others follow at their next transaction."""
        self._switch_to_strict()
        lock = self._claims_lock()
        lock.acquire(60.0)
        lock.release()

    def _peek_head(self) -> Head | None:
        """The head without the lock: old or none, never wrong (it carries a checksum)."""
        data = files.read_fresh(self.layout.lock_file)
        return decode_head(data) if data else None

    def _make_directories(self) -> None:
        layout = self.layout
        if not os.path.isdir(layout.root):
            raise StorageError(f"{layout.root}: no such directory; `dispatcher init DIR` makes a workspace")
        with files.shared_umask(layout.root), files.storing("creating the run state in", layout.run_state):
            if not os.path.isdir(layout.run_state):
                os.makedirs(layout.run_state, exist_ok=True)
                # New files and folders get the workspace's group, whoever makes them.
                os.chmod(layout.run_state, os.stat(layout.run_state).st_mode | 0o2000)
            for directory in (layout.journal_dir, layout.pods_dir, layout.jobs_dir):
                os.makedirs(directory, exist_ok=True)


def _owner(layout: Layout) -> str:
    """The user who owns the status file: as near as one can come to who edited it."""
    import pwd

    try:
        uid = os.stat(layout.status_file).st_uid
        return pwd.getpwuid(uid).pw_name
    except (OSError, KeyError):
        return "unknown"
