"""What the lines of the journal record: every event, and the data that some of them carry beside a record's fields.

A newer version may write events that this one does not know. Such a line still counts: its `set` changes the record,
and `dispatcher history` shows it word for word. What else it means is ignored, and a snapshot does not repeat it. A
change of the format that must not be ignored raises `journal.VERSION`, and older dispatchers refuse the file.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec

_UNKNOWN = "UNKNOWN"


class Event(enum.StrEnum):
    """What happened, in one word. Our own code uses the members only; see `is_known`."""

    # What dispatchers do.
    QUEUED = "queued"  # a job of the manifest got its first record
    CODE_KEPT = "code_kept"  # a copy of the code was taken for the queued job (`snapshot`)
    CLAIMED = "claimed"  # a pod took the job for a slot
    SUBMITTED = "submitted"  # the attempt's outlet has accepted it, and its handle is known
    STARTED = "started"  # the attempt runs, and its pid is known
    DONE = "done"  # the attempt ended with exit status 0
    FAILED = "failed"  # the attempt failed, and the job is not tried again by itself
    RETRIED = "retried"  # the attempt failed, and the job is queued again under its method's retries
    AUTO_REQUEUED = "auto_requeued"  # the attempt was preempted, lost or not started, and the job is queued again
    STOPPED = "stopped"  # the attempt was stopped because a person asked for another state
    PRUNED = "pruned"  # the attempt was stopped because its adaptive sweep had seen enough; the job is done
    PAUSED = "paused"  # claiming within a scope (a method, some of its values, a GPU, a host) was paused
    GPU_IDLE = "gpu_idle"  # all GPUs of the running attempt have been at 0 % for as long as its method lets them
    GPU_BUSY = "gpu_busy"  # it uses one of them again
    POD_STARTED = "pod_started"  # a dispatcher began to claim jobs
    POD_ENDED = "pod_ended"  # a dispatcher ended; of one that was killed, the next one of its name says so
    NOTIFYING = "notifying"  # where notices go from now on: the targets of dispatcher.yaml, and what each is told
    INCIDENT = "incident"  # something began, or is over, that people are told of and no other line says
    NOTICE_CLAIMED = "notice_claimed"  # a process sends a notice to a target, and no other one does
    NOTICE_ENDED = "notice_ended"  # how that went

    # What adaptive sweeps do: see facets/studies.
    STUDY = "study"  # a study began, or goes on with other settings
    STUDY_STOPPED = "study_stopped"  # it gets no further trials
    TRIAL = "trial"  # the job is a trial, and these parameters were suggested for it
    MEASURED = "measured"  # the value of an attempt of a trial
    RUNG = "rung"  # what a trial had reached at a step, and whether it goes on

    # What people do, with a command or in the status file.
    REQUEUED = "requeued"  # the job is queued again
    HELD = "held"  # the job is not claimed until it is queued again
    ABANDONED = "abandoned"  # the job was cancelled
    REQUESTED = "requested"  # the job runs, and its attempt is to be stopped for another state
    MARKED = "marked"  # the job was set to done or failed by hand
    EDITED = "edited"  # the priority, the time limit or a field of a person's own was changed
    DELETED = "deleted"  # the record was removed; its history stays
    UNPAUSED = "unpaused"  # claiming within a scope continues
    CLEARED = "cleared"  # a refused edit was dismissed
    NOTICES_CLEARED = "notices_cleared"  # notices that failed or are doubtful were dismissed

    # What becomes of the status file.
    ADOPTED = "adopted"  # a line of the status file was taken over as it is
    REFUSED = "refused"  # an edit could not be used

    # How a generation of the journal begins and ends.
    SNAPSHOT = "snapshot"  # a record as it was when the generation began
    STREAK = "streak"  # failures that may pause a scope, as they were when the generation began
    NOTICES = "notices"  # what was told, and is still to be told, when the generation began
    CONTINUED = "continued"  # the last line: the next generation is in force

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """An event of a newer version, met in a journal: no member, but it keeps its word."""
        if not isinstance(value, str):
            return None
        event = str.__new__(cls, value)
        event._name_ = _UNKNOWN
        event._value_ = value
        return event

    @property
    def is_known(self) -> bool:
        """Whether this version knows the event."""
        return self._name_ != _UNKNOWN


class Data(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a line carries in `data`. Keys that a newer version has added are ignored."""

    def as_json(self) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values


class Note(Data, frozen=True, kw_only=True, omit_defaults=True):
    """The data of a line that changes no record; each kind belongs to one event."""

    event: ClassVar[Event]


class PodStarted(Note, frozen=True, kw_only=True, omit_defaults=True):
    """A dispatcher: who started it, where, and what it takes (see liveness.PodInfo) as it begins.

    `pod` and `started_at` identify it: the next one of this name has another time.
    """

    event = Event.POD_STARTED
    pod: str
    started_at: str
    host: str
    user: str
    outlets: Mapping[str, Mapping[str, Any]] = {}
    methods: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    matrix: str = ""


class PodEnded(Note, frozen=True, kw_only=True, omit_defaults=True):
    """That dispatcher ended at `ended_at`; where `was_killed`, that is its last heartbeat.

    `claimed_until`: from then on it has drained. `drained`: from when to when it had drained before, and went on.
    """

    event = Event.POD_ENDED
    pod: str
    started_at: str
    ended_at: str
    claimed_until: str | None = None
    drained: tuple[tuple[str, str], ...] = ()
    was_killed: bool = False


class Continued(Note, frozen=True, kw_only=True, omit_defaults=True):
    """The generation that follows."""

    event = Event.CONTINUED
    generation: int


class AppliedEdit(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields that a person changed in a job's line of `rev` (0: a line without one); null removed a field.

    `seq` is the line of the journal that recorded it; 0 in that line itself.
    """

    rev: int
    fields: Mapping[str, Any]
    seq: int = 0


class HandEdit(Data, frozen=True, kw_only=True, omit_defaults=True):
    """Beside a change that was made in the status file."""

    edit: AppliedEdit


class SnapshotData(Data, frozen=True, kw_only=True, omit_defaults=True):
    """Beside a record in a snapshot: the `seq` at which the job got its record, and the last hand edit of its line."""

    born: int
    edit: AppliedEdit | None = None


class Claim(Data, frozen=True, kw_only=True, omit_defaults=True):
    """Beside a claim, where its record does not tell which GPUs the attempt has, or not how much of them.

    `gpus`: how many it asks for on a configured host. `gpu_share`: the part of its one GPU that it shares by memory.
    """

    gpus: int = 0
    gpu_share: float | None = None


class Blame(Data, frozen=True, kw_only=True, omit_defaults=True):
    """Beside the end of an attempt: the scopes in which it counts as a success or a failure.

    `gpu` and `host` where it says something about them. `suspect`: the host may be the cause of the failure.
    `ended_at` is when the attempt ended, where its record does not keep that: the job is queued again. `last_seen_at`:
    it is unknown when it ended, and this was the last sign of it. `begun_at` is when it began by the same clock, where
    its pod may have heard of that late or never: on another host.
    """

    method: str | None = None
    gpu: str | None = None
    host: str | None = None
    suspect: bool = False
    ended_at: str | None = None
    last_seen_at: str | None = None
    begun_at: str | None = None
