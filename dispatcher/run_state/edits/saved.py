"""Applying what people did to the status file: notice that it was saved, compare it, record the edits."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

from dispatcher.base import files
from dispatcher.base.file_identity import Identity, identity_of, is_settled
from dispatcher.base.messages import first_texts
from dispatcher.errors import FormatError, StatusFileError
from dispatcher.run_state import journal
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.edits.changes import Changes, Recorded, changes
from dispatcher.run_state.events import Event, HandEdit
from dispatcher.run_state.facets.refusals import Refusal
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.locked_journal import LockedJournal
from dispatcher.run_state.states import Record
from dispatcher.run_state.transaction import Transaction
from dispatcher.workspace import Layout


def settled(identity: Identity, *, network: bool) -> Identity:
    """The identity of this content; one that no file ever has while another save could still get the same."""
    inode, size, mtime_ns = identity
    return identity if is_settled(mtime_ns, network=network) else (inode, size, 0)


class HandEdits:
    """The status file as the place where people make changes.

    `problem` says what is wrong with the file when it cannot be read. `examined` is the file that was read last.
    """

    def __init__(
        self,
        locked: LockedJournal,
        wall_clock: Callable[[], float],
        manifest_jobs: Callable[[], Container[str]] | None,
    ) -> None:
        self.layout = locked.layout
        self.problem: str | None = None
        self.examined: Identity | None = None
        self._locked = locked
        self._is_network = locked.replica.network
        self._wall_clock = wall_clock
        self._manifest_jobs = manifest_jobs

    def identity(self, *, names_are_fresh: bool = False) -> Identity | None:
        """Inode, size and mtime of the status file as it is now; None without one.

        `names_are_fresh`: the transaction has opened the folder of the run state already.
        """
        path = self.layout.status_file
        with files.storing("looking at", path):
            if not self._is_network:
                found = files.stat(path)
            else:
                is_beside = names_are_fresh and path.parent == self.layout.run_state
                found = files.stat_fresh(path, names_are_fresh=is_beside)
        return None if found is None else identity_of(found)

    def take_in(self, tx: Transaction) -> bool:
        """Under the lock: record what people did to the file; whether it is to be written anew.

        What cannot be read is left alone until its author has corrected it.
        """
        expected, identity = self._locked.projection, self.identity(names_are_fresh=True)
        if identity is None or identity == expected:
            self.problem = None
            return identity is None and expected is not None
        if self.problem is not None and identity == self.examined:
            return False
        self.examined = None
        settled_identity = settled(identity, network=self._is_network)
        data = self._read()
        if data is not None:
            self.record(tx, self.find(data, projected=self._locked.projected), data)
        if self.problem is not None:
            self.examined = settled_identity
            return False
        self.examined = identity
        self._locked.accept_projection(settled_identity, projected=0)
        return True

    def record(self, tx: Transaction, found: Changes, data: bytes) -> None:
        """Record what people did to the status file `data`; what could not be used is kept word for word."""
        who = f"hand edit ({_owner(self.layout)})"
        for edit in found.edits:
            applied = None if edit.applied is None else HandEdit(edit=edit.applied)
            tx.change(edit.job, edit.event, edit.change, extra=edit.extra, data=applied, by=who)
        for refusal in found.refusals:
            note = self._locked.fold.refusals.unrecorded(refusal)
            if note is not None:
                self._reject(refusal, data)
                tx.note(note, job=refusal.job or None, by=who)

    def read(self, projected: int) -> Changes:
        """What the status file changes; see `find`."""
        data = self._read()
        return Changes() if data is None else self.find(data, projected=projected)

    def find(self, data: bytes, *, projected: int = 0, is_whole: bool = True) -> Changes:
        """What `data`, a saved status file, changes; `problem` says what of it cannot be read.

        `is_whole`: a job without a line in it has lost its line.
        """
        name = str(self.layout.status_file)
        try:
            lines = status_file.parse_lines(data, name)
        except StatusFileError as error:
            self.problem = f"{error}. {_GOING_ON}"
            return Changes()
        self.problem = f"{_broken_text(name, lines.broken)}. {_SUSPENDED}" if lines.broken else None
        fold = self._locked.fold
        old = _OldVersions(self.layout, fold, lines.jobs)
        recorded = Recorded(
            records=fold.records,
            born=fold.records.born,
            seq=fold.seq,
            base_of=old.version,
            applied=fold.applied_edits,
            projected=projected,
            in_manifest=self._asked_once(),
        )
        # A file that is cut off, or still being written, has lost no line.
        return changes(recorded, lines.jobs, is_whole=is_whole and not lines.broken)

    def _asked_once(self) -> Callable[[str], bool]:
        """Whether a manifest has a job. Manifests are read once for all lines of a file, and only if one is unknown."""
        if self._manifest_jobs is None:
            return lambda _: True
        jobs = functools.cache(self._manifest_jobs)
        return lambda job: job in jobs()

    def _read(self) -> bytes | None:
        """The status file; None, and `problem` says why, when it may not be read."""
        try:
            data = files.read_fresh(self.layout.status_file)
        except OSError as error:
            # An editor has saved it with permissions of its own: no reason to stop.
            self.problem = f"{files.storage_error(error, 'reading', self.layout.status_file)}. {_GOING_ON}"
            return None
        # It was removed at this moment: the next transaction finds that it is missing.
        return b"{}" if data is None else data

    def _reject(self, refusal: Refusal, saved: bytes) -> None:
        directory = self.layout.rejected_dir
        # A job's name in a hand-written line may hold anything, slashes too.
        name = re.sub(r"[^\w.-]", "_", refusal.job)[:80] or "file"
        at = journal.now_text(self._wall_clock()).replace(":", "")
        with files.storing("keeping a refused edit in", directory):
            os.makedirs(directory, exist_ok=True)
            data = f"{refusal.line}\n".encode() if refusal.line else saved
            files.write_unique(directory / f"{at}-{name}.json", data)


_GOING_ON: Final = (
    "The dispatchers continue from the journal and leave the file alone: correct it, or let "
    "`dispatcher status --restore` replace it and keep this one under run_state/rejected/"
)
_SUSPENDED: Final = (
    "All other lines count. The dispatchers leave the file alone and do not update it: correct it, or let "
    "`dispatcher status --restore` replace it and keep this one under run_state/rejected/"
)


def _broken_text(name: str, broken: Sequence[status_file.BrokenLine]) -> str:
    parts = [
        f"line {line.number}: {line.why}" + (f" (the record of {line.job!r} stays as it is)" if line.job else "")
        for line in broken
    ]
    return f"{name}: {first_texts(parts)}"


class _OldVersions:
    """Records as they were when a copy of the status file was made.

    Versions that are not remembered any more are read from the journal, once for all lines of a file.
    """

    def __init__(self, layout: Layout, fold: Fold, lines: Mapping[str, Mapping[str, Any]]) -> None:
        self._layout = layout
        self._fold = fold
        self._lines = lines
        self._read: dict[tuple[str, int], Record] | None = None

    def version(self, job: str, rev: int) -> Record | None:
        found = self._fold.version(job, rev)
        if found is not None:
            return found
        if self._read is None:
            self._read = self._read_history()
        return self._read.get((job, rev))

    def _read_history(self) -> dict[tuple[str, int], Record]:
        revs = {job: rev for job, line in self._lines.items() if isinstance(rev := line.get("rev"), int)}
        wanted = {job: rev for job, rev in revs.items() if self._fold.version(job, rev) is None}
        newest = max(wanted.values(), default=0)
        older = Fold()
        found = {}
        with files.storing("reading the journal", self._layout.journal_dir):
            for line in journal.history(self._layout, wanted.keys()):
                if line.seq > newest and line.event is not Event.SNAPSHOT:
                    break
                with contextlib.suppress(FormatError):
                    # A line of an old generation that cannot be read leaves a gap: that version stays unknown.
                    older.extend((line,))
                record = older.records.get(line.job or "")
                if record is not None and record.rev == wanted[line.job or ""]:
                    found[(line.job or "", record.rev)] = record
        return found


def _owner(layout: Layout) -> str:
    """The owner of the status file, the best guess of who edited it."""
    try:
        uid = os.stat(layout.status_file).st_uid
        return pwd.getpwuid(uid).pw_name
    except (OSError, KeyError):
        return "unknown"
