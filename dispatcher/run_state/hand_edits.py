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
from dispatcher.run_state import edits, journal, status_file
from dispatcher.run_state.events import Event, HandEdit, Refused
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.merge import merge
from dispatcher.run_state.replica import Replica
from dispatcher.run_state.states import Record
from dispatcher.run_state.transaction import Transaction
from dispatcher.workspace import Layout

_SHOWN: Final = 2_000


def settled(identity: Identity, *, network: bool) -> Identity:
    """The identity of this content; one that no file ever has while another save could still get the same."""
    inode, size, mtime_ns = identity
    return identity if is_settled(mtime_ns, network=network) else (inode, size, 0)


class HandEdits:
    """The status file as the place where people make changes.

    `problem` says what is wrong with the file when it cannot be read. `examined` is the file that was read last;
    `missing`: there was none.
    """

    def __init__(
        self,
        layout: Layout,
        replica: Replica,
        wall_clock: Callable[[], float],
        manifest_jobs: Callable[[], Container[str]] | None,
    ) -> None:
        self.layout = layout
        self.problem: str | None = None
        self.examined: Identity | None = None
        self.missing = False
        self._replica = replica
        self._wall_clock = wall_clock
        self.manifest_jobs = manifest_jobs

    def identity(self, *, names_are_fresh: bool = False) -> Identity | None:
        """Inode, size and mtime of the status file as it is now; None without one.

        `names_are_fresh`: the transaction has opened the folder of the run state already.
        """
        path = self.layout.status_file
        with files.storing("looking at", path):
            if not self._replica.network:
                found = files.stat(path)
            else:
                is_beside = names_are_fresh and path.parent == self.layout.run_state
                found = files.stat_fresh(path, names_are_fresh=is_beside)
        return None if found is None else identity_of(found)

    def apply_if_saved(self, tx: Transaction, expected: Identity | None, projected: int) -> Identity | None:
        """Under the lock: record what people did, unless the file is `expected`: the projection, showing `projected`.

        The identity to expect from now on; None when there was nothing to record or the file cannot be read.
        """
        identity = self.identity(names_are_fresh=True)
        self.missing = identity is None
        if identity is None or identity == expected:
            self.problem = None
            return None
        if self.problem is not None and identity == self.examined:
            return None
        self.examined = None
        settled_identity = settled(identity, network=self._replica.network)
        data = self._read()
        outcomes = self.find_edits(data, projected=projected) if data is not None else None
        self.record(tx, outcomes or [], data or b"")
        if outcomes is None or self.problem is not None:
            # The file is left alone until its author has corrected what cannot be read.
            self.examined = settled_identity
            return None
        self.examined = identity
        return settled_identity

    def record(self, tx: Transaction, outcomes: list[edits.Outcome], data: bytes) -> None:
        """Record what people did to the status file `data`; what could not be used is kept word for word."""
        who = f"hand edit ({_owner(self.layout)})"
        for outcome in outcomes:
            if outcome.event is not Event.REFUSED:
                edit = None if outcome.applied is None else HandEdit(edit=outcome.applied)
                tx.change(outcome.job, outcome.event, outcome.change, extra=outcome.extra, data=edit, by=who)
                continue
            shown = outcome.line[:_SHOWN]
            known = self._replica.fold.refusals.get(outcome.job)
            if known is None or (known.line, known.why) != (shown, outcome.why):
                self._reject(outcome, data)
                tx.note(Refused(why=outcome.why, line=shown), job=outcome.job or None, by=who)

    def read(self, projected: int) -> list[edits.Outcome] | None:
        """What the status file changes; see `find_edits`."""
        data = self._read()
        return None if data is None else self.find_edits(data, projected=projected)

    def find_edits(self, data: bytes, *, projected: int = 0, is_whole: bool = True) -> list[edits.Outcome] | None:
        """What `data`, a saved status file, changes; `problem` says what of it cannot be read.

        None when nothing of it can. `is_whole`: a job without a line in it has lost its line.
        """
        name = str(self.layout.status_file)
        try:
            lines = status_file.parse_lines(data, name)
        except StatusFileError as error:
            self.problem = f"{error}. {_GOING_ON}"
            return None
        self.problem = f"{_broken_text(name, lines.broken)}. {_SUSPENDED}" if lines.broken else None
        fold = self._replica.fold
        old = _OldVersions(self.layout, fold, lines.jobs)
        context = edits.MergeContext(
            records=fold.records,
            born=fold.records.born,
            seq=fold.seq,
            base_of=old.version,
            applied=fold.applied_edits,
            projected=projected,
            in_manifest=self._asked_once(),
        )
        # A file that is cut off, or still being written, has lost no line.
        return merge(lines.jobs, context, is_whole=is_whole and not lines.broken)

    def _asked_once(self) -> Callable[[str], bool]:
        """Whether a manifest has a job. Manifests are read once for all lines of a file, and only if one is unknown."""
        if self.manifest_jobs is None:
            return lambda _: True
        jobs = functools.cache(self.manifest_jobs)
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

    def _reject(self, outcome: edits.Outcome, saved: bytes) -> None:
        directory = self.layout.rejected_dir
        # A job's name in a hand-written line may hold anything, slashes too.
        name = re.sub(r"[^\w.-]", "_", outcome.job)[:80] or "file"
        at = journal.now_text(self._wall_clock()).replace(":", "")
        with files.storing("keeping a refused edit in", directory):
            os.makedirs(directory, exist_ok=True)
            data = f"{outcome.line}\n".encode() if outcome.line else saved
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
