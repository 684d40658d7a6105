"""What a status file without a journal makes: the records of its lines, and the first lines of a journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.values import shown
from dispatcher.run_state import external
from dispatcher.run_state.change import Change, split
from dispatcher.run_state.edits.changes import Changes, Edit, no_record, refuse
from dispatcher.run_state.edits.status_file import FirstFile
from dispatcher.run_state.events import AppliedEdit, Event, HandEdit, SnapshotData
from dispatcher.run_state.facets.refusals import Refused
from dispatcher.run_state.journal import Line
from dispatcher.run_state.states import State

# Beyond this, a number in `rev` is no line number of ours, and JSON tools no longer keep it exactly.
_LAST_SEQ: Final = 2**53
_IS_HELD: Final = "the job is held until the line is corrected"


def adopt(
    lines: Mapping[str, Mapping[str, Any]], others: Mapping[str, Any] | None = None, *, is_foreign: bool = False
) -> Changes:
    """The records of a status file that comes without a journal.

    A line that makes no record is refused, and its job is held, because it may be done or running and must not be
    claimed. `others` are jobs that hold no object. `is_foreign`: no dispatcher of this workspace has written the file.
    """
    edits, refusals = [], []
    for job, line in lines.items():
        fields = {key: value for key, value in line.items() if key != "rev"}
        why = no_record(fields)
        if is_foreign or "rev" not in line:
            fields = external.adopted_fields(line)
        change, extra = (Change(state=State.HELD), {}) if why else split(fields)
        edits.append(Edit(job, Event.ADOPTED, change, extra))
        if why:
            refusals.append(refuse(job, line, f"{why}; {_IS_HELD}"))
    for job, value in (others or {}).items():
        edits.append(Edit(job, Event.ADOPTED, Change(state=State.HELD)))
        refusals.append(refuse(job, value, f"{shown(value)} is no object with a state; {_IS_HELD}"))
    return Changes(edits, refusals)


class FirstLines(msgspec.Struct, frozen=True):
    """`known` are the records as of `base_seq`, `new` the changes after it."""

    base_seq: int
    known: list[Line]
    new: list[Line]


def first_lines(found: FirstFile, *, at: str, by: str, is_foreign: bool) -> FirstLines:
    """What the lines of a status file become. `is_foreign`: no dispatcher of this workspace has written it. Pure."""
    lines = found.jobs
    # A line of ours keeps its number, by which old copies of the file are judged; one of the lab's gets one.
    revs = {job: line["rev"] for job, line in lines.items() if type(line.get("rev")) is int}
    revs = {job: rev for job, rev in revs.items() if 0 < rev < _LAST_SEQ}
    base = max(revs.values(), default=0)
    known: list[Line] = []
    new: list[Line] = []
    adopted = adopt(lines, found.others, is_foreign=is_foreign)
    for edit in adopted.edits:
        job, fields = edit.job, edit.fields()
        if job in revs:
            fields["rev"] = revs[job]
            born = SnapshotData(born=revs[job]).as_json()
            known.append(Line(seq=base, at=at, by=by, event=Event.SNAPSHOT, job=job, set=fields, data=born))
        else:
            # A line without a number is read again before the file is replaced, and is no edit then.
            read = None if is_foreign else HandEdit(edit=AppliedEdit(0, lines[job])).as_json()
            seq = base + len(new) + 1
            new.append(Line(seq=seq, at=at, by=by, event=Event.ADOPTED, job=job, set=fields, data=read))
    for one in adopted.refusals:
        refused, seq = Refused(why=one.why, line=one.line), base + len(new) + 1
        new.append(Line(seq=seq, at=at, by=by, event=refused.event, job=one.job, data=refused.as_json()))
    return FirstLines(base, known, new)
