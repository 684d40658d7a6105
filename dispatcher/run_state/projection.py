"""Writing matrix_status.json anew: complete at every moment, never older than what stands there, never over an edit.

The file is rendered and synced outside the lock. Under the lock it takes one look (has somebody saved it meanwhile?)
and one exchange of names. What the exchange brings out is looked at again: a person's save that arrived between look
and exchange is taken in, and so is one that an editor still writes into the old file afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from pathlib import Path
from typing import Final

from dispatcher.run_state import files, status_file
from dispatcher.run_state.store import Identity, Store

_TRIES: Final = 5
# An in-place save goes on in the file that it opened, also after we have replaced it; editors are done in this time.
_LINGER_S: Final = 10.0
# A refresh may cost at most this part of a process's time.
_SHARE: Final = 0.05
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_NO_EXCHANGE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY})


class Projector:
    """Keeps the status file of one store up to date. `interval_s` bounds how often a large one is written."""

    def __init__(self, store: Store, interval_s: float = 1.0) -> None:
        self.store = store
        self.interval_s = interval_s
        self._next_s = 0.0
        self._retired: list[tuple[int, Identity, float]] = []
        self._exchange_works = True

    def due_in_s(self) -> float | None:
        """Seconds until the file should be written; None while it is current."""
        if not self.store.status_is_stale or self.store.problem is not None:
            return None
        return max(0.0, self._next_s - time.monotonic())

    def write_when_due(self) -> None:
        if self.due_in_s() == 0.0:
            self.write()

    def write(self) -> None:
        """Bring the status file up to date, unless a person has left it in a state that cannot be read."""
        begun = time.monotonic()
        for _ in range(_TRIES):
            if not self.store.status_is_stale or self._write_once():
                break
        now = time.monotonic()
        # Small files at once, large ones as often as this share of the time allows.
        self._next_s = now + min(max((now - begun) / _SHARE, 0.02), 30.0)

    def look_at_retired(self) -> None:
        """Take in what somebody has written into a file that was replaced while they had it open."""
        now = time.monotonic()
        kept = []
        for fd, identity, until_s in self._retired:
            found = _identity(fd)
            if found is not None and found != identity:
                self._take_in_late(files.read_fd(fd))
                identity = found
            if now < until_s:
                kept.append((fd, identity, until_s))
            else:
                os.close(fd)
        self._retired = kept

    def close(self) -> None:
        for fd, _, _ in self._retired:
            os.close(fd)
        self._retired = []

    def _write_once(self) -> bool:
        """Whether the file is current now, or cannot be."""
        store = self.store
        path = store.layout.status_file
        with store.transaction():
            # Taking the lock has brought us up to date and has taken in what people did.
            if store.problem is not None:
                return True
        seq = store.seq
        data = status_file.render(store.records)
        with files.shared_umask(store.layout.root), files.storing("writing", path):
            temporary, identity = _write_temporary(path, data)
        try:
            with store.transaction():
                if store.problem is not None or (store.projected >= seq and store.status_identity() is not None):
                    store.status_is_stale = store.projected < store.seq
                    return True
                if store.status_identity() not in (store.expected_projection, None):
                    return False
                displaced = self._replace(path, temporary)
                store.accept_projection(identity, seq)
                store.status_is_stale = store.seq > seq
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        if displaced is not None:
            self._take_in_late(displaced)
        return not store.status_is_stale

    def _replace(self, path: Path, temporary: Path) -> bytes | None:
        """Exchange the names; what a person saved at the last moment, if they did."""
        expected = self.store.expected_projection
        try:
            old = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            old = -1
        with files.storing("replacing", path):
            exchanged = old >= 0 and self._exchange(temporary, path)
            if not exchanged:
                os.rename(temporary, path)
        if old < 0:
            return None
        self._retired.append((old, _identity(old) or (0, 0, 0), time.monotonic() + _LINGER_S))
        if exchanged:
            # Whatever bears the temporary name now is what stood there until this moment.
            fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _identity(fd) != expected and expected is not None:
                    return files.read_fd(fd)
            finally:
                os.close(fd)
        return None

    def _exchange(self, one: Path, other: Path) -> bool:
        """Exchange two names in one step; False where the filesystem cannot (NFS)."""
        if not self._exchange_works:
            return False
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is None:
            self._exchange_works = False
            return False
        result = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
        if result == 0:
            return True
        code = ctypes.get_errno()
        if code in _NO_EXCHANGE:
            self._exchange_works = False
            return False
        raise OSError(code, os.strerror(code), str(other))

    def _take_in_late(self, data: bytes) -> None:
        store = self.store
        with store.transaction() as tx:
            before = store.problem
            outcomes = store.judge(data)
            if outcomes is None:
                # Half a save: either it goes on, and is seen again, or the file that counts is another one by now.
                store.problem = before
                return
            # A file that is not in force any more cannot have lost lines; it can only bring changes.
            store.apply_edits(tx, [o for o in outcomes if o.line])


def _write_temporary(path: Path, data: bytes) -> tuple[Path, Identity]:
    temporary = files.temporary_name(path)
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        files.write_all(fd, data, 0)
        # The kernel's file times tick every few milliseconds: with an exact one, a save of the same length within
        # the same tick is still told apart.
        os.utime(fd, ns=(time.time_ns(), time.time_ns()))
        os.fsync(fd)
        identity = _identity(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    assert identity is not None
    return temporary, identity


def _identity(fd: int) -> Identity | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def restore(store: Store) -> Path | None:
    """Write the status file anew although it cannot be read; where the unreadable one is kept."""
    from dispatcher.run_state import journal

    path = store.layout.status_file
    kept: Path | None = None
    with store.transaction():
        if store.problem is None:
            return None
        name = f"{journal.now_text(time.time()).replace(':', '')}-{path.name}"
        with files.storing("keeping the unreadable status file in", store.layout.rejected_dir):
            os.makedirs(store.layout.rejected_dir, exist_ok=True)
            kept = store.layout.rejected_dir / name
            os.rename(path, kept)
        store.problem = None
        store.accept_projection(None, 0)
        store.status_is_stale = True
    Projector(store).write()
    return kept
