"""What a person has changed in a saved status file, as opposed to what is merely old. Pure.

Every difference between a line and the record of the same `rev` is an edit. A line that equals the record of an older
`rev` is stale and changes nothing. So a script that rewrites the whole file with one line changed changes one job,
whatever has happened meanwhile.

One mistake is one refusal: a renamed job is not two refusals (an unknown job, a missing line), and a copy that is older
than the journal is not ten thousand.
"""

from __future__ import annotations

import difflib
import enum
import heapq
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.values import BadValueError, parse_duration
from dispatcher.errors import FormatError
from dispatcher.run_state import external
from dispatcher.run_state.change import NOTHING, Change, Decision, split
from dispatcher.run_state.edits.status_file import TIMES, whole_second
from dispatcher.run_state.events import AppliedEdit, Event
from dispatcher.run_state.facets.refusals import Refusal
from dispatcher.run_state.journal import normalized_time
from dispatcher.run_state.requests import decide_state
from dispatcher.run_state.states import (
    DEFAULTS,
    FIELD_NAMES,
    IN_FLIGHT,
    MARKABLE,
    REQUESTABLE,
    Record,
    make_record,
    parse_state,
)

# A person may set these; the other known fields belong to the dispatchers.
_EDITABLE = frozenset({"state", "priority", "time_limit", "desired", "retry_at"})
# More refusals for one reason than this are one.
_MANY: Final = 20
# The nearest id is searched among so many that begin and end alike.
_CANDIDATES: Final = 50
_TOO_OLD: Final = "the line is older than the journal (rev {}): edit it as it is now"
_ADD: Final = "add it to the manifest, then a dispatcher queues it and writes its line"
_DELETE: Final = "`dispatcher delete JOB` removes one, `abandoned` stops it from being claimed"


class Fault(enum.Enum):
    """Why a line is refused, where many such lines of one file become one refusal."""

    TOO_OLD = enum.auto()
    UNKNOWN_JOB = enum.auto()


class Edit(msgspec.Struct, frozen=True):
    """What a line changes of its job's record; `extra` are fields that people have added.

    `applied` is what the person changed. The journal keeps it, because the file may be read again before it is
    replaced.
    """

    job: str
    event: Event
    change: Change = Change()
    extra: Mapping[str, Any] = {}
    applied: AppliedEdit | None = None

    def fields(self) -> dict[str, Any]:
        """All fields that change, also those that people have added."""
        return {**self.change.fields(), **self.extra}


class Recorded(msgspec.Struct, frozen=True):
    """What the lines of a status file are compared with.

    `born(job)` is the `seq` at which a job got its record, `seq` that of the newest change, `projected` the one that
    the status file showed when it was written last. `base_of(job, rev)` is the record as it was at `rev`, None when the
    journal does not go back so far. `applied` are the edits of a job's line that were applied before.
    """

    records: Mapping[str, Record]
    born: Callable[[str], int | None]
    seq: int
    base_of: Callable[[str, int], Record | None]
    applied: Mapping[str, AppliedEdit] = {}
    projected: int = 0
    in_manifest: Callable[[str], bool] = lambda _: True


class Changes(msgspec.Struct, frozen=True):
    """What becomes of a saved file: each edit changes the record of its job, and the rest is refused."""

    edits: list[Edit] = []
    refusals: list[Refusal] = []

    def __bool__(self) -> bool:
        return bool(self.edits or self.refusals)

    def __add__(self, other: Changes) -> Changes:
        return Changes(self.edits + other.edits, self.refusals + other.refusals)


def changes(old: Recorded, new: Mapping[str, Mapping[str, Any]], *, is_whole: bool = True) -> Changes:
    """What a saved status file changes. `is_whole`: a job without a line in it has lost its line."""
    found = {job: _compare(job, line, old) for job, line in new.items()}
    edits = [one for one in found.values() if isinstance(one, Edit)]
    refusals = [one for one in found.values() if isinstance(one, Refusal)]
    removed = _removed(new, old) if is_whole else []
    whole = []
    too_old = [job for job, one in found.items() if one is Fault.TOO_OLD]
    if len(too_old) > _MANY:
        whole.append(
            f"{len(too_old)} lines are older than the journal, so it is not known what was changed in them "
            f"({_some(too_old)}): open matrix_status.json as it is now and edit that"
        )
    else:
        refusals += [refuse(job, new[job], _TOO_OLD.format(new[job]["rev"])) for job in too_old]
    unknown = [job for job, one in found.items() if one is Fault.UNKNOWN_JOB]
    if len(unknown) > _MANY:
        whole.append(
            f"{len(unknown)} lines are of unknown jobs ({_some(unknown)}): no manifest has them; "
            "add them to the manifest, then a dispatcher queues them and writes their lines"
        )
    else:
        renamed = [_unknown(job, new[job], removed, old) for job in unknown]
        refusals += renamed
        owners = {one.job for one in renamed}
        removed = [job for job in removed if job not in owners]
    if len(removed) > _MANY or (removed and len(removed) == len(old.records)):
        whole.append(f"{len(removed)} lines were removed ({_some(removed)}); records are never lost: {_DELETE}")
    else:
        why = f"the line was removed; records are never lost: {_DELETE}"
        refusals += [Refusal(job, "", why) for job in removed]
    if whole:
        refusals.append(Refusal("", "", ". ".join(whole)))
    return Changes(edits, refusals)


def _removed(lines: Mapping[str, Mapping[str, Any]], old: Recorded) -> list[str]:
    """The jobs whose lines were removed. A copy that is older than a job cannot have its line."""
    revs = [rev for line in lines.values() if type(rev := line.get("rev")) is int]
    newest = max(revs, default=0)
    return [job for job in old.records if job not in lines and (old.born(job) or 0) <= newest]


def _some(jobs: Sequence[str]) -> str:
    return ", ".join(jobs[:3]) + ", ..."


def _unknown(job: str, line: Mapping[str, Any], removed: Collection[str], old: Recorded) -> Refusal:
    """The refusal of a line whose job is in no manifest: it was renamed if another job has lost its line."""
    rev = line.get("rev", 0)
    owner = next((one for one in removed if _has_had(one, rev, old)), "") or _nearest(job, removed)
    if owner:
        why = (
            f"unknown job {job!r}: the line was that of {owner}, and a job cannot be renamed here. Its record "
            f"stays under {owner}; with a new id in a manifest it is a new job"
        )
        return msgspec.structs.replace(refuse(job, line, why), job=owner)
    near = _nearest(job, old.records)
    meant = f" (did you mean {near!r}?)" if near else ""
    return refuse(job, line, f"unknown job: no manifest has it{meant}; {_ADD}")


def _has_had(job: str, rev: int, old: Recorded) -> bool:
    """Whether `rev` is the number of a change of this job."""
    return old.records[job].rev == rev or (0 < rev <= old.seq and old.base_of(job, rev) is not None)


def _nearest(job: str, ids: Collection[str]) -> str:
    """The id that is most like `job`, empty when none is; compares only those that begin and end alike."""

    def alike(other: str) -> int:
        return _alike(job, other) + _alike(job[::-1], other[::-1])

    candidates = heapq.nlargest(_CANDIDATES, ids, key=alike) if len(ids) > _CANDIDATES else list(ids)
    return next(iter(difflib.get_close_matches(job, candidates, n=1)), "")


def _alike(one: str, other: str) -> int:
    """The length of the common prefix."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _compare(job: str, line: Mapping[str, Any], old: Recorded) -> Edit | Refusal | Fault | None:
    """What one line of a saved status file changes; None for nothing."""
    record = old.records.get(job)
    rev = line.get("rev", 0 if record is None else record.rev)
    if type(rev) is not int or rev < 0:
        return refuse(job, line, f"rev {rev!r} is not a line number; leave rev as it is")
    if record is None:
        return _no_record_yet(job, line, rev, old)
    if rev > old.seq and record.state not in IN_FLIGHT:
        # The journal has lost its end (a cut file): the status file is newer.
        return _adopt(job, line)
    base = record if rev >= record.rev else old.base_of(job, rev)
    if base is not None:
        return _known(job, line, base, record, old)
    return Fault.TOO_OLD if any(_difference(line, record)) else None


def _known(job: str, line: Mapping[str, Any], base: Record, record: Record, old: Recorded) -> Edit | Refusal | None:
    """A line of a job whose record was `base` when the line was written."""
    changed, removed = _difference(line, base)
    before = _applied_before(job, line, old)
    changed = {key: value for key, value in changed.items() if key not in before or not _same(value, before[key])}
    removed = {key for key in removed if before.get(key, "") is not None}
    edit = _decide(job, line, changed, removed, base, record) if changed or removed else None
    if not isinstance(edit, Edit):
        return edit
    fields = {**before, **changed, **dict.fromkeys(removed)}
    return msgspec.structs.replace(edit, applied=AppliedEdit(line.get("rev", 0), fields))


def _applied_before(job: str, line: Mapping[str, Any], old: Recorded) -> Mapping[str, Any]:
    """The changes of this line that were applied before.

    The file may be read again before it is replaced (an editor saves it twice, another line cannot be parsed), and the
    same edit must not requeue a job twice. After the file was replaced, a line without `rev` is a new edit.
    """
    applied = old.applied.get(job)
    if applied is None or applied.rev != line.get("rev", 0) or (applied.rev == 0 and applied.seq <= old.projected):
        return {}
    return applied.fields


def _no_record_yet(job: str, line: Mapping[str, Any], rev: int, old: Recorded) -> Edit | Refusal | Fault | None:
    """A line of a job that has no record."""
    base = old.base_of(job, rev) if 0 < rev <= old.seq else None
    if base is not None:
        # A copy from before the record was deleted must not bring it back.
        gone = "the record was deleted meanwhile; remove rev from the line to add the job again"
        return refuse(job, line, gone) if any(_difference(line, base)) else None
    # A line of a later change comes from a journal that has lost its end.
    if rev <= old.seq and not old.in_manifest(job):
        return Fault.UNKNOWN_JOB
    state = line.get("state")
    if external.is_claim(line):
        return _adopt(job, external.adopted_fields(line))
    if isinstance(state, str) and state in IN_FLIGHT:
        return refuse(job, line, f"a job cannot be set to {state!r} by hand; write one of: {', '.join(REQUESTABLE)}")
    return _adopt(job, line)


def _adopt(job: str, line: Mapping[str, Any]) -> Edit | Refusal:
    fields = {key: value for key, value in line.items() if key != "rev"}
    why = no_record(fields)
    return refuse(job, line, why) if why else Edit(job, Event.ADOPTED, *split(fields))


def _difference(line: Mapping[str, Any], base: Record) -> tuple[dict[str, Any], set[str]]:
    """The fields in which the line differs from `base`, and those that a person has removed from it."""
    old = base.fields()
    changed = {}
    for key, value in line.items():
        if key == "rev":
            continue
        # A default that is written out changes nothing: `"retries": 0`.
        unset = key not in old and key in DEFAULTS and _same(value, DEFAULTS[key])
        if not unset and not _same_field(key, value, old.get(key)):
            changed[key] = value
    # Our own fields may be left out: `{"state": "queued"}` is a valid way to requeue a job.
    removed = {
        key
        for key in old
        if key not in line and (key not in FIELD_NAMES or key in ("priority", "time_limit", "desired"))
    }
    return changed, removed


def _same_field(key: str, one: Any, other: Any) -> bool:
    """Whether values of a field are equal: the status file shows times without the journal's milliseconds."""
    if key in TIMES and isinstance(one, str) and isinstance(other, str):
        return whole_second(one) == whole_second(other)
    return _same(one, other)


def _same(one: Any, other: Any) -> bool:
    """Whether JSON values are equal: `true` is not 1, but 1.0 is (some tools write it so)."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _decide(
    job: str, line: Mapping[str, Any], changed: dict[str, Any], removed: set[str], base: Record, record: Record
) -> Edit | Refusal | None:
    fields: dict[str, Any] = {key: value for key, value in changed.items() if key not in FIELD_NAMES}
    decision = external.decide(line, changed, base, record)
    if decision is not None:
        return _edit(job, line, decision, fields, record)
    for key, value in changed.items():
        if key in FIELD_NAMES and key not in _EDITABLE and value is not None:
            return refuse(job, line, f"{key} was changed to {value!r}; only dispatchers may change {key}")
    fields.update(dict.fromkeys(removed))
    why = _set_editable(fields, changed)
    if why:
        return refuse(job, line, why)
    decision = NOTHING
    if "state" in changed or changed.get("desired") is not None:
        try:
            state = parse_state(changed.get("state", changed.get("desired")))
        except ValueError as error:
            return refuse(job, line, str(error))
        decision = decide_state(state, base, record)
    return _edit(job, line, decision, fields, record)


def _edit(
    job: str, line: Mapping[str, Any], decision: Decision, fields: Mapping[str, Any], record: Record
) -> Edit | Refusal | None:
    """What a decision and the fields beside it change, without what the record says already.

    So a file that is read twice changes a record once.
    """
    if decision.refused:
        return refuse(job, line, decision.refused)
    known, fields = record.fields(), {**decision.change.fields(), **fields}
    fields = {key: value for key, value in fields.items() if not _same_field(key, value, known.get(key))}
    return Edit(job, decision.event or Event.EDITED, *split(fields)) if fields else None


def _set_editable(fields: dict[str, Any], changed: Mapping[str, Any]) -> str:
    """Add the fields that a person may set freely to `fields`; why one cannot be used, empty when all can."""
    for key, kind, expected in (
        ("priority", int, "a whole number"),
        ("time_limit", str, 'a time such as "8h"'),
        ("retry_at", str, "a time or null"),
    ):
        if key not in changed:
            continue
        value = changed[key]
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            return f"{key} {value!r} is not {expected}"
        if key == "time_limit" and value is not None:
            try:
                parse_duration(value)
            except BadValueError as error:
                return f"time_limit {value!r}: {error}"
        if key == "retry_at" and value is not None:
            value = normalized_time(str(value))
            if value is None:
                return (
                    f"retry_at {changed[key]!r} is not a time; write one such as 2026-06-17T22:48:00Z, or null for now"
                )
        fields[key] = value
    if "retry_at" in changed:
        # It is meant as it is, while an automatic one cannot be later than the longest pause.
        fields["backoff"] = None
    if "desired" in changed and changed["desired"] is None:
        fields["desired"] = None
    return ""


def no_record(fields: Mapping[str, Any]) -> str:
    """Why these fields make no record; empty when they make one."""
    if "state" not in fields:
        return f"state is missing; write one of: {', '.join((*REQUESTABLE, *MARKABLE))}"
    try:
        parse_state(fields["state"])
        make_record(fields)
    except (ValueError, FormatError) as error:
        return str(error)
    return ""


def refuse(job: str, line: object, why: str) -> Refusal:
    return Refusal(job, f"{json.dumps(job, ensure_ascii=False)}: {json.dumps(line, ensure_ascii=False)}", why)
