"""Replacing matrix_status.json: complete at every moment, never by an older version, never losing an edit.

The new file is rendered and synced outside the lock; under the lock two names are exchanged. The replaced file is then
read: a save that arrived at the last moment is applied, and so is one that a program still writes into the old file
afterwards, as long as it has it open; a process that ends before leaves the file to the next one (replaced.py). Where
names cannot be exchanged (NFS), a save by rename in the microseconds between opening the old file and renaming over it
is not seen, and a process that ends cannot leave the file to another.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.file_identity import Identity, identity_of, is_settled
from dispatcher.base.mounts import mount_of
from dispatcher.errors import StatusFileError
from dispatcher.run_state import liveness, replaced
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.edits.changes import Changes
from dispatcher.run_state.edits.editors import Editors, editor_files, waiting_note
from dispatcher.run_state.edits.saved import settled
from dispatcher.run_state.facets.refusals import Refusal
from dispatcher.run_state.replaced import Replaced
from dispatcher.run_state.states import Record
from dispatcher.run_state.store import Store

_TRIES: Final = 5
# The number of replaced files that are watched at once for writers that may not exist: each costs a descriptor.
_WATCHED: Final = 64
# How long a process that ends waits for a save that is half written, and how often one that goes on looks for the rest.
_LAST_WAIT_S: Final = 1.0
_HALF_WRITTEN_S: Final = 0.1
# The greatest share of a process's time that writing the file may take.
_SHARE: Final = 0.05
# How often an open editor is looked for.
_EDITOR_CHECK_S: Final = 0.5
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_NO_EXCHANGE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY})


class Projector:
    """Keeps the status file of one store up to date. `interval_s` bounds how often a large one is written.

    `note` says why the file is not written although it should be; empty when nothing prevents it. `clock` tells for how
    long a replaced file has been watched.
    """

    def __init__(self, store: Store, interval_s: float = 1.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._clock = clock
        self.interval_s = interval_s
        self._next_s = 0.0
        self._retired: list[Replaced] = []
        self._exchange_works = True
        self._folder_ns = 0
        self.note = ""
        self._editors = Editors(store.layout.status_file)

    def due_in_s(self) -> float | None:
        """Seconds until the file should be written; None while it is current."""
        if not self.store.status_is_stale or self.store.problem is not None:
            return None
        return max(0.0, self._next_s - time.monotonic())

    def write_when_due(self) -> None:
        if self.due_in_s() == 0.0:
            self.write()

    def write(self, *, over_editors: bool = False) -> None:
        """Update the status file, unless a person has left it in a state that cannot be read.

        While an editor has it open it is left alone for a while; `over_editors`: it is replaced in any case.
        """
        begun = time.monotonic()
        for _ in range(_TRIES):
            if not self.store.status_is_stale or self._write_once(over_editors=over_editors):
                break
        now = time.monotonic()
        # Small files at once, large ones as often as this share of the time allows.
        pause_s = _EDITOR_CHECK_S if self.note else min(max((now - begun) / _SHARE, 0.02), 30.0)
        self._next_s = now + pause_s

    def write_before_exit(self) -> None:
        """Update the status file for the last time.

        With an editor open it is left to another running dispatcher. Without one, no process would write it later, and
        an editor that asks once is better than a file that is never correct.
        """
        self.write(over_editors=not self._another_pod_lives())

    def _another_pod_lives(self) -> bool:
        store = self.store
        if not editor_files(store.layout.status_file):
            return False
        others = (info for info in liveness.read_pods(store.layout) if info.pod != store.by)
        return any(liveness.pod_is_alive(store.layout, info, liveness.Watch(), math.inf) for info in others)

    def _is_left_to_an_editor(self) -> bool:
        editor = self._editors.to_wait_for()
        self.note = waiting_note(self.store.layout.status_file, editor) if editor else ""
        return bool(editor)

    def check_due_in_s(self) -> float | None:
        """Seconds until `check_replaced` is to be called although nothing else happens; None: whenever it suits."""
        return _HALF_WRITTEN_S if any(retired.is_being_written for retired in self._retired) else None

    def check_replaced(self) -> None:
        """Apply what programs have saved into a file that was replaced while they had it open."""
        self._take_over()
        surplus = len(self._retired) - _WATCHED
        for number, retired in enumerate(list(self._retired)):
            # Asked first: what was saved before the answer is read after it.
            if number < surplus:
                is_final = not retired.has_writer(network=self._is_network)
            else:
                is_final = not retired.may_be_saved(network=self._is_network)
            self._check(retired)
            if is_final:
                self._drop(retired)

    def close(self) -> None:
        """Check the replaced files for the last time; wait for a save that is half written.

        What a program has open for writing even then is left to the next process.
        """
        give_up_s = time.monotonic() + _LAST_WAIT_S
        path = self.store.layout.status_file
        must_stamp = bool(self._retired) and not self._exchange_works
        for retired in list(self._retired):
            self._check(retired)
            while retired.half_written and time.monotonic() < give_up_s:
                time.sleep(0.01)
                self._check(retired)
            if retired.path is not None and retired.may_be_saved(network=self._is_network, in_a_hurry=True):
                self._retired.remove(retired)
                retired.hand_over(path)
            else:
                self._check(retired)
                self._drop(retired)
        if must_stamp:
            with contextlib.suppress(OSError):
                files.stamp(path.parent)

    def recover_leftovers(self) -> None:
        """Apply and remove the files of processes that have ended: see replaced.py, and new files not yet in place."""
        path = self.store.layout.status_file
        self._folder_ns = 0
        self.check_replaced()
        with contextlib.suppress(FileNotFoundError):
            for leftover in files.leftovers(path.parent):
                if replaced.was_in_place(leftover, path):
                    # A file that this user may not read.
                    continue
                if leftover.name.startswith(f".{path.name}."):
                    with contextlib.suppress(FileNotFoundError):
                        self._apply_late(leftover.read_bytes())
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(leftover)

    def _take_over(self) -> None:
        """Watch what other processes have left behind, if the folder was changed since the last time."""
        path = self.store.layout.status_file
        with files.storing("looking for replaced files in", path.parent):
            found = files.stat(path.parent)
            if found is None or found.st_mtime_ns == self._folder_ns:
                return
            self._folder_ns = found.st_mtime_ns if is_settled(found.st_mtime_ns, network=self._is_network) else 0
            taken = (replaced.take_over(left, path, self._clock) for left in replaced.left_behind(path))
            self._retired += filter(None, taken)

    def _write_once(self, *, over_editors: bool) -> bool:
        """Whether the file is current now, or cannot be made so."""
        store = self.store
        path = store.layout.status_file
        self.note = ""
        if not over_editors and self._is_left_to_an_editor():
            return True
        with store.transaction():
            # To take the lock is to read the journal and to apply hand edits.
            if store.problem is not None or self._is_shown(store.seq):
                return True
        seq = store.seq
        with files.shared_umask(store.layout.root), files.storing("writing", path):
            temporary, identity = _write_temporary(path, store.records)
        try:
            # An editor may have opened it while the new one was written.
            if not over_editors and self._is_left_to_an_editor():
                return True
            with store.transaction():
                if store.problem is not None or self._is_shown(seq):
                    return True
                self._replace(path, temporary)
                store.accept_projection(identity, seq)
                store.status_is_stale = store.seq > seq
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        self._editors.was_written()
        self.check_replaced()
        return not store.status_is_stale

    def _is_shown(self, seq: int) -> bool:
        """Under the lock: whether the file shows the records at `seq` already, as another process has written it."""
        store = self.store
        if store.projected < seq or store.status_identity() is None:
            return False
        store.status_is_stale = store.projected < store.seq
        return True

    def write_over(self, kept: Path) -> Path | None:
        """Replace a status file that cannot be read; the path of its copy, None if it was corrected meanwhile."""
        store = self.store
        path = store.layout.status_file
        seq = store.seq
        with files.shared_umask(store.layout.root), files.storing("writing", path):
            temporary, identity = _write_temporary(path, store.records)
        try:
            with store.transaction():
                if store.problem is None:
                    return None
                with files.storing("keeping the unreadable status file in", store.layout.rejected_dir):
                    kept = _keep(path, kept)
                if (retired := self._replace(path, temporary)) is not None:
                    retired.kept = kept.read_bytes()
                store.problem = None
                store.accept_projection(identity, seq)
                store.status_is_stale = store.seq > seq
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        self.write(over_editors=True)
        return kept

    def _replace(self, path: Path, temporary: Path) -> Replaced | None:
        """Put `temporary` in the place of `path`, and watch the file that was there."""
        with files.storing("replacing", path):
            try:
                if (old_name := self._exchanged(temporary, path)) is not None:
                    self._retired.append(replaced.keep(old_name, self._examined(), self._clock))
                    return self._retired[-1]
                old = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                os.rename(temporary, path)
                return None
            self._retired.append(Replaced(old, self._examined(), None, self._clock))
            os.rename(temporary, path)
            return self._retired[-1]

    def _examined(self) -> Identity:
        """The status file as the last transaction has examined it: one that is not so any more is read again."""
        examined = self.store.examined if self.store.problem else self.store.expected_projection
        return examined or (0, 0, 0)

    @functools.cached_property
    def _is_network(self) -> bool:
        """Whether other hosts may have the file open, of which this kernel does not know."""
        return mount_of(self.store.layout.status_file.parent).is_network

    def _exchanged(self, temporary: Path, path: Path) -> Path | None:
        """Exchange the two files: the name that the replaced one has now; None where that cannot be done.

        The name tells what it is from the first moment: when this process is killed, the next one watches it.
        """
        if not self._exchange_works or _renameat2() is None:
            return None
        name = replaced.name_of(path, self._examined())
        os.rename(temporary, name)
        is_done = False
        try:
            is_done = self._exchange(name, path)
        finally:
            if not is_done:
                os.rename(name, temporary)
        return name if is_done else None

    def _exchange(self, one: Path, other: Path) -> bool:
        """Exchange two names in one step; False where the filesystem cannot (NFS)."""
        rename = _renameat2()
        if rename is None:
            return False
        result = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
        if result == 0:
            return True
        code = ctypes.get_errno()
        if code in _NO_EXCHANGE:
            self._exchange_works = False
            return False
        raise OSError(code, os.strerror(code), str(other))

    def _check(self, retired: Replaced) -> None:
        try:
            found = identity_of(os.fstat(retired.fd))
            if found == retired.identity:
                return
            data = files.read_fd(retired.fd)
        except OSError:
            # A file server forgets a removed file that another client had open.
            return
        retired.half_written = data != retired.kept and not self._apply_late(data)
        retired.note_examined(settled(found, network=self._is_network), self.store.layout.status_file)

    def _drop(self, retired: Replaced) -> None:
        """Forget a replaced file; what was saved into it and cannot be parsed is refused, and kept word for word."""
        data = b""
        if retired.half_written:
            with contextlib.suppress(OSError):
                data = files.read_fd(retired.fd)
        if data.strip():
            with self.store.transaction() as tx:
                self.store.apply_edits(tx, Changes(refusals=[Refusal("", "", _unreadable(data))]), data)
        self._retired.remove(retired)
        retired.drop()

    def _apply_late(self, data: bytes) -> bool:
        """Apply the edits in a file that was replaced; False when it cannot be read (yet)."""
        store = self.store
        with store.transaction() as tx:
            before = store.problem
            found = store.find_edits(data)
            is_whole = store.problem is None
            store.problem = before
            if found:
                store.apply_edits(tx, found, data)
        return is_whole


def _unreadable(data: bytes) -> str:
    try:
        status_file.parse(data, "what it wrote")
        fault = ""
    except StatusFileError as error:
        fault = f" ({error})"
    return (
        "a program saved the status file after a dispatcher had replaced it, and ended in the middle, or its text "
        f"cannot be parsed{fault}. Its complete lines count, and all of it is kept in run_state/rejected/: edit "
        "matrix_status.json as it is now"
    )


@functools.cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _write_temporary(path: Path, records: Mapping[str, Record]) -> tuple[Path, Identity]:
    temporary = files.temporary_name(path)
    try:
        with files.creating(temporary) as fd:
            length = 0
            for part in status_file.render_in_parts(records):
                files.write_all(fd, part, length)
                length += len(part)
            # The kernel's file times tick every few milliseconds. With an exact time, a save of the same length within
            # the same tick can still be told apart.
            now_ns = time.time_ns()
            os.utime(fd, ns=(now_ns, now_ns))
            os.fsync(fd)
            return temporary, identity_of(os.fstat(fd))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _keep(path: Path, kept: Path) -> Path:
    """Copy `path` to `kept`, durably before anything else happens to it."""
    os.makedirs(kept.parent, exist_ok=True)
    try:
        data = files.read_plain(path)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, files.NO_PLAIN_FILE):
            raise
        # What cannot be read can only be moved: then, and only then, readers find no file for a moment.
        os.rename(path, kept)
        return kept
    return files.write_unique(kept, data)


def restore(store: Store) -> Path | None:
    """Replace a status file that cannot be read; where that one is kept, None when all of it can be read.

    Readers find the one file or the other at every moment.
    """
    path = store.layout.status_file
    with store.transaction() as tx:
        if store.problem is None:
            return None
        at = tx.at.replace(":", "")
    kept = store.layout.rejected_dir / f"{at}-{path.name}"
    projector = Projector(store)
    try:
        return projector.write_over(kept)
    finally:
        projector.close()
