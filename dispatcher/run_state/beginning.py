"""The first lines of a journal: the records of a status file that is there already, a lab's own or ours. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dispatcher.run_state import edits
from dispatcher.run_state.events import AppliedEdit, Event, HandEdit, Refused, SnapshotData
from dispatcher.run_state.journal import Line

# Beyond this, a number in `rev` is no line number of ours, and JSON tools no longer keep it exactly.
_LAST_SEQ: Final = 2**53


class Beginning(msgspec.Struct, frozen=True):
    """`known` are the records as of `base_seq`, `new` the changes behind it."""

    base_seq: int
    known: list[Line]
    new: list[Line]


def adopt(lines: Mapping[str, Mapping[str, Any]], *, at: str, by: str, is_foreign: bool) -> Beginning:
    """What a status file's lines become. `is_foreign`: no dispatcher of this workspace has written it."""
    # A line of ours keeps its number, by which old copies of the file are judged; one of the lab's gets one.
    revs = {job: line["rev"] for job, line in lines.items() if type(line.get("rev")) is int}
    revs = {job: rev for job, rev in revs.items() if 0 < rev < _LAST_SEQ}
    base = max(revs.values(), default=0)
    known: list[Line] = []
    new: list[Line] = []
    for outcome in edits.adopt(lines, is_foreign=is_foreign):
        job, fields = outcome.job, outcome.fields()
        seq = base + len(new) + 1
        if outcome.event is Event.REFUSED:
            refusal = Refused(why=outcome.why, line=outcome.line).as_json()
            new.append(Line(seq=seq, at=at, by=by, event=Event.REFUSED, job=job, data=refusal))
        elif job in revs:
            fields["rev"] = revs[job]
            born = SnapshotData(born=revs[job]).as_json()
            known.append(Line(seq=base, at=at, by=by, event=Event.SNAPSHOT, job=job, set=fields, data=born))
        else:
            # A line without a number is looked at again before the file is written anew, and is no edit then.
            read = None if is_foreign else HandEdit(edit=AppliedEdit(0, lines[job])).as_json()
            new.append(Line(seq=seq, at=at, by=by, event=Event.ADOPTED, job=job, set=fields, data=read))
    return Beginning(base, known, new)
