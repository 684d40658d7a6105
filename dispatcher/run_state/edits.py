"""What a person changed in a line of the status file, as opposed to what is merely old. Pure.

Every difference between a line and the record of the same `rev` is an edit. A line that equals the record of an older
`rev` is stale and changes nothing. So a script that rewrites the whole file with one line changed changes one job,
whatever has happened meanwhile.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.values import BadValueError, parse_duration, shown
from dispatcher.errors import FormatError
from dispatcher.run_state import external
from dispatcher.run_state.change import NOTHING, Change, Decision, split
from dispatcher.run_state.events import AppliedEdit, Event
from dispatcher.run_state.journal import normalized_time
from dispatcher.run_state.states import (
    BY_HAND,
    DEFAULTS,
    FIELD_NAMES,
    IN_FLIGHT,
    MARKABLE,
    REQUESTABLE,
    STATES,
    WAITING,
    Record,
    State,
    make_record,
    parse_state,
)
from dispatcher.run_state.status_file import TIMES, whole_second

# A person may set these; the other known fields belong to the dispatchers.
_EDITABLE = frozenset({"state", "priority", "time_limit", "desired", "retry_at"})
# The fields that a requeued job begins without.
FRESH_START: Final = Change(
    pod=None, pid=None, gpu=None, started_at=None, host=None, finished_at=None, exit_code=None, reason=None, error=None,
    outlet=None, handle=None, code=None, external=None, desired=None, retries=None, requeues=None, retry_at=None,
    snapshot=None, backoff=None, furthest_step=None, furthest_checkpoint=None, has_result=None,
)  # fmt: skip
_IS_HELD: Final = "the job is held until the line is corrected"


class Fault(enum.Enum):
    """Why a line is refused, as far as many such lines of one file become one refusal."""

    OTHER = enum.auto()
    TOO_OLD = enum.auto()
    UNKNOWN_JOB = enum.auto()


class Outcome(msgspec.Struct, frozen=True):
    """What becomes of one line: a change of the record (`event`, `change`, `extra`), or a refusal (`why`).

    `applied` is what the person changed. The journal keeps it, because the file may be read again before it is
    replaced.
    """

    job: str
    event: Event
    change: Change = Change()
    # Fields that people have added to the line.
    extra: Mapping[str, Any] = {}
    why: str = ""
    line: str = ""
    fault: Fault = Fault.OTHER
    applied: AppliedEdit | None = None

    def fields(self) -> dict[str, Any]:
        """All fields that change, also those that people have added."""
        return {**self.change.fields(), **self.extra}


class MergeContext(msgspec.Struct, frozen=True):
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


def adopt(
    lines: Mapping[str, Mapping[str, Any]], others: Mapping[str, Any] | None = None, *, is_foreign: bool = False
) -> list[Outcome]:
    """The records of a status file that comes without a journal.

    A line that makes no record is refused, and its job is held, because it may be done or running and must not be
    claimed. `others` are jobs that hold no object. `is_foreign`: no dispatcher of this workspace has written the file.
    """
    outcomes = []
    for job, line in lines.items():
        fields = {key: value for key, value in line.items() if key != "rev"}
        why = _no_record(fields)
        if is_foreign or "rev" not in line:
            fields = external.adopted_fields(line)
        change, extra = (Change(state=State.HELD), {}) if why else split(fields)
        outcomes.append(Outcome(job, Event.ADOPTED, change, extra))
        if why:
            outcomes.append(_refuse(job, line, f"{why}; {_IS_HELD}"))
    for job, value in (others or {}).items():
        why = f"{shown(value)} is no object with a state; {_IS_HELD}"
        outcomes += [Outcome(job, Event.ADOPTED, Change(state=State.HELD)), _refuse(job, value, why)]
    return outcomes


def merge_line(job: str, line: Mapping[str, Any], context: MergeContext) -> Outcome | None:
    """What one line of a saved status file changes; None for nothing."""
    record = context.records.get(job)
    rev = line.get("rev", 0 if record is None else record.rev)
    if type(rev) is not int or rev < 0:
        return _refuse(job, line, f"rev {rev!r} is not a line number; leave rev as it is")
    if record is None:
        return _merge_unknown(job, line, rev, context)
    if rev > context.seq and record.state not in IN_FLIGHT:
        # The journal has lost its end (a cut file): the status file is newer.
        return _adopt_line(job, line)
    base = record if rev >= record.rev else context.base_of(job, rev)
    if base is not None:
        return _merge_known(job, line, base, record, context)
    if not any(_difference(line, record)):
        return None
    why = f"the line is older than the journal (rev {rev}): edit it as it is now"
    return _refuse(job, line, why, Fault.TOO_OLD)


def _merge_known(
    job: str, line: Mapping[str, Any], base: Record, record: Record, context: MergeContext
) -> Outcome | None:
    """A line of a job whose record was `base` when the line was written."""
    changed, removed = _difference(line, base)
    before = _applied_before(job, line, context)
    changed = {key: value for key, value in changed.items() if key not in before or not _same(value, before[key])}
    removed = {key for key in removed if before.get(key, "") is not None}
    outcome = _decide(job, line, changed, removed, base, record) if changed or removed else None
    if outcome is None or outcome.event is Event.REFUSED:
        return outcome
    fields = {**before, **changed, **dict.fromkeys(removed)}
    return msgspec.structs.replace(outcome, applied=AppliedEdit(line.get("rev", 0), fields))


def _applied_before(job: str, line: Mapping[str, Any], context: MergeContext) -> Mapping[str, Any]:
    """The changes of this line that were applied before.

    The file may be read again before it is replaced (an editor saves it twice, another line cannot be parsed), and the
    same edit must not requeue a job twice. After the file was replaced, a line without `rev` is a new edit.
    """
    applied = context.applied.get(job)
    if applied is None or applied.rev != line.get("rev", 0) or (applied.rev == 0 and applied.seq <= context.projected):
        return {}
    return applied.fields


def _merge_unknown(job: str, line: Mapping[str, Any], rev: int, context: MergeContext) -> Outcome | None:
    """A line of a job that has no record."""
    base = context.base_of(job, rev) if 0 < rev <= context.seq else None
    if base is not None:
        # A copy from before the record was deleted must not bring it back.
        gone = "the record was deleted meanwhile; remove rev from the line to add the job again"
        return _refuse(job, line, gone) if any(_difference(line, base)) else None
    # A line of a later change comes from a journal that has lost its end.
    if rev <= context.seq and not context.in_manifest(job):
        return _refuse(job, line, "unknown job", Fault.UNKNOWN_JOB)
    state = line.get("state")
    if external.is_claim(line):
        return _adopt_line(job, external.adopted_fields(line))
    if isinstance(state, str) and state in IN_FLIGHT:
        return _refuse(job, line, f"a job cannot be set to {state!r} by hand; write one of: {', '.join(REQUESTABLE)}")
    return _adopt_line(job, line)


def _adopt_line(job: str, line: Mapping[str, Any]) -> Outcome:
    fields = {key: value for key, value in line.items() if key != "rev"}
    why = _no_record(fields)
    return _refuse(job, line, why) if why else Outcome(job, Event.ADOPTED, *split(fields), line=_text(job, line))


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
) -> Outcome | None:
    decision = external.decide(line, changed, base, record)
    if decision is not None:
        return _external_outcome(job, line, changed, decision, record)
    for key, value in changed.items():
        if key in FIELD_NAMES and key not in _EDITABLE and value is not None:
            return _refuse(job, line, f"{key} was changed to {value!r}; only dispatchers may change {key}")
    fields: dict[str, Any] = {key: value for key, value in changed.items() if key not in FIELD_NAMES}
    fields.update(dict.fromkeys(removed))
    why = _set_editable(fields, changed)
    if why:
        return _refuse(job, line, why)
    event = Event.EDITED
    if "state" in changed or changed.get("desired") is not None:
        try:
            state = parse_state(changed.get("state", changed.get("desired")))
        except ValueError as error:
            return _refuse(job, line, str(error))
        decision = decide_state(state, base, record)
        if decision.refused:
            return _refuse(job, line, decision.refused)
        event = decision.event or event
        fields = {**decision.change.fields(), **fields}
    return _outcome(job, line, event, fields, record)


def _external_outcome(
    job: str, line: Mapping[str, Any], changed: Mapping[str, Any], decision: Decision, record: Record
) -> Outcome | None:
    """The outcome of a line about an external run, with the fields that people have added to it."""
    if decision.refused:
        return _refuse(job, line, decision.refused)
    plain = {key: value for key, value in changed.items() if key not in FIELD_NAMES}
    return _outcome(job, line, decision.event or Event.EDITED, {**decision.change.fields(), **plain}, record)


def _outcome(job: str, line: Mapping[str, Any], event: Event, fields: dict[str, Any], record: Record) -> Outcome | None:
    """The outcome, without what the record says already: a file that is read twice changes a record once."""
    known = record.fields()
    fields = {key: value for key, value in fields.items() if not _same_field(key, value, known.get(key))}
    return Outcome(job, event, *split(fields), line=_text(job, line)) if fields else None


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


def decide_state(state: State, base: Record, record: Record) -> Decision:
    """What becomes of `record`, which was `base` when a person asked for `state`."""
    current = record.state
    if state in MARKABLE:
        return _decide_mark(state, base, record)
    if state not in REQUESTABLE:
        words = ", ".join((*REQUESTABLE, *MARKABLE))
        return Decision(refused=f"{state} cannot be set by hand (the job is {current}); write one of: {words}")
    if current in IN_FLIGHT:
        return _decide_in_flight(state, base, record)
    if current is state:
        # A person who queues a job that waits for its retry does not want to wait.
        waits = state is State.QUEUED and record.retry_at is not None
        return decide_at_rest(state) if waits else NOTHING
    return _decide_change_at_rest(state, base, current)


def _decide_change_at_rest(state: State, base: Record, current: State) -> Decision:
    if state is State.QUEUED:
        if current is State.DONE and base.state is not State.DONE:
            return Decision(refused="it has become done meanwhile; set it to queued again to run it once more")
        return decide_at_rest(state)
    if current is State.DONE:
        return Decision(refused=f"it is done; only a job that is not done can be {state}")
    return decide_at_rest(state)


def _decide_mark(state: State, base: Record, record: Record) -> Decision:
    """A person sets a job to done or failed, whatever the dispatchers have seen."""
    current = record.state
    if current in IN_FLIGHT and not record.external:
        who = f"pod {record.pod} on {record.host or 'an unknown host'}, pid {record.pid or 'unknown'}"
        return Decision(refused=f"it is {current} ({who}): set it to abandoned to stop it, then to {state}")
    if current is state:
        return NOTHING
    if current not in IN_FLIGHT and base.state is not current and (base.state in IN_FLIGHT or current is State.DONE):
        return Decision(
            refused=f"it has become {current} in the meantime; to set it to {state} anyway, do so once more"
        )
    change = Change(state=state, reason=BY_HAND, exit_code=None, error=None, desired=None, retry_at=None)
    return Decision(Event.MARKED, change)


def decide_at_rest(state: State) -> Decision:
    """What becomes of a job that does not run when a person asks for `state`, one of REQUESTABLE."""
    change = FRESH_START if state is State.QUEUED else Change(retry_at=None, desired=None)
    return Decision(STATES[state].event, change | Change(state=state))


def _decide_in_flight(state: State, base: Record, record: Record) -> Decision:
    same_attempt = base.state in IN_FLIGHT and base.attempt == record.attempt
    if not same_attempt:
        if state is State.QUEUED:
            # The new start that was asked for has happened.
            return NOTHING
        if state in WAITING:
            return Decision(refused=f"it was started meanwhile; set it to {state} again to stop it")
    if record.desired is state:
        return NOTHING
    return Decision(Event.REQUESTED, Change(desired=state))


def _no_record(fields: Mapping[str, Any]) -> str:
    """Why these fields make no record; empty when they make one."""
    if "state" not in fields:
        return f"state is missing; write one of: {', '.join((*REQUESTABLE, *MARKABLE))}"
    try:
        parse_state(fields["state"])
        make_record(fields)
    except (ValueError, FormatError) as error:
        return str(error)
    return ""


def _refuse(job: str, line: object, why: str, fault: Fault = Fault.OTHER) -> Outcome:
    return Outcome(job, Event.REFUSED, why=why, line=_text(job, line), fault=fault)


def _text(job: str, line: object) -> str:
    return f"{json.dumps(job, ensure_ascii=False)}: {json.dumps(line, ensure_ascii=False)}"
