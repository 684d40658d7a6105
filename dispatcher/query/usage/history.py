"""What the journal tells of attempts, pods and waiting jobs, as intervals of time in seconds since 1970."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.times import parse_time
from dispatcher.base.users import user_of
from dispatcher.outlets.base import CANCELLED, LOST, PREEMPTED, SUPERSEDED
from dispatcher.outlets.kinds import DEFAULT
from dispatcher.query.external import EXTERNAL
from dispatcher.run_state.events import Event, PodEnded, PodStarted
from dispatcher.run_state.facets.gpu_idle import GpuIdle
from dispatcher.run_state.facets.pauses import Pause, Paused, Unpaused, begun
from dispatcher.run_state.journal import Line
from dispatcher.run_state.states import IN_FLIGHT, PRUNED, State


class SlotUse(enum.StrEnum):
    """What became of the time of a slot: how its attempt ended, or that it was idle."""

    USEFUL = "useful"
    PRUNED = "pruned"
    FAILED = "failed"
    PREEMPTED = "preempted"
    LOST = "lost"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    UNKNOWN_END = "unknown_end"
    RUNNING = "running"
    WAITED = "idle_waited"
    PAUSED = "idle_paused"
    IDLE = "idle"


class Attempt(msgspec.Struct, gc=False):
    """One attempt. `begun_s` None: it has not begun. `ended_s` None: it is in flight.

    `gpus` are how many it has, or asks for on a host. `gpu_share`: the part of its one GPU that it has by its memory;
    None: it does not share by memory. `pod_began_at` tells which dispatcher of the pod's name claimed it, as the order
    of lines says: a clock that was set may contradict it. Empty: the journal does not say. `user` owned the job when it
    was claimed; None: the journal does not say.
    """

    job: str
    number: int
    pod: str
    host: str
    outlet: str
    gpus: int
    claimed_s: float
    begun_s: float | None
    user: str | None = None
    ended_s: float | None = None
    kind: SlotUse = SlotUse.RUNNING
    # When a pod found that it had ended.
    noticed_s: float | None = None
    pod_began_at: str = ""
    gpu_share: float | None = None


class Session(msgspec.Struct, gc=False):
    """One dispatcher from start to end. `ended_s` None: the journal has no end of it.

    `drained_s`: from when to when it claimed nothing, and claimed again.
    """

    started: PodStarted
    begun_s: float
    ended_s: float | None = None
    claimed_until_s: float | None = None
    drained_s: tuple[tuple[float, float], ...] = ()


class WaitPeriod(msgspec.Struct, gc=False):
    """A job was ready to be claimed, as far as it depended on the job itself. `end_s` None: it still is."""

    job: str
    begun_s: float
    end_s: float | None = None


class IdleGpus(msgspec.Struct, gc=False):
    """GPUs of an attempt at 0 %. `end_s` None: they still are, or were until the attempt ended."""

    attempt: Attempt
    gpus: int
    begun_s: float
    end_s: float | None = None


class PauseSpan(msgspec.Struct, gc=False):
    """Claiming was paused. `end_s` None: it still is."""

    pause: Pause
    begun_s: float
    end_s: float | None = None


_BY_REASON: Final = frozenset({Event.FAILED, Event.RETRIED, Event.AUTO_REQUEUED})
_BY_STATE: Final = {State.DONE: SlotUse.USEFUL, State.FAILED: SlotUse.FAILED}
_CLAIMED: Final = Event.CLAIMED
_STARTED: Final = Event.STARTED
_QUEUED: Final = Event.QUEUED
_DELETED: Final = Event.DELETED
_OF_GPUS: Final = frozenset({Event.GPU_IDLE, Event.GPU_BUSY})
_QUEUED_STATE: Final = State.QUEUED.value
_WHOLE: Final = frozenset({Event.SNAPSHOT, Event.ADOPTED})


class History:
    """Takes in the journal's lines in their order; `needs_of` are the jobs that each job needs.

    `first_s` is the time of the first line, and `is_cut` whether older ones are gone. `last_s` is when each author last
    wrote one.
    """

    def __init__(self, needs_of: Mapping[str, tuple[str, ...]]) -> None:
        self.attempts: list[Attempt] = []
        self.in_flight: dict[str, Attempt] = {}
        self.sessions: list[Session] = []
        self.waits: list[WaitPeriod] = []
        self.pauses: list[PauseSpan] = []
        self.idle_gpus: list[IdleGpus] = []
        # Who has submitted jobs: for attempts of which the journal does not say whose job it was.
        self.owners: dict[str, str] = {}
        self.last_s: dict[str, float] = {}
        self.first_s: float | None = None
        self.is_cut = False
        self._open_sessions: dict[str, Session] = {}
        self._open_pauses: dict[str, PauseSpan] = {}
        # By job.
        self._open_idle: dict[str, IdleGpus] = {}
        # Queued jobs, and since when they could be claimed; needs that are not done keep them from that.
        self._queued: dict[str, float] = {}
        self._needs_of = needs_of
        self._needed_by: dict[str, list[str]] = {}
        for job, needs in needs_of.items():
            for need in needs:
                self._needed_by.setdefault(need, []).append(job)
        self._done: set[str] = set()

    def read(self, lines: Iterable[Line]) -> None:
        at, at_s = "", 0.0
        for line in lines:
            if line.at != at:
                # Many jobs are queued at once.
                at, at_s = line.at, parse_time(line.at) or at_s
            if self.first_s is None:
                self.first_s, self.is_cut = at_s, line.event is Event.SNAPSHOT
            if line.job is None:
                self._note(line, at_s)
            elif line.event is _DELETED:
                self._leave_queue(line.job, at_s)
                self._set_done(line.job, at_s, is_done=False)
            elif line.set:
                self._change(line, at_s)
            elif line.event in _OF_GPUS:
                self._note_gpus(line, at_s)
            self.last_s[line.by] = at_s

    def finish(self) -> None:
        """All lines were read: what is open stays open."""
        self.attempts += self.in_flight.values()
        self.waits += [WaitPeriod(job, since_s) for job, since_s in self._queued.items() if not self._lacks(job)]

    def _change(self, line: Line, at_s: float) -> None:
        """One line about a job: first its attempt, then whether it waits."""
        job, fields, event = str(line.job), line.set, line.event
        if event is _QUEUED:
            user = user_of(line.by)
            if user is not None:
                self.owners[job] = user
        state = fields.get("state")
        if event is _CLAIMED:
            self._claim(job, line, at_s)
        elif event in _WHOLE:
            self._take_over(job, fields, at_s)
        elif job in self.in_flight:
            if event is _STARTED or state is None or state in IN_FLIGHT:
                self._place(self.in_flight[job], fields, at_s, has_begun=event is _STARTED)
            else:
                self._end(self.in_flight.pop(job), line, at_s)
        elif fields.get("external") and state in IN_FLIGHT:
            self._take_over(job, fields, at_s)
        if state is not None:
            self._enter(job, state, fields, at_s)

    def _note_gpus(self, line: Line, at_s: float) -> None:
        """GPUs of an attempt went to 0 %, or are used again; a new generation of the journal repeats the first."""
        attempt = self.in_flight.get(line.job or "")
        if attempt is None:
            return
        last = self._open_idle.get(attempt.job)
        is_open = last is not None and last.attempt is attempt
        if line.event is Event.GPU_BUSY and is_open:
            self._open_idle.pop(attempt.job).end_s = at_s
        elif line.event is Event.GPU_IDLE and not is_open:
            idle = line.read(GpuIdle)
            self._open_idle[attempt.job] = IdleGpus(attempt, idle.gpus, parse_time(idle.since) or at_s)
            self.idle_gpus.append(self._open_idle[attempt.job])

    def _claim(self, job: str, line: Line, at_s: float) -> None:
        fields = line.set
        begun_s = at_s if fields.get("state") == State.RUNNING else None
        data = line.data or {}
        attempt = self.in_flight[job] = _attempt(job, fields, at_s, begun_s, int(data.get("gpus", 0)))
        attempt.gpu_share = data.get("gpu_share")
        session = self._open_sessions.get(attempt.pod)
        if session is not None:
            attempt.pod_began_at = session.started.started_at

    def _take_over(self, job: str, fields: Mapping[str, Any], at_s: float) -> None:
        """A record as it was when the journal, or what is left of it, began; or the run of a script."""
        begun_s = parse_time(fields.get("started_at"))
        if begun_s is None:
            return
        attempt = _attempt(job, fields, begun_s, begun_s, 0)
        if fields.get("state") in IN_FLIGHT:
            self.in_flight[job] = attempt
        elif (ended_s := parse_time(fields.get("finished_at"))) is not None:
            is_done = fields.get("state") == State.DONE
            attempt.kind = kind_of(Event.DONE if is_done else Event.FAILED, fields)
            attempt.ended_s = max(begun_s, ended_s)
            self.attempts.append(attempt)

    def _place(self, attempt: Attempt, fields: Mapping[str, Any], at_s: float, *, has_begun: bool) -> None:
        """Where an attempt runs, and on a host that it has begun."""
        if "host" in fields:
            attempt.host = fields["host"] or ""
        if fields.get("gpu") is not None:
            attempt.gpus = _count(fields["gpu"])
        if has_begun and attempt.begun_s is None:
            attempt.begun_s = at_s

    def _end(self, attempt: Attempt, line: Line, at_s: float) -> None:
        data = line.data or {}
        attempt.noticed_s = at_s
        attempt.kind = kind_of(line.event, line.set)
        ended_at = line.set.get("finished_at") or data.get("ended_at")
        if data.get("last_seen_at"):
            attempt.kind, ended_at = SlotUse.UNKNOWN_END, data["last_seen_at"]
        ended_s = parse_time(ended_at) or at_s
        # On another host a pod sees late, or never, that it runs.
        attempt.begun_s = parse_time(data.get("begun_at")) or attempt.begun_s
        attempt.ended_s = max(ended_s, attempt.begun_s or attempt.claimed_s)
        self.attempts.append(attempt)

    # Waiting.

    def _enter(self, job: str, state: str, fields: Mapping[str, Any], at_s: float) -> None:
        if job in self._queued:
            self._leave_queue(job, at_s)
        if state == _QUEUED_STATE:
            retry_at = fields.get("retry_at")
            self._queued[job] = at_s if retry_at is None else max(at_s, parse_time(retry_at) or at_s)
        if job in self._needed_by:
            self._set_done(job, at_s, is_done=state == State.DONE)

    def _leave_queue(self, job: str, at_s: float) -> None:
        if job in self._queued:
            self._add_wait(job, at_s)
            del self._queued[job]

    def _add_wait(self, job: str, end_s: float) -> None:
        since_s = self._queued.get(job)
        if since_s is not None and since_s < end_s and not self._lacks(job):
            self.waits.append(WaitPeriod(job, since_s, end_s))

    def _set_done(self, job: str, at_s: float, *, is_done: bool) -> None:
        if job not in self._needed_by or is_done == (job in self._done):
            return
        others = [other for other in self._needed_by[job] if other in self._queued]
        if is_done:
            self._done.add(job)
        else:
            for other in others:
                # The job must be done again first.
                self._add_wait(other, at_s)
            self._done.discard(job)
        for other in others:
            self._queued[other] = max(self._queued[other], at_s)

    def _lacks(self, job: str) -> bool:
        """Whether a job that this one needs is not done."""
        needs = self._needs_of.get(job)
        return needs is not None and not self._done.issuperset(needs)

    # Pods and pauses.

    def _note(self, line: Line, at_s: float) -> None:
        if line.event is Event.POD_STARTED:
            started = line.read(PodStarted)
            before = self._open_sessions.get(started.pod)
            if before is not None:
                # Its end was not written, and later lines of this name are not its own.
                before.ended_s = max(before.begun_s, self.last_s.get(started.pod, before.begun_s))
            self._open_sessions[started.pod] = Session(started, at_s)
            self.sessions.append(self._open_sessions[started.pod])
        elif line.event is Event.POD_ENDED:
            ended = line.read(PodEnded)
            session = self._open_sessions.get(ended.pod)
            if session is not None and session.started.started_at == ended.started_at:
                del self._open_sessions[ended.pod]
                session.ended_s = parse_time(ended.ended_at) or at_s
                session.claimed_until_s = parse_time(ended.claimed_until)
                drained = [(parse_time(since), parse_time(until)) for since, until in ended.drained]
                session.drained_s = tuple((since, until) for since, until in drained if since and until)
        elif line.event is Event.PAUSED:
            paused = line.read(Paused)
            if paused.scope not in self._open_pauses:
                self._open_pauses[paused.scope] = PauseSpan(begun(paused, line.at), at_s)
                self.pauses.append(self._open_pauses[paused.scope])
        elif line.event is Event.UNPAUSED:
            pause = self._open_pauses.pop(line.read(Unpaused).scope, None)
            if pause is not None:
                pause.end_s = at_s


def kind_of(event: Event, fields: Mapping[str, Any]) -> SlotUse:
    """How an attempt ended, by the line that records it."""
    if fields.get("state") == State.DONE and fields.get("reason") == PRUNED:
        return SlotUse.PRUNED
    if event not in _BY_REASON:
        return (
            SlotUse.CANCELLED if event is Event.STOPPED else _BY_STATE.get(fields.get("state", ""), SlotUse.CANCELLED)
        )
    reason, error = str(fields.get("reason") or ""), str(fields.get("error") or "")
    # `lost 3 times`: the last one of as many as are allowed.
    if reason.startswith(LOST):
        return SlotUse.SUPERSEDED if error.startswith(SUPERSEDED) else SlotUse.LOST
    if reason.startswith(PREEMPTED):
        return SlotUse.PREEMPTED
    return SlotUse.CANCELLED if reason == CANCELLED else SlotUse.FAILED


def _attempt(job: str, fields: Mapping[str, Any], claimed_s: float, begun_s: float | None, asked: int) -> Attempt:
    gpu = fields.get("gpu")
    return Attempt(
        job=job,
        number=fields.get("attempt") or 0,
        pod=fields.get("pod") or "",
        host=fields.get("host") or "",
        outlet=EXTERNAL if fields.get("external") else fields.get("outlet") or DEFAULT,
        gpus=asked if gpu is None else _count(gpu),
        claimed_s=claimed_s,
        begun_s=begun_s,
        user=fields.get("user"),
    )


def _count(gpu: Any) -> int:
    return len(gpu) if isinstance(gpu, (list, tuple)) else 1
