"""Recording where attempts run and how they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from dispatcher.base.times import parse_time
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import LOST, PREEMPTED, Ended, Key, Placement
from dispatcher.outlets.kinds import DEFAULT
from dispatcher.outlets.lost_claims import LostClaim, lost_claim
from dispatcher.pod import outcome
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.outcome import Policy
from dispatcher.pod.participant import End, Shared
from dispatcher.pod.placements import CLAIM_UNSETS, begun_change, gpu_field
from dispatcher.pod.placing import own_store
from dispatcher.pod.recover import Found
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Blame, Event
from dispatcher.run_state.facets.pauses import gpu_scope, host_scope
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import CLOCKS_DIFFER_S
from dispatcher.run_state.requests import FRESH_START
from dispatcher.run_state.states import IN_FLIGHT, PUT_ASIDE, Record, State
from dispatcher.run_state.store import Transaction

# Events that a pod's log shows with other words than the journal.
_LOGGED: Final[Mapping[Event, str]] = {Event.AUTO_REQUEUED: "requeued", Event.RETRIED: "failed and requeued"}


def is_current(record: Record | None, number: int) -> bool:
    """Whether attempt `number` is the one that the record has in flight."""
    return record is not None and record.state in IN_FLIGHT and record.attempt == number


def is_forgotten(record: Record | None, number: int) -> bool:
    """Whether the journal has gone back behind the claim of attempt `number`; what a person asks for since is done."""
    return record is not None and record.attempt < number and record.state not in PUT_ASIDE


def claim_again(tx: Transaction, lost: LostClaim) -> None:
    """Record the claim of an attempt that has begun, as its directory tells it; its end is recorded as of any other."""
    record = tx.record(lost.job)
    if record is not None and record.state is not State.QUEUED:
        tx.change(lost.job, Event.REQUEUED, FRESH_START | Change(state=State.QUEUED))
    change = CLAIM_UNSETS | Change(
        state=State.RUNNING if lost.outlet is None else State.SUBMITTED,
        pod=lost.pod,
        pid=lost.pid,
        gpu=gpu_field(lost.gpus),
        started_at=None if lost.started_s is None else now_text(lost.started_s),
        attempt=lost.number,
        ran_with=None if lost.entry is None else lost.entry.digest(),
        user=None if lost.entry is None else lost.entry.user,
        host=lost.host,
        outlet=lost.outlet or DEFAULT,
    )
    tx.change(lost.job, Event.CLAIMED, change)


class Recorder:
    """Writes what happened to attempts into a transaction. `after_end` is called for each end that it has written."""

    def __init__(self, shared: Shared, backlog: Backlog, after_end: Callable[[Transaction, End], None]) -> None:
        self._store = shared.store
        self._config = shared.config
        self._place_of = shared.outlets.place
        self._entry = backlog.entry
        self._after_end = after_end

    def placement(self, tx: Transaction, attempt: RunningAttempt) -> None:
        """Record where an attempt runs, and that it has begun, as far as its record does not have it yet."""
        if attempt.is_recorded:
            return
        job, number = attempt.key.job_id, attempt.key.number
        record = tx.record(job)
        if is_forgotten(record, number):
            claim_again(tx, lost_claim(self._config.now.layout, job, number))
            record = tx.record(job)
        if record is None or not is_current(record, number):
            return
        _place(tx, attempt.key.job_id, record, attempt.placement or Placement(), has_begun=attempt.has_begun)

    def end(self, tx: Transaction, key: Key, ended: Ended, last_seen_at: str | None = None) -> str:
        """Record how an attempt ended, unless it is no longer its job's current one; a line for people.

        `last_seen_at` is the last sign of an attempt whose end was not seen.
        """
        job, number = key.job_id, key.number
        record = tx.record(job)
        if is_forgotten(record, number):
            claim_again(tx, lost_claim(self._config.now.layout, job, number))
            record = tx.record(job)
        if record is None or not is_current(record, number):
            return f"{job} (attempt {number}) has ended, but is no longer the current attempt: not recorded"
        entry = self._entry(job)
        event, change = outcome.after(ended, record, self._policy(entry), time.time())
        if event is not Event.DONE and ended.checkpoint is not None:
            has_store = entry is not None and own_store(self._config.now, entry)
            change |= Change(checkpoint_at=None if has_store else self._place(record))
        blame = self._blame(event, ended, entry, record)
        # A record that is queued again has no end.
        ended_at = None if change.finished_at else ended.ended_at
        begun_at = None if ended.begun_s is None else now_text(ended.begun_s)
        if is_local(record):
            if not _contradicts(ended, record):
                begun_at = None
            elif change.finished_at:
                change |= Change(started_at=begun_at)
        data = msgspec.structs.replace(blame, ended_at=ended_at, last_seen_at=last_seen_at, begun_at=begun_at)
        tx.change(job, event, change, data=data if data != Blame() else None)
        self._after_end(tx, End(job=job, event=event, entry=entry, record=record, blame=blame))
        state = str(change.state)
        detail = f": {ended.exit_reason}" if ended.exit_reason else ""
        if ended.error:
            detail += f": {ended.error}"
        if event is Event.STOPPED and ended.exit_reason in (LOST, PREEMPTED):
            # That it has left as a preempted one does, or that its end was not seen, is no news where it was to end.
            detail = f": {outcome.STOPPED}"
        what = _LOGGED.get(event) or (event if event == state else f"{event} ({state})")
        return f"{what} {job} (attempt {number}){detail}"

    def found(self, tx: Transaction, found: Found) -> str:
        """Record what is news of an attempt of a dead dispatcher; a line for people, empty when another was quicker."""
        job, number = found.key.job_id, found.key.number
        record = tx.record(job)
        if record is None or not is_current(record, number):
            return ""
        is_placed = _place(tx, job, record, found.placement, has_begun=found.has_begun)
        if found.ended is None:
            state = State.RUNNING if found.has_begun else State.SUBMITTED
            where = f" on {found.placement.host}" if found.placement.host else ""
            return f"{state} {job} (attempt {number}){where} (of pod {record.pod}, which is gone)" if is_placed else ""
        line = self.end(tx, found.key, found.ended, found.last_seen_at)
        return f"{line} (of pod {record.pod}, which is gone)"

    def _blame(self, event: Event, ended: Ended, entry: Entry | None, record: Record) -> Blame:
        """The scopes in which the end of an attempt counts, for the journal; see Fold."""
        if event in (Event.STOPPED, Event.PRUNED):
            return Blame()
        is_fault = ended.exit_reason not in outcome.NO_FAULT
        gpu = gpu_of(record) if is_fault and not ended.blames_host else None
        # Only claims for this outlet are paused by host and GPU: elsewhere the scheduler chooses them.
        host = host_scope(record.host) if record.host is not None and is_local(record) else None
        is_suspect = host is not None and outcome.is_suspicious(ended)
        # A wrapper that wrote an exit status shows that the host is well.
        is_well = ended.exit_code is not None and host in self._store.fold.pauses.streaks
        return Blame(
            method=None if entry is None else entry.method,
            gpu=gpu,
            host=host if is_suspect or is_well else None,
            suspect=is_suspect,
        )

    def _place(self, record: Record) -> str | None:
        """Where the attempt has kept its checkpoints; None in a workspace without hosts, which has one place."""
        place = self._place_of(record.outlet or DEFAULT) if self._config.now.hosts.hosts else ""
        return place or record.checkpoint_at

    def _policy(self, entry: Entry | None) -> Policy:
        if entry is None:
            return Policy(max_requeues=self._config.now.max_requeues)
        method = self._config.now.method(entry.method)
        return Policy(
            retries=method.retries if entry.retries is None else entry.retries,
            retry_on=method.retry_on if entry.retry_on is None else entry.retry_on,
            backoff_s=method.backoff_s,
            max_requeues=self._config.now.max_requeues,
            on_lost=method.on_lost,
            on_preempted=method.on_preempted,
        )


def _place(tx: Transaction, job: str, record: Record, placement: Placement, *, has_begun: bool) -> bool:
    """Record where an attempt runs, as far as its record does not have it yet; whether there was anything."""
    change = begun_change(placement, record, has_begun=has_begun)
    if change != Change():
        tx.change(job, Event.STARTED if has_begun else Event.SUBMITTED, change)
    return change != Change()


def _contradicts(ended: Ended, record: Record) -> bool:
    """Whether the attempt cannot have begun when its record says so, by how long its wrapper counted.

    That is not by the time of day, which may have been set meanwhile, and may be another one where it was claimed.
    """
    started_s = parse_time(record.started_at)
    if ended.begun_s is None or started_s is None:
        return False
    return abs(ended.begun_s - started_s) > CLOCKS_DIFFER_S


def gpu_of(record: Record) -> str | None:
    """The one GPU on which an attempt ran; of several none can be blamed."""
    gpus = record.gpu_indices
    return gpu_scope(record.host or "", gpus[0]) if len(gpus) == 1 and is_local(record) else None


def is_local(record: Record) -> bool:
    return (record.outlet or DEFAULT) == DEFAULT
