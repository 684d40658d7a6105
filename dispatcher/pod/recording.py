"""Recording where attempts run, how they end, and what follows from a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dispatcher.base.host import host_name
from dispatcher.config import Config
from dispatcher.contract import EXIT_DONE
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import LOST, PREEMPTED, Ended, Key, Placement
from dispatcher.pod import outcome
from dispatcher.pod.outcome import Policy
from dispatcher.pod.recover import Found
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Blame, Event, Paused
from dispatcher.run_state.fold import gpu_scope, host_scope, pause_reason
from dispatcher.run_state.states import IN_FLIGHT, Record, State
from dispatcher.run_state.store import Store, Transaction

# Events that a pod's log shows with other words than the journal.
_LOGGED: Final[Mapping[Event, str]] = {Event.AUTO_REQUEUED: "requeued", Event.RETRIED: "failed and requeued"}


def is_current(record: Record | None, number: int) -> bool:
    """Whether attempt `number` is the one that the record has in flight."""
    return record is not None and record.state in IN_FLIGHT and record.attempt == number


class Recorder:
    """Writes what happened to attempts into a transaction. `failures` counts jobs that failed for good."""

    def __init__(
        self, store: Store, config: Config, entry_of: Callable[[str], Entry | None], log: Callable[[str], None]
    ) -> None:
        self.failures = 0
        self._store = store
        self._config = config
        self._entry_of = entry_of
        self._log = log

    def placement(self, tx: Transaction, attempt: RunningAttempt) -> None:
        """Record where an attempt runs, and that it has begun, as far as its record does not have it yet."""
        record = tx.record(attempt.key.job_id)
        if attempt.is_recorded or record is None or not is_current(record, attempt.key.number):
            return
        change = _placement_change(attempt.placement or Placement(), record)
        if attempt.has_begun and record.state is State.SUBMITTED:
            change |= Change(state=State.RUNNING)
        if change != Change():
            tx.change(attempt.key.job_id, Event.STARTED if attempt.has_begun else Event.SUBMITTED, change)

    def end(self, tx: Transaction, key: Key, ended: Ended) -> str:
        """Record how an attempt ended, unless it is no longer its job's current one; a line for people."""
        job, number = key.job_id, key.number
        record = tx.record(job)
        if record is None or not is_current(record, number):
            return f"{job} (attempt {number}) has ended, but is no longer the current attempt: not recorded"
        entry = self._entry_of(job)
        event, change = outcome.after(ended, record, self._policy(entry), time.time())
        blame = self._blame(event, ended, entry, record)
        tx.change(job, event, change, data=blame if blame.scopes else None)
        if event is not Event.DONE:
            self._trip(tx, blame.scopes)
        self.failures += event is Event.FAILED
        state = str(change.state)
        detail = f": {ended.exit_reason}" if ended.exit_reason else ""
        if ended.error and ended.exit_code != EXIT_DONE:
            detail += f": {ended.error}"
        what = _LOGGED.get(event) or (event if event == state else f"{event} ({state})")
        return f"{what} {job} (attempt {number}){detail}"

    def found(self, tx: Transaction, found: Found) -> str:
        """Record how an attempt of a dead dispatcher ended; a line for people, empty when another was quicker."""
        record = tx.record(found.key.job_id)
        if record is None or not is_current(record, found.key.number):
            return ""
        paths = self._config.layout.attempt(found.key.job_id, found.key.number)
        line = self.end(tx, found.key, outcome.judge(found.ended, paths))
        return f"{line} (of pod {record.pod}, which is gone)"

    def _blame(self, event: Event, ended: Ended, entry: Entry | None, record: Record) -> Blame:
        """The scopes in which the end of an attempt counts, for the journal; see Fold."""
        if event is Event.STOPPED:
            return Blame()
        method = gpu = None
        if ended.exit_reason not in (PREEMPTED, LOST) and not ended.blames_host:
            method = None if entry is None else entry.method
            gpu = _gpu_scope(record)
        # An attempt that was only submitted has no host that could be at fault.
        host = None if record.host is None else host_scope(record.host)
        is_suspect = host is not None and outcome.is_suspicious(ended)
        # A wrapper that wrote an exit status shows that the host is well.
        is_well = ended.exit_code is not None and host in self._store.fold.streaks
        return Blame(method=method, gpu=gpu, host=host if is_suspect or is_well else None, suspect=is_suspect)

    def _trip(self, tx: Transaction, scopes: Iterable[str]) -> None:
        fold = self._store.fold
        for scope in scopes:
            why = pause_reason(fold.streaks[scope], scope) if scope in fold.streaks else None
            if why is not None and scope not in fold.pauses:
                tx.note(Paused(scope=scope, why=why))
                # A pause of this host is reported by `Backlog`, whichever pod has caused it.
                if scope != host_scope(host_name()):
                    self._log(f"paused {scope}: {why}. Continue with `dispatcher unpause {scope}`")

    def _policy(self, entry: Entry | None) -> Policy:
        if entry is None:
            return Policy(max_requeues=self._config.max_requeues)
        method = self._config.method(entry.method)
        return Policy(
            retries=method.retries if entry.retries is None else entry.retries,
            retry_on=method.retry_on if entry.retry_on is None else entry.retry_on,
            backoff_s=method.backoff_s,
            max_requeues=self._config.max_requeues,
            on_lost=method.on_lost,
            on_preempted=method.on_preempted,
        )


def _gpu_scope(record: Record) -> str | None:
    """The one GPU on which an attempt ran; of several none can be blamed."""
    gpus = record.gpu_indices
    return gpu_scope(record.host or "", gpus[0]) if len(gpus) == 1 else None


def gpu_field(gpus: Sequence[int]) -> int | tuple[int, ...] | None:
    """A slot's GPUs as a record has them."""
    return None if not gpus else gpus[0] if len(gpus) == 1 else tuple(gpus)


def _placement_change(placement: Placement, record: Record) -> Change:
    """What of a placement the record does not have yet; a placement never removes a field."""
    change = Change()
    if placement.pid not in (None, record.pid):
        change |= Change(pid=placement.pid)
    if placement.host not in (None, record.host):
        change |= Change(host=placement.host)
    if placement.handle not in (None, record.handle):
        change |= Change(handle=placement.handle)
    if placement.code not in (None, record.code):
        change |= Change(code=placement.code)
    if placement.gpus not in ((), record.gpu_indices):
        change |= Change(gpu=gpu_field(placement.gpus))
    return change
