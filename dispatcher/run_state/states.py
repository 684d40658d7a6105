"""Records, their states, and the table of possible state changes. Pure: no files, no clocks.

A record is the fold of its journal lines: `set` of each line replaces the fields that it names, and `null` removes
one. Fields that people add by hand (`"note": "check LR"`), and those of a newer version, are kept in `extra`.

To add a state, add it to State and give it a row in STATES; a new event of its own goes to events.Event. What docs say
of it is in docs/architecture.md and, if people may ask for it, in docs/status-file.md. Everything else follows from the
row. (That one can be asked for with a command of its own is a command like any other: CONTRIBUTING.md.)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from dispatcher.errors import FormatError, TransitionError, nearest
from dispatcher.run_state.events import Event


class State(enum.StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    SUBMITTED = "submitted"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"
    HELD = "held"


class Phase(enum.Enum):
    WAITING = enum.auto()
    IN_FLIGHT = enum.auto()
    ENDED = enum.auto()


class StateStyle(msgspec.Struct, frozen=True):
    """How the page shows a state: a path within 10 x 10, so that none is told by its colour alone, and its colours.

    `light` and `dark` are its colours in the two schemes; `icon` names the state whose colours its icon has, where its
    own are too pale for lines.
    """

    path: str
    light: str
    dark: str
    icon: str = ""
    is_filled: bool = False


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is so of the jobs in a state.

    `next` are the states that may follow. `event` is recorded when a person sets a job that does not run to this state;
    None: only dispatchers do. A person may ask for it also while the job runs, unless the event is MARKED. `selects`
    are the states of the jobs that a glob or a lone --where means when a person asks for it: `requeue '*'` must not run
    finished jobs again or stop running ones. `waits` is why such a job waits for a person; `blocks`, with the job's id,
    why those that need it do. `colour` is that in a terminal.
    """

    phase: Phase
    next: frozenset[State]
    event: Event | None = None
    selects: frozenset[State] = frozenset()
    waits: str = ""
    blocks: str = ""
    colour: str = ""
    look: StateStyle


def _any_of(*states: State) -> frozenset[State]:
    return frozenset(states)


# The table of states, in the order in which people see them.
STATES: Mapping[State, StateRow] = {
    State.DONE: StateRow(
        phase=Phase.ENDED,
        next=_any_of(State.QUEUED, State.FAILED),
        event=Event.MARKED,
        selects=_any_of(State.QUEUED, State.HELD, State.FAILED, State.ABANDONED),
        colour="green",
        look=StateStyle("M2 5.5 4.3 8 8.5 2.5", "#2f7f53", "#4fae7b"),
    ),
    State.RUNNING: StateRow(
        phase=Phase.IN_FLIGHT,
        next=_any_of(State.DONE, State.FAILED, State.QUEUED, State.ABANDONED, State.HELD),
        colour="cyan",
        look=StateStyle("M3 1.5v7l6-3.5z", "#2b66cf", "#6b9ef5", is_filled=True),
    ),
    # A local slot runs a job at once; other outlets submit it first, and their queue may end what never ran.
    State.SUBMITTED: StateRow(
        phase=Phase.IN_FLIGHT,
        next=_any_of(State.RUNNING, State.DONE, State.FAILED, State.QUEUED, State.ABANDONED, State.HELD),
        colour="cyan",
        look=StateStyle("M3 1.5v7l6-3.5z", "#6f9be6", "#41649f", icon="running"),
    ),
    State.QUEUED: StateRow(
        phase=Phase.WAITING,
        # A job that does not run may be set to done or failed by hand.
        next=_any_of(State.SUBMITTED, State.RUNNING, State.HELD, State.ABANDONED, State.DONE, State.FAILED),
        event=Event.REQUEUED,
        selects=_any_of(State.FAILED, State.ABANDONED, State.HELD),
        look=StateStyle("M5 1.8a3.2 3.2 0 1 0 .01 0z", "#b4bac2", "#565e68", icon="abandoned"),
    ),
    State.HELD: StateRow(
        phase=Phase.WAITING,
        next=_any_of(State.QUEUED, State.ABANDONED, State.DONE, State.FAILED),
        event=Event.HELD,
        selects=_any_of(State.QUEUED),
        waits="held: not claimed until it is requeued",
        blocks="{} is held",
        colour="yellow",
        look=StateStyle("M3.2 2v6M6.8 2v6", "#b0761a", "#d49a3c"),
    ),
    State.FAILED: StateRow(
        phase=Phase.ENDED,
        next=_any_of(State.QUEUED, State.HELD, State.ABANDONED, State.DONE),
        event=Event.MARKED,
        selects=_any_of(State.QUEUED, State.HELD, State.ABANDONED),
        blocks="{} failed",
        colour="red",
        look=StateStyle("M2 2l6 6M8 2l-6 6", "#c0352c", "#ec6a61"),
    ),
    State.ABANDONED: StateRow(
        phase=Phase.ENDED,
        next=_any_of(State.QUEUED, State.HELD, State.DONE, State.FAILED),
        event=Event.ABANDONED,
        selects=_any_of(State.QUEUED, State.HELD, State.FAILED, State.SUBMITTED, State.RUNNING),
        blocks="{} was abandoned",
        colour="yellow",
        look=StateStyle("M1.5 5h7", "#848b94", "#7b838d"),
    ),
}


def _of(phase: Phase) -> tuple[State, ...]:
    return tuple(state for state, row in STATES.items() if row.phase is phase)


WAITING = _of(Phase.WAITING)
IN_FLIGHT = frozenset(_of(Phase.IN_FLIGHT))
ENDED = frozenset(_of(Phase.ENDED))
# The states that a person may ask for at any time.
REQUESTABLE = tuple(state for state, row in STATES.items() if row.event not in (None, Event.MARKED))
# Those of them in which no dispatcher claims the job.
PUT_ASIDE = frozenset(REQUESTABLE) - {State.QUEUED}
# The states to which a person may set a job that does not run, and the reason that its record has then.
MARKABLE = tuple(state for state, row in STATES.items() if row.event is Event.MARKED)
BY_HAND = "set by hand"
# The reason of a job that is done although its last attempt was stopped: an adaptive sweep had seen enough of it.
PRUNED = "pruned"
# Words of the commands (cancel, pause) that people also write as a state.
_MEANT = {"cancel": "abandoned", "canceled": "abandoned", "cancelled": "abandoned", "paused": "held"}


def check_transition(job_id: str, old: State, new: State) -> None:
    """Raise TransitionError unless the table has `old` -> `new`."""
    if new not in STATES[old].next:
        allowed = ", ".join(sorted(STATES[old].next))
        raise TransitionError(
            f"{job_id}: {old} -> {new} is not a possible change; from {old} a job can go to: {allowed}"
        )


def parse_state(word: object) -> State:
    """The state named `word`. Raises ValueError with the nearest valid word."""
    try:
        return State(str(word))
    except ValueError:
        meant = _MEANT.get(str(word))
        near = f" (did you mean {meant!r}?)" if meant else nearest(str(word), [state.value for state in State])
        raise ValueError(f"unknown state {word!r}{near}") from None


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is known about a job now. The order of the fields is that of a status line.

    Times are ISO 8601 in UTC as text: one that cannot be parsed is kept as it is and shown as unknown.
    `gpu` is one index or several. `attempt` counts from 1; 0 before the first. `rev` is the journal's `seq` of the last
    change. `retries` counts automatic retries after failures, and `requeues` automatic requeues (preempted, lost),
    both since a person last queued the job. `retry_at` is the earliest time of the next claim. `backoff` is how often
    the pause before it has doubled since an attempt last got further. `furthest_checkpoint` and `furthest_step` are the
    greatest steps that attempts have saved and reported; they are never compared with each other. `checkpoint_at` is
    where the last checkpoint is kept (OutletOffer.place); only in workspaces with configured hosts. `error` is the last
    error line of the last failed attempt, or what the result of a done one lacks. `external`: a process that no
    dispatcher started runs or ran the job.
    `desired` is the state that a person asked for while the job runs; `done` is asked for by an adaptive sweep.
    `force`: the attempt is killed for it at once. It goes with `desired`.
    `priority` and `time_limit` (with a unit) replace those of the manifest's entry. `code` is the shipped code that the
    attempt runs: its commit, `+dirty` if the files differ from it, and the digest of the archive, both shortened; None
    where an attempt runs in the workspace itself. `snapshot` is the copy of the code that attempts run until a person
    queues the job again, named as in `code`.
    `ad_hoc`: the job's entry is its last line in matrix/submitted.jsonl; a line there counts for such a job only.
    `has_result`: attempt `attempt` is done and left a result, which was on the disk when that was recorded.
    `user` owned the job when attempt `attempt` was claimed.
    `ran_with` is the digest of the entry with which attempt `attempt` was claimed: it shows, without opening a file,
    whether the manifest has changed since.
    `inputs_at` is the journal's `seq` at which the job began with the jobs that it needs as they were, of one that
    needs others; an attempt that resumes from a checkpoint keeps it. `redone` is the `seq` at which an attempt of a
    job that had been done before was done again, 0 until that happens; None for a job that never left `done`.
    """

    state: State
    pod: str | None = None
    pid: int | None = None
    gpu: int | tuple[int, ...] | None = None
    started_at: str | None = None
    attempt: int = 0
    host: str | None = None
    finished_at: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    error: str | None = None
    outlet: str | None = None
    handle: str | None = None
    code: str | None = None
    external: bool = False
    priority: int | None = None
    desired: State | None = None
    retries: int = 0
    requeues: int = 0
    retry_at: str | None = None
    snapshot: str | None = None
    ran_with: str | None = None
    inputs_at: int | None = None
    redone: int | None = None
    backoff: int = 0
    furthest_step: float | None = None
    furthest_checkpoint: float | None = None
    checkpoint_at: str | None = None
    user: str | None = None
    ad_hoc: bool = False
    time_limit: str | None = None
    has_result: bool = False
    force: bool = False
    rev: int = 0
    extra: Mapping[str, Any] = {}

    def priority_or(self, stated: int) -> int:
        """The priority that a person has set, else that of the manifest's entry."""
        return stated if self.priority is None else self.priority

    @property
    def gpu_indices(self) -> tuple[int, ...]:
        """The GPUs of the attempt; none for a CPU slot."""
        return self.gpu if isinstance(self.gpu, tuple) else () if self.gpu is None else (self.gpu,)

    @property
    def result_lacks(self) -> str:
        """What of the result of a job that is done its script has not left where its method says; empty: nothing.

        That is the only error of such a job, unless a person or another program has set it to done.
        """
        is_ours = self.state is State.DONE and self.ran_with is not None and self.reason != BY_HAND
        return (self.error or "") if is_ours else ""

    def fields(self) -> dict[str, Any]:
        """The record as a flat dict of JSON values in the order of a status line: without defaults, `rev` last."""
        values: dict[str, Any] = {}
        for name, default in DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
                values[name] = value
        if self.extra:
            values.update(self.extra)
        values["rev"] = self.rev
        return values


# All fields but `extra` and `rev`, and the value of each where a line does not have it.
DEFAULTS: dict[str, Any] = {
    field.name: None if field.required else field.default
    for field in msgspec.structs.fields(Record)
    if field.name not in ("extra", "rev")
}
FIELD_NAMES = frozenset(DEFAULTS) | {"rev"}


def make_record(fields: Mapping[str, Any]) -> Record:
    """A record from a flat dict: unknown names go to `extra`, None counts as absent.

    Raises FormatError, which names the field, for a value of a wrong type.
    """
    if FIELD_NAMES.issuperset(fields) and None not in fields.values():
        return _converted(fields)
    known = {name: value for name, value in fields.items() if name in FIELD_NAMES and value is not None}
    extra = {name: value for name, value in fields.items() if name not in FIELD_NAMES and value is not None}
    return _converted({**known, "extra": extra} if extra else known)


def _converted(fields: Mapping[str, Any]) -> Record:
    try:
        record = msgspec.convert(fields, Record)
    except msgspec.ValidationError as error:
        raise FormatError(f"{error}") from None
    return msgspec.structs.replace(record, force=False) if record.force and record.desired is None else record


def apply(record: Record | None, changes: Mapping[str, Any], rev: int) -> Record:
    """The record after one journal line: `changes` replaces the fields it names, None removes one."""
    if record is None or not changes.keys() <= DEFAULTS.keys():
        return make_record({**(record.fields() if record is not None else {}), **changes, "rev": rev})
    fields = msgspec.structs.asdict(record)
    for name, value in changes.items():
        fields[name] = DEFAULTS[name] if value is None else value
    fields["rev"] = rev
    return _converted(fields)
