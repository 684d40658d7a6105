"""Changes under the lock: applied in memory at once, and written together at the end or undone together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from dispatcher.base import files
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Data, Event, Note
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.journal import Line
from dispatcher.run_state.prepared import PreparedClaims
from dispatcher.run_state.states import DEFAULTS, FIELD_NAMES, Record, State, check_transition, parse_state
from dispatcher.workspace import AttemptPaths, Layout, attempt_numbers

# How attempts succeed; those that no dispatcher started are adopted.
_MADE: Final = frozenset({Event.DONE, Event.PRUNED, Event.ADOPTED})


class Transaction:
    """What `Store.transaction()` yields: the records with its changes so far, and the ways to change them.

    `at` is the time of all its lines. That a job leaves `done`, and that an attempt of it is done again, is kept in
    its record (`redone`).
    """

    def __init__(self, fold: Fold, layout: Layout, by: str, at: str, prepared: PreparedClaims) -> None:
        self.at = at
        self.lines: list[Line] = []
        self._fold = fold
        self._layout = layout
        self._by = by
        self._prepared = prepared
        self._directories: list[AttemptPaths] = []
        self._at_end: list[Callable[[bool], object]] = []
        fold.begin()

    @property
    def seq(self) -> int:
        """The number of the last line, with those of this transaction."""
        return self._fold.seq

    def record(self, job: str) -> Record | None:
        """The record as it is now, with the changes of this transaction."""
        return self._fold.records.get(job)

    def change(
        self,
        job: str,
        event: Event,
        change: Change,
        *,
        extra: Mapping[str, Any] | None = None,
        data: Data | None = None,
        by: str | None = None,
    ) -> None:
        """Change a record; `extra` are fields that people have added (None removes one).

        Raises TransitionError for a state change that the table does not have.
        """
        _check_vocabulary(event, change, extra)
        fold = self._fold
        old = fold.records.get(job)
        fields = {**change.fields(), **extra} if extra else change.fields()
        if old is not None and "state" in fields and event is not Event.ADOPTED:
            new = parse_state(fields["state"])
            if new is not old.state:
                check_transition(job, old.state, new)
        fields |= _redone(old, event, fields, fold.seq + 1)
        # A field that is not there need not be removed.
        fields = {name: value for name, value in fields.items() if value is not None or _has(old, name)}
        carried = None if data is None else data.as_json()
        self._add(Line(seq=fold.seq + 1, at=self.at, by=by or self._by, event=event, job=job, set=fields, data=carried))

    def delete(self, job: str) -> None:
        """Remove the record of a job that is not in flight for good; its history stays in the journal.

        Its last attempt is marked as superseded: one that no record knows would else be taken for one whose claim the
        journal has lost.
        """
        record = self.record(job)
        if record is not None and record.attempt > 0:
            paths = self._layout.attempt(job, record.attempt)
            with files.storing("marking as superseded", paths.directory), contextlib.suppress(FileNotFoundError):
                files.write_new(paths.superseded, f"the record was deleted by {self._by}\n".encode())
        self.change(job, Event.DELETED, Change())

    def note(self, note: Note, *, job: str | None = None, by: str | None = None) -> None:
        """Record what changes no record: a pause, a refused edit."""
        seq = self._fold.seq + 1
        self._add(Line(seq=seq, at=self.at, by=by or self._by, event=note.event, job=job, data=note.as_json()))

    def make_attempt(self, job: str, attempt: int) -> AttemptPaths | None:
        """Create the directory of a new attempt: the second fence of a claim. None when it or a later one exists.

        Nothing is listed for the first attempt of a job, as most are.
        """
        paths = self._layout.attempt(job, attempt)
        directory = os.fspath(paths.directory)
        with files.storing("creating the attempt's directory", paths.directory):
            if not _make_attempts_directory(directory, is_first=attempt == 1 and self._prepared.is_new(job)):
                return None
            self._directories.append(paths)
            self._prepared.write_claimant(paths.claimant)
        return paths

    def when_over(self, call: Callable[[bool], object]) -> None:
        """Have `call(undone)` called when the transaction has ended, still under the lock; its OSError is ignored."""
        self._at_end.append(call)

    def end(self, *, undone: bool) -> None:
        """The transaction is over, and has or has not happened."""
        if not undone:
            self._fold.settle()
        calls, self._at_end = self._at_end, []
        for call in calls:
            with contextlib.suppress(OSError):
                call(undone)

    def undo(self, *, keep_directories: bool = False) -> None:
        """Undo all changes in memory, and remove the directories that were made.

        `keep_directories`: the lines may be in the journal in spite of the error, and then what was made for them
        stays: claims need their directories, queued jobs their entries.
        """
        self._fold.undo()
        self.end(undone=not keep_directories)
        for paths in () if keep_directories else self._directories:
            with contextlib.suppress(OSError):
                os.unlink(paths.claimant)
            with contextlib.suppress(OSError):
                os.rmdir(paths.directory)

    def _add(self, line: Line) -> None:
        self._fold.extend((line,))
        self.lines.append(line)


def _redone(old: Record | None, event: Event, fields: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """What the line `seq` changes of `Record.redone`. A job that is merely marked as done was not made again."""
    if old is None:
        return {}
    if old.redone is None:
        return {"redone": 0} if old.state is State.DONE and fields.get("state", State.DONE) != State.DONE else {}
    return {"redone": seq} if event in _MADE and fields.get("state") == State.DONE else {}


def _make_attempts_directory(directory: str, *, is_first: bool) -> bool:
    """Create the directory of an attempt, and that of its job if need be; False when it or a later one exists.

    `is_first`: there is no other one.
    """
    folder, name = os.path.split(directory)
    try:
        os.mkdir(directory)
    except FileExistsError:
        return False
    except FileNotFoundError:
        # It is the first one and was not prepared, or old attempts were removed, and the folder of their job with them.
        os.makedirs(folder, exist_ok=True)
        return _make_attempts_directory(directory, is_first=True)
    if is_first or attempt_numbers(os.listdir(folder))[0] <= int(name):
        return True
    os.rmdir(directory)
    return False


def _check_vocabulary(event: Event, change: Change, extra: Mapping[str, Any] | None) -> None:
    """Raise TypeError for what mypy would refuse: a wrong name must never become a field of a person's own."""
    if not isinstance(event, Event) or not event.is_known:
        raise TypeError(f"{event!r} is no event of ours; expected a member of Event")
    if not isinstance(change, Change):
        raise TypeError(f"{change!r} is no Change")
    if extra and not FIELD_NAMES.isdisjoint(extra):
        raise TypeError(f"{', '.join(sorted(FIELD_NAMES & extra.keys()))} in extra: these are fields of Change")


def _has(record: Record | None, field: str) -> bool:
    """Whether a record has a value for `field`: zero and empty are values, a default is not."""
    if record is None:
        return False
    return field in record.extra or (field in DEFAULTS and getattr(record, field) != DEFAULTS[field])
