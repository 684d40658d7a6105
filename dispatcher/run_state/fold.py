"""The fold of journal lines: records, pauses, refused edits, notices. Pure: the same lines give the same fold."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from dispatcher.run_state import notices
from dispatcher.run_state.events import (
    AppliedEdit,
    Blame,
    Event,
    GpuBusy,
    GpuIdle,
    HandEdit,
    Note,
    Paused,
    Refused,
    SnapshotData,
    Streak,
    StreakSoFar,
    Unpaused,
)
from dispatcher.run_state.journal import Line
from dispatcher.run_state.notices import Notices
from dispatcher.run_state.pauses import Pause, begun, evidence_scope
from dispatcher.run_state.records import Draft, Drafts, Packed, Records, unpack
from dispatcher.run_state.states import IN_FLIGHT, Record, State, apply, make_record
from dispatcher.run_state.studies import STUDY_EVENTS, Studies, fold_study, snapshot_studies
from dispatcher.topics import Topic

# How many failed jobs of a method, a GPU or a host are remembered, for the circuit breaker.
_MOST_REMEMBERED: Final = 1_000
# Old versions of records kept in memory, to compare hand edits of a copy that is a few changes old with.
_REMEMBERED: Final = 20_000

# Events that settle a refused edit of the same job.
_SETTLING: Final = frozenset(
    {
        Event.CLEARED, Event.ADOPTED, Event.EDITED, Event.REQUEUED, Event.HELD, Event.ABANDONED, Event.MARKED,
        Event.REQUESTED, Event.DELETED,
    }
)  # fmt: skip
# Events that change a record and nothing else: the bulk of every journal.
_PLAIN: Final = frozenset(
    {Event.QUEUED, Event.CODE_KEPT, Event.CLAIMED, Event.SUBMITTED, Event.STARTED, Event.SNAPSHOT}
)
# Read for every line; in Python 3.11 looking up a member of an enum costs several times a global name.
_DELETED: Final = Event.DELETED
_SNAPSHOT: Final = Event.SNAPSHOT
# What people are told of as it is.
_TOLD: Final = frozenset({Event.FAILED, Event.GPU_IDLE, Event.PAUSED})
# Ends of attempts that count for or against their method, GPU or host.
_ENDINGS: Final = frozenset({Event.DONE, Event.FAILED, Event.RETRIED, Event.AUTO_REQUEUED})


class Refusal(msgspec.Struct, frozen=True):
    """A hand edit that could not be used. `line` is what was written; `job` is empty for the file as a whole."""

    job: str
    line: str
    why: str
    at: str


def signature(error: str | None, reason: str | None, job: str = "", *, keeps_numbers: bool = False) -> str:
    """What the same failure of different jobs has in common: the reason, and the error without ids, numbers, paths."""
    text = error or ""
    if job:
        text = re.sub(rf"(?<![\w-]){re.escape(job)}(?![\w-])", "<job>", text)
    text = re.sub(r"(?:[\w.~-]*/)+[\w.~-]*", "<path>", text)
    if not keeps_numbers:
        text = re.sub(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?", "<n>", text)
    text = re.sub(r"\s+", " ", text).strip()
    return f"{reason or 'unknown'}: {text}"[:300]


class Fold:
    """Everything that the journal says after line `seq`.

    `applied_edits` are the hand edits of the current lines of the status file; `touched` are the jobs whose records
    have changed since `drain_touched`.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.records = Records()
        self.pauses: dict[str, Pause] = {}
        self.refusals: dict[str, Refusal] = {}
        self.streaks: dict[str, Streak] = {}
        # By job; those of attempts that have ended count no more: see `idle`.
        self.gpu_idle: dict[str, GpuIdle] = {}
        self.studies: Studies = {}
        self.notices = Notices()
        self.applied_edits: dict[str, AppliedEdit] = {}
        self.lock_kind: str | None = None
        self.touched: set[str] = set()
        # Whether all of them have changed: a million jobs are collected only for those who ask.
        self.all_touched = False
        self._versions: OrderedDict[tuple[str, int], Packed] = OrderedDict()
        # Kept for those who ask again and again, and counted only for them.
        self._counts: dict[State, int] | None = None

    def extend(self, lines: Iterable[Line]) -> None:
        """Add lines that follow `seq`."""
        for line in lines:
            if line.job is not None and (line.set or line.event is _DELETED):
                self._fold_record(line)
                self._remember_edit(line)
            if line.event not in _PLAIN:
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
            if line.event not in _PLAIN:
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

    def idle(self, job: str) -> GpuIdle | None:
        """Since when the attempt that runs has left its GPUs idle; None when it has not."""
        found, record = self.gpu_idle.get(job), self.records.get(job)
        if found is None or record is None or record.state not in IN_FLIGHT or record.attempt != found.attempt:
            return None
        return found

    def restore(self, job: str, record: Record | None, born: int | None, edit: AppliedEdit | None) -> None:
        """Undo changes of a record whose lines were never written."""
        current = self.records.get(job)
        if current is not None and (record is None or current.rev != record.rev):
            # The next line gets this number, and may be of another job.
            self._versions.pop((job, current.rev), None)
        if record is None:
            self.records.remove(job)
        else:
            self.records.put(job, record, born or 0)
        self._recount(current, record)
        self.applied_edits.pop(job, None)
        if edit is not None:
            self.applied_edits[job] = edit
        self.touched.add(job)

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

    def _fold_event(self, line: Line) -> None:
        event = line.event
        if event in _TOLD and self.notices.targets:
            self._tell_of(line)
        if event in _ENDINGS:
            if line.data:
                self._count_streaks(line, line.read(Blame))
        elif event in _SETTLING:
            self.refusals.pop(line.job or "", None)
        elif event is Event.REFUSED:
            job, refused = line.job or "", line.read(Refused)
            self.refusals[job] = Refusal(job, refused.line, refused.why, line.at)
        elif event is Event.PAUSED:
            paused = line.read(Paused)
            self.pauses[paused.scope] = begun(paused, line.at)
        elif event is Event.UNPAUSED:
            unpaused = line.read(Unpaused)
            scope = unpaused.scope
            ended = self.pauses.pop(scope, None)
            if not unpaused.why:
                # What had failed before a person said so is no reason to pause it again.
                self.streaks.pop(evidence_scope(scope, {} if ended is None else ended.values), None)
            self.notices = notices.withdrawn(self.notices, Topic.METHOD_PAUSED, scope)
        elif event is Event.GPU_IDLE:
            self.gpu_idle[line.job or ""] = line.read(GpuIdle)
        elif event is Event.GPU_BUSY:
            idle = self.gpu_idle.get(line.job or "")
            if idle is not None and idle.attempt <= line.read(GpuBusy).attempt:
                del self.gpu_idle[line.job or ""]
        elif event is Event.STREAK:
            before = line.read(StreakSoFar)
            self.streaks[before.scope] = before.streak
        elif event in STUDY_EVENTS:
            fold_study(self.studies, line)
        elif event in notices.EVENTS:
            self.notices = notices.fold_line(self.notices, line)

    def _tell_of(self, line: Line) -> None:
        if line.event is Event.FAILED:
            error, reason = line.set.get("error"), line.set.get("reason")
            text = ": ".join(filter(None, (str(reason or "unknown"), error)))
            self._tell(Topic.JOB_FAILED, signature(error, reason, line.job or ""), text, line.at, line.job)
        elif line.event is Event.GPU_IDLE:
            text = f"running, its GPUs idle since {line.read(GpuIdle).since}"
            self._tell(Topic.GPU_IDLE, "", text, line.at, line.job)
        elif "@" not in line.by:
            # A person who pauses something knows.
            paused = line.read(Paused)
            self._tell(Topic.METHOD_PAUSED, paused.scope, f"{paused.scope} is paused: {paused.why}", line.at)

    def _tell(self, topic: Topic, cause: str, text: str, at: str, job: str | None = None) -> None:
        if self.notices.wants(topic):
            self.notices = notices.happened(self.notices, topic, cause, text=text, at=at, job=job)

    def _count_streaks(self, line: Line, blame: Blame) -> None:
        """Count the end of an attempt for its method, its GPU and its host, as far as it says something about them."""
        if blame.method and line.event is Event.FAILED:
            self._add_failure(blame.method, line, blame)
        if blame.gpu and line.event is Event.FAILED:
            self._add_failure(blame.gpu, line, blame)
        elif blame.gpu and line.event is Event.DONE:
            self.streaks.pop(blame.gpu, None)
        if blame.host and blame.suspect:
            self._add_failure(blame.host, line, blame)
        elif blame.host:
            self.streaks.pop(blame.host, None)

    def _add_failure(self, scope: str, line: Line, blame: Blame) -> None:
        old, job = self.streaks.get(scope, Streak()), str(line.job)
        before = [pair for pair in zip(old.jobs, old.methods, strict=True) if pair[0] != job]
        jobs, methods = zip(*before[1 - _MOST_REMEMBERED :], (job, blame.method or ""), strict=True)
        self.streaks[scope] = Streak(jobs, methods, str(line.set.get("reason")), line.set.get("error"))


def _birth(line: Line) -> int:
    """The `seq` at which a job got its record; a snapshot repeats it."""
    return line.read(SnapshotData).born if line.event is _SNAPSHOT else line.seq


def snapshot(fold: Fold, at: str, by: str) -> Iterator[Line]:
    """Lines from which a new fold becomes equal to `fold`; all of them have its `seq`."""

    def line(note: Note, when: str = at, job: str | None = None, who: str = by) -> Line:
        return Line(seq=fold.seq, at=when, by=who, event=note.event, job=job, data=note.as_json())

    for job, record in fold.records.items():
        data = SnapshotData(born=fold.records.born(job) or 0, edit=fold.applied_edits.get(job)).as_json()
        yield Line(seq=fold.seq, at=at, by=by, event=Event.SNAPSHOT, job=job, set=record.fields(), data=data)
    for pause in fold.pauses.values():
        paused = Paused(scope=pause.scope, why=pause.why, values=pause.values, until_success=pause.until_success)
        yield line(paused, pause.at)
    for refusal in fold.refusals.values():
        yield line(Refused(why=refusal.why, line=refusal.line), refusal.at, refusal.job or None)
    for scope, streak in fold.streaks.items():
        yield line(StreakSoFar(scope=scope, streak=streak))
    for job in fold.gpu_idle:
        idle = fold.idle(job)
        if idle is not None:
            yield line(idle, job=job)
    yield from snapshot_studies(fold.studies, line)
    # The last one: what the lines above repeat is no news.
    if fold.notices != Notices():
        yield line(fold.notices.snapshot())
