"""The fold of journal lines: the records, and the facets beside them. Pure: the same lines give the same fold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from dispatcher.run_state.events import AppliedEdit, Event, HandEdit, SnapshotData
from dispatcher.run_state.facets.facet import Facet
from dispatcher.run_state.facets.table import BY_EVENT, NAMES, Facets
from dispatcher.run_state.journal import Line
from dispatcher.run_state.records import Draft, Drafts, Packed, Records, unpack
from dispatcher.run_state.states import Record, State, apply, make_record

# Old versions of records kept in memory, to compare hand edits of a copy that is a few changes old with.
_REMEMBERED: Final = 20_000
# Read for every line; in Python 3.11 looking up a member of an enum costs several times a global name.
_DELETED: Final = Event.DELETED
_SNAPSHOT: Final = Event.SNAPSHOT


class _Before(msgspec.Struct):
    """What was so before some lines: of the records and facets that they have changed."""

    seq: int
    lock_kind: str | None
    records: dict[str, tuple[Packed | None, AppliedEdit | None]] = {}
    facets: dict[str, Facet] = {}


class Fold(Facets):
    """Everything that the journal says after line `seq`.

    `applied_edits` are the hand edits of the current lines of the status file; `touched` are the jobs whose records
    have changed since `drain_touched`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seq = 0
        self.records = Records()
        self.applied_edits: dict[str, AppliedEdit] = {}
        self.lock_kind: str | None = None
        self.touched: set[str] = set()
        # Whether all of them have changed: a million jobs are collected only for those who ask.
        self.all_touched = False
        self._versions: OrderedDict[tuple[str, int], Packed] = OrderedDict()
        self._before: _Before | None = None
        # Kept for those who ask again and again, and counted only for them.
        self._counts: dict[State, int] | None = None

    def extend(self, lines: Iterable[Line]) -> None:
        """Add lines that follow `seq`."""
        for line in lines:
            if self._before is not None:
                self._keep(line)
            if line.job is not None and (line.set or line.event is _DELETED):
                self._fold_record(line)
                self._remember_edit(line)
            if line.event in BY_EVENT:
                self._fold_event(line)
            self.seq = line.seq

    def extend_in_bulk(self, lines: Iterable[Line]) -> None:
        """As `extend`, for many lines: each record is built once, and old versions are not remembered."""
        drafts = Drafts()
        for line in lines:
            job = line.job
            if job is not None and (line.set or line.event is _DELETED):
                if line.event is _DELETED:
                    drafts.remove(job)
                    self._forget(job)
                else:
                    draft = drafts.get(job)
                    if draft is None:
                        draft = self._draft(job, line)
                        drafts.put(job, draft)
                    draft.fields.update(line.set)
                    if line.event is not _SNAPSHOT:
                        draft.fields["rev"] = line.seq
                    if line.data is not None:
                        self._remember_edit(line)
            if line.event in BY_EVENT:
                self._fold_event(line)
            self.seq = line.seq
        for job, draft in drafts.drain():
            self.records.put(job, make_record(draft.fields), draft.born)
            self._counts = None
            if not self.all_touched:
                self.touched.add(job)

    def _draft(self, job: str, line: Line) -> Draft:
        """The record of `job` as it is before `line`."""
        old = self.records.get(job)
        return Draft(_birth(line), {}) if old is None else Draft(self.records.born(job) or 0, old.fields())

    def count(self, *states: State) -> int:
        """How many records are in one of these states. After the first call it costs nothing but what has changed."""
        if self._counts is None:
            found = self.records.by_state()
            self._counts = {state: found.count(state) for state in State}
        return sum(self._counts[state] for state in states)

    def _recount(self, old: Record | None, new: Record | None) -> None:
        if self._counts is not None:
            for record, change in ((old, -1), (new, 1)):
                if record is not None:
                    self._counts[record.state] += change

    def version(self, job: str, rev: int) -> Record | None:
        """The record of `job` as it was at `rev`; None when it is not remembered any more."""
        current = self.records.get(job)
        if current is not None and current.rev == rev:
            return current
        packed = self._versions.get((job, rev))
        return None if packed is None else unpack(packed)

    def begin(self) -> None:
        """Remember from now on what `undo` needs, until `settle`."""
        self._before = _Before(self.seq, self.lock_kind)

    def settle(self) -> None:
        """What was folded since `begin` stays."""
        self._before = None

    def undo(self) -> None:
        """Undo all lines since `begin`, which were never written."""
        before = self._before
        assert before is not None
        self._before = None
        for job, (packed, edit) in before.records.items():
            self._restore(job, packed, edit)
        for name, facet in before.facets.items():
            setattr(self, name, facet)
        self.seq, self.lock_kind = before.seq, before.lock_kind

    def _restore(self, job: str, packed: Packed | None, edit: AppliedEdit | None) -> None:
        current, record = self.records.get(job), None if packed is None else unpack(packed)
        if current is not None and (record is None or current.rev != record.rev):
            # The next line gets this number, and may be of another job.
            self._versions.pop((job, current.rev), None)
        self.records.put_packed(job, packed)
        self._recount(current, record)
        self.applied_edits.pop(job, None)
        if edit is not None:
            self.applied_edits[job] = edit
        self.touched.add(job)

    def _keep(self, line: Line) -> None:
        """Remember what the line may change, for `undo`."""
        before, job = self._before, line.job
        assert before is not None
        if job is not None and job not in before.records:
            before.records[job] = self.records.packed_of(job), self.applied_edits.get(job)
        for name in BY_EVENT.get(line.event, ()):
            if name not in before.facets:
                before.facets[name] = self.facet(name).copy()

    def forget_touched(self) -> None:
        """As `drain_touched`, for who looks at all records."""
        self.touched, self.all_touched = set(), False

    def drain_touched(self) -> set[str]:
        """The jobs whose records changed since the last call."""
        touched, self.touched = self.touched, set()
        if self.all_touched:
            touched.update(self.records)
            self.all_touched = False
        return touched

    def _fold_record(self, line: Line) -> None:
        job = line.job
        assert job is not None
        if line.event is _DELETED:
            self._forget(job)
            return
        old = self.records.get(job)
        born = _birth(line) if old is None else self.records.born(job) or 0
        record = apply(old, line.set, line.set["rev"] if line.event is _SNAPSHOT else line.seq)
        self._recount(old, record)
        self.touched.add(job)
        self._versions[(job, record.rev)] = self.records.put(job, record, born)
        if len(self._versions) > _REMEMBERED:
            self._versions.popitem(last=False)

    def _fold_event(self, line: Line) -> None:
        for name in BY_EVENT[line.event]:
            setattr(self, name, self.facet(name).apply(line))

    def _remember_edit(self, line: Line) -> None:
        """Remember what a person wrote into the job's line: the same file may be read again."""
        if line.data is not None and "edit" in line.data:
            edit = line.read(HandEdit).edit
            self.applied_edits[str(line.job)] = edit if edit.seq else msgspec.structs.replace(edit, seq=line.seq)

    def _forget(self, job: str) -> None:
        if self._counts is not None:
            self._recount(self.records.get(job), None)
        self.records.remove(job)
        self.applied_edits.pop(job, None)
        self.touched.add(job)


def _birth(line: Line) -> int:
    """The `seq` at which a job got its record; a snapshot repeats it."""
    return line.read(SnapshotData).born if line.event is _SNAPSHOT else line.seq


def snapshot(fold: Fold, at: str, by: str) -> Iterator[Line]:
    """Lines from which a new fold becomes equal to `fold`; all of them have its `seq`."""
    for job, record in fold.records.items():
        data = SnapshotData(born=fold.records.born(job) or 0, edit=fold.applied_edits.get(job)).as_json()
        yield Line(seq=fold.seq, at=at, by=by, event=Event.SNAPSHOT, job=job, set=record.fields(), data=data)
    for name in NAMES:
        for one in fold.facet(name).lines(fold.records):
            data = one.note.as_json()
            yield Line(seq=fold.seq, at=one.at or at, by=one.by or by, event=one.note.event, job=one.job, data=data)
