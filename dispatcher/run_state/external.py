"""External runs: jobs that a lab's own script, not a dispatcher, has claimed and runs.

Such a script changes the line of a job to `running` with a pid, and later to `done` or `failed`. That is honoured: the
record is `external`, no dispatcher claims the job, and none watches it. Its process cannot be stopped from here, so
when a script and a dispatcher claim the same job at the same time, the dispatcher gives way.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.host import host_name, is_gone, start_ticks
from dispatcher.base.times import parse_time
from dispatcher.run_state.change import NOTHING, Change, Decision, split
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.pauses import gpu_scope
from dispatcher.run_state.states import ENDED, IN_FLIGHT, MARKABLE, Record, State

# What describes one run of a job, and goes when another begins.
_RUN: Final = Change(
    pod=None, pid=None, gpu=None, started_at=None, host=None, finished_at=None, exit_code=None, reason=None, error=None,
    outlet=None, handle=None, code=None,
)  # fmt: skip
_RUN_FIELDS: Final = _RUN.fields().keys()
_UNCHANGED: Final = Change()
# Nothing here knows what an external run runs with.
_CLEARED: Final = _RUN | Change(external=None, ran_with=None, user=None, snapshot=None, has_result=None)
# A script writes the start time down a moment before or after it starts the process.
_CLOCK_SLACK_S: Final = 60.0


def decide(line: Mapping[str, Any], changed: Mapping[str, Any], base: Record, record: Record) -> Decision | None:
    """What a line about an external run does to `record`, which was `base` before; None when it is no such line."""
    if runs_externally(record):
        return _decide_external(line, changed, base, record)
    begins = "pid" in changed or (base.external and "state" in changed)
    if not _has_pid(line) or not begins or base.state in IN_FLIGHT:
        return None
    state = line.get("state", base.state)
    if state == State.RUNNING:
        return _claim(line, changed, base, record)
    return _claim_and_end(str(state), line, changed, base, record) if state in MARKABLE and "pid" in changed else None


def _decide_external(
    line: Mapping[str, Any], changed: Mapping[str, Any], base: Record, record: Record
) -> Decision | None:
    is_same = runs_externally(base) and base.attempt == record.attempt
    if is_same or line.get("pid") == record.pid:
        return _go_on(line.get("state", base.state), changed)
    if is_claim(line):
        return Decision(refused=f"pod {record.pod}, pid {record.pid}, runs it already; stop the second one")
    return None


def runs_externally(record: Record) -> bool:
    """Whether, according to its record, the job runs and no dispatcher watches it."""
    return record.external and record.state in IN_FLIGHT


def is_claim(line: Mapping[str, Any]) -> bool:
    """Whether a line says that its job runs, and under which pid."""
    return line.get("state") == State.RUNNING and _has_pid(line)


def adopted_fields(line: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line of a file that no dispatcher wrote: jobs that run are external."""
    fields = {key: value for key, value in line.items() if key != "rev"}
    state = fields.get("state")
    return {**fields, "external": True} if isinstance(state, str) and state in IN_FLIGHT else fields


def _go_on(state: object, changed: Mapping[str, Any]) -> Decision | None:
    """The external run has ended, or something about it has changed."""
    if "state" not in changed and _RUN_FIELDS.isdisjoint(changed):
        return None
    if state in MARKABLE or state == State.RUNNING:
        return _adopt(changed, Change(state=State(str(state)), desired=None))
    if state == State.QUEUED and "pid" in changed and changed["pid"] is None:
        # A line without its pid says that nothing runs any more.
        return Decision(Event.REQUEUED, _CLEARED | Change(state=State.QUEUED, desired=None))
    return None


def _claim(line: Mapping[str, Any], changed: Mapping[str, Any], base: Record, record: Record) -> Decision:
    if _is_recorded(line, record):
        return NOTHING
    if record.rev != base.rev and record.state in ENDED:
        return Decision(
            refused=f"it has become {record.state} in the meantime and must not be claimed; if it runs anyway, stop it"
        )
    return _adopt_run(State.RUNNING, line, changed, record)


def _claim_and_end(
    state: str, line: Mapping[str, Any], changed: Mapping[str, Any], base: Record, record: Record
) -> Decision | None:
    """It was claimed and has ended before the file was read."""
    if _is_recorded(line, record):
        return NOTHING
    if record.state in IN_FLIGHT or record.rev != base.rev:
        return None
    return _adopt_run(State(state), line, changed, record)


def _adopt_run(state: State, line: Mapping[str, Any], changed: Mapping[str, Any], record: Record) -> Decision:
    # A number of its own shows a running attempt of ours that it is not the current one any more.
    attempt = record.attempt + 1
    run = Change(
        state=state, pid=line["pid"], desired=None, retry_at=None, attempt=attempt, external=True, inputs_at=None
    )
    return _adopt(changed, run, _CLEARED)


def _adopt(changed: Mapping[str, Any], change: Change, cleared: Change = _UNCHANGED) -> Decision:
    """`cleared`, then what `changed` says about the run, then `change`; refused for a value of a wrong type."""
    try:
        described, _ = split({key: value for key, value in changed.items() if key in _RUN_FIELDS})
    except msgspec.ValidationError as error:
        return Decision(refused=str(error))
    return Decision(Event.ADOPTED, cleared | described | change)


def _has_pid(line: Mapping[str, Any]) -> bool:
    return type(line.get("pid")) is int and line["pid"] > 0


def _is_recorded(line: Mapping[str, Any], record: Record) -> bool:
    return record.external and record.pid == line["pid"] and line.get("started_at") in (None, record.started_at)


# Whether it lives.


class Presence(enum.Enum):
    """What this host knows about the process of an external run."""

    HERE = "lives on this host"
    GONE = "does not live any more"
    NOT_HERE = "is not on this host"
    ELSEWHERE = "is on another host"
    UNKNOWN = "is not known"


def presence(record: Record) -> Presence:
    """Whether the process that the record names lives here. One that started later than the record says is another."""
    if record.pid is None:
        return Presence.UNKNOWN
    if record.host not in (None, host_name()):
        return Presence.ELSEWHERE
    ticks = start_ticks(record.pid)
    gone = Presence.NOT_HERE if record.host is None else Presence.GONE
    if ticks is None:
        # Processes of other users may be hidden.
        return gone if is_gone(record.pid) else Presence.HERE
    import psutil

    recorded = parse_time(record.started_at)
    began = psutil.boot_time() + ticks / os.sysconf("SC_CLK_TCK")
    return gone if recorded is not None and began > recorded + _CLOCK_SLACK_S else Presence.HERE


def external_gpus(records: Iterable[tuple[str, Record]]) -> dict[str, str]:
    """The GPUs of this host that external jobs use, by their scopes (`gpu:HOST:3`), and why no other job may."""
    used: dict[str, str] = {}
    for job, record in records:
        if runs_externally(record) and record.gpu is not None and presence(record) is Presence.HERE:
            why = f"{job} of {record.pod or 'an unknown pod'} runs there, pid {record.pid}, which no dispatcher watches"
            used.update((gpu_scope(host_name(), index), why) for index in record.gpu_indices)
    return used
