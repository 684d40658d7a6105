"""What a person changed in the status file, told apart from what is merely old. Pure.

Every difference between a line and the record of the same `rev` is an edit. A line whose `rev` is older than the record
and which equals the record of that `rev` is simply stale: the newer record stands. So a script that rewrites the whole
file with one line changed changes one line, whatever happened meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dispatcher.errors import FormatError, StatusFileError
from dispatcher.run_state.states import FIELD_NAMES, IN_FLIGHT, WISHES, Record, State, make_record, parse_state

# A person may set these; the other known fields belong to the dispatchers.
_EDITABLE = frozenset({"state", "priority", "want", "retry_at"})
# What a new start of an entry begins without.
FRESH_START: dict[str, Any] = dict.fromkeys(
    (
        "pod", "pid", "gpu", "started_at", "host", "finished_at", "exit_code", "reason", "error", "outlet", "handle",
        "want", "retries", "returns", "retry_at",
    )
)  # fmt: skip
_MANY = 20


class Outcome(msgspec.Struct, frozen=True):
    """What becomes of one line: a change of the record (`event`, `fields`), or a refusal (`why`)."""

    job: str
    event: str
    fields: Mapping[str, Any] = {}
    why: str = ""
    line: str = ""


def merge(
    lines: Mapping[str, Mapping[str, Any]],
    records: Mapping[str, Record],
    born: Mapping[str, int],
    seq: int,
    base_of: Callable[[str, int], Record | None],
) -> list[Outcome]:
    """What a status file that somebody saved changes.

    `born` is the `seq` at which a job got its record, `seq` that of the newest change, and `base_of(job, rev)` the
    record as it was at `rev` (None when nobody knows any more).
    """
    outcomes: list[Outcome] = []
    newest = 0
    for job, line in lines.items():
        rev = line.get("rev")
        if isinstance(rev, int) and not isinstance(rev, bool):
            newest = max(newest, rev)
        outcome = _merge_line(job, line, records.get(job), seq, base_of)
        if outcome is not None:
            outcomes.append(outcome)
    # A copy that is older than a job cannot have its line; a newer copy without it has lost it.
    removed = [job for job in records if job not in lines and born.get(job, 0) <= newest]
    if len(removed) > _MANY or (removed and len(removed) == len(records)):
        why = f"{len(removed)} lines were removed ({', '.join(removed[:3])}, ...); records are never lost: {_FORGET}"
        outcomes.append(Outcome("", "refused", why=why))
    else:
        outcomes += [Outcome(job, "refused", why=f"the line was removed; records are never lost: {_FORGET}") for job in removed]
    return outcomes


_FORGET = "`dispatcher forget JOB` removes one, `abandoned` stops it from being claimed"


def adopt(lines: Mapping[str, Mapping[str, Any]], name: str) -> list[Outcome]:
    """The records of a status file that comes without a journal.

    Raises StatusFileError for a line that makes no record: guessing here could run an entry twice.
    """
    outcomes = []
    for job, line in lines.items():
        fields = {key: value for key, value in line.items() if key != "rev"}
        why = _no_record(fields)
        if why:
            raise StatusFileError(f"{name}: {job!r}: {why}; nothing was adopted, correct the line and start again")
        outcomes.append(Outcome(job, "adopted", fields))
    return outcomes


def _merge_line(
    job: str,
    line: Mapping[str, Any],
    record: Record | None,
    seq: int,
    base_of: Callable[[str, int], Record | None],
) -> Outcome | None:
    if record is None:
        return _new_line(job, line)
    rev = line.get("rev", record.rev)
    if not isinstance(rev, int) or isinstance(rev, bool):
        return _refuse(job, line, f"rev {rev!r} is no number; leave rev as it is")
    if rev > seq and record.state not in IN_FLIGHT:
        # The journal has lost its end (a cut file): the status file knows more than it.
        fields = {key: value for key, value in line.items() if key != "rev"}
        return _refuse(job, line, why) if (why := _no_record(fields)) else Outcome(job, "adopted", fields)
    base = record if rev >= record.rev else base_of(job, rev)
    if base is None:
        return _refuse(job, line, f"nobody knows any more what the entry was at rev {rev}; edit the line as it is now")
    changed, removed = _difference(line, base)
    if not changed and not removed:
        return None
    return _judge(job, line, changed, removed, base, record)


def _new_line(job: str, line: Mapping[str, Any]) -> Outcome:
    fields = {key: value for key, value in line.items() if key != "rev"}
    why = _no_record(fields)
    if not why and fields.get("state") not in (State.QUEUED, State.HELD, State.ABANDONED, State.DONE, State.FAILED):
        why = f"an entry cannot be made {fields.get('state')!r} by hand; write queued, held or abandoned"
    return _refuse(job, line, why) if why else Outcome(job, "adopted", fields)


def _difference(line: Mapping[str, Any], base: Record) -> tuple[dict[str, Any], set[str]]:
    """The fields that the line has otherwise than `base`, and those of people that it lacks."""
    old = base.fields()
    changed = {}
    for key, value in line.items():
        if key == "rev":
            continue
        before = old.get(key)
        if key == "priority" and before is None:
            before = 0
        if isinstance(before, tuple):
            before = list(before)
        if value != before or isinstance(value, bool) != isinstance(before, bool):
            changed[key] = value
    # Fields of ours that a person leaves out come back by themselves: `{"state": "queued"}` is a fair way to requeue.
    removed = {key for key in old if key not in line and (key not in FIELD_NAMES or key in ("priority", "want"))}
    return changed, removed


def _judge(
    job: str, line: Mapping[str, Any], changed: dict[str, Any], removed: set[str], base: Record, record: Record
) -> Outcome | None:
    for key, value in changed.items():
        if key in FIELD_NAMES and key not in _EDITABLE and value is not None:
            return _refuse(job, line, f"{key} was changed to {value!r}; only the dispatchers write {key}")
    fields: dict[str, Any] = {key: value for key, value in changed.items() if key not in FIELD_NAMES}
    fields.update(dict.fromkeys(key for key in removed))
    if "priority" in changed:
        if not isinstance(changed["priority"], int) or isinstance(changed["priority"], bool):
            return _refuse(job, line, f"priority {changed['priority']!r} is no whole number")
        fields["priority"] = changed["priority"]
    if "retry_at" in changed and changed["retry_at"] is None:
        fields["retry_at"] = None
    event = "edited"
    wish = changed.get("state", changed.get("want"))
    if wish is not None:
        try:
            state = parse_state(wish)
        except ValueError as error:
            return _refuse(job, line, str(error))
        answer = wished(state, base, record)
        if isinstance(answer, str):
            return _refuse(job, line, answer)
        event, extra = answer if answer[0] else (event, {})
        fields = {**extra, **fields}
    if not fields:
        return None
    return Outcome(job, event, fields, line=_text(job, line))


def wished(state: State, base: Record, record: Record) -> tuple[str, dict[str, Any]] | str:
    """What a person's `state` does to `record`, which was `base` when they looked.

    An event and the fields that it changes, `("", {})` when there is nothing left to do, or why it is refused.
    """
    if state not in WISHES:
        choices = ", ".join(WISHES)
        return f"{state} cannot be set by hand (the entry is {record.state}); one of: {choices}"
    current = record.state
    if current in IN_FLIGHT:
        return _wished_in_flight(state, base, record)
    if current == state:
        return "", {}
    if state is State.QUEUED:
        if current is State.DONE and base.state is not State.DONE:
            return "it has been done meanwhile; set it to queued again to run it once more"
        return "requeued", {"state": State.QUEUED, **FRESH_START}
    if current is State.DONE or (current is State.QUEUED and state not in WISHES):
        return f"it is done; {state} is only for entries that are not"
    return ("held" if state is State.HELD else "abandoned"), {"state": state, "retry_at": None}


def _wished_in_flight(state: State, base: Record, record: Record) -> tuple[str, dict[str, Any]] | str:
    same_attempt = base.state in IN_FLIGHT and base.attempt == record.attempt
    if not same_attempt:
        if state is State.QUEUED:
            # Whoever wanted a new start has got one.
            return "", {}
        if state is State.HELD:
            return "it has been started meanwhile; set it to held again to stop it"
    if record.want is state:
        return "", {}
    return "requested", {"want": state}


def _no_record(fields: Mapping[str, Any]) -> str:
    """Why these fields make no record; empty when they do."""
    if "state" not in fields:
        return f"there is no state; write one of: {', '.join(WISHES)}"
    try:
        parse_state(fields["state"])
        make_record(fields)
    except (ValueError, FormatError) as error:
        return str(error)
    return ""


def _refuse(job: str, line: Mapping[str, Any], why: str) -> Outcome:
    return Outcome(job, "refused", why=why, line=_text(job, line))


def _text(job: str, line: Mapping[str, Any]) -> str:
    return f"{json.dumps(job, ensure_ascii=False)}: {json.dumps(line, ensure_ascii=False)}"


