"""Claiming inside a transaction: each choice passes the fence and is journalled, or its job is left for later."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Final

import msgspec

from dispatcher.base.host import host_name
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.outlets.lost_claims import LostClaim
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.claim import Choice
from dispatcher.pod.fence import Fence
from dispatcher.pod.pack import is_last
from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.pod.placements import CLAIM_UNSETS, gpu_field
from dispatcher.pod.recording import claim_again
from dispatcher.pod.starting import Claimed, Starter
from dispatcher.provenance.collector import Collector
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Claim, Event
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import Record, State
from dispatcher.run_state.store import Transaction

# A job that is blocked gives its slot to the next one at once, and is tried again after this time; many that are
# blocked at once (by permissions, say) so much later that few of them are looked at in a second.
_BLOCKED_AGAIN_S: Final = 5.0
_LONGEST_BLOCKED_S: Final = 300.0
_BLOCKED_A_SECOND: Final = 20
# How many jobs one transaction may come across that it cannot start: each costs a look at the disk under the lock.
_MOST_UNSTARTED: Final = 20
# How long the end of a pod waits for the records of what its last attempts ran from.
_LAST_RECORDS_S: Final = 3.0


class Claims(Participant):
    """Claims entries of the backlog for free slots, and starts them when that is in the journal.

    `adopt` watches attempts of this pod's name that were found.
    """

    def __init__(
        self,
        shared: Shared,
        backlog: Backlog,
        adopt: Callable[[Collection[str]], None],
        use_copy: Callable[[str], CodeSnapshot],
    ) -> None:
        self._shared = shared
        self._options = shared.options
        self._outlets = shared.outlets
        self._backlog = backlog
        self._adopt = adopt
        layout = shared.config.now.layout
        self._fence = Fence(layout, shared.options.pod, shared.observer.pod_is_alive, shared.log)
        self._collector = Collector(layout)
        self._starter = Starter(shared, backlog.request_of, use_copy, self._collector.note)
        # Whether jobs that could not be started kept the last transaction from claiming others, or it was outdated.
        self._is_incomplete = False
        # How many this pod has claimed, and how many in the last pass.
        self._count = 0
        self.started = 0
        self._claimed: list[Claimed] = []
        # What holds a slot and is not committed yet.
        self._taken: list[Choice] = []
        # Jobs whose attempts were there already, of the last transaction.
        self._found: dict[str, LostClaim] = {}

    @property
    def has_enough(self) -> bool:
        """Whether `--max-jobs` have been claimed."""
        return self._options.max_jobs is not None and self._count >= self._options.max_jobs

    def look(self, now: Pass) -> None:
        self._is_incomplete, self.started = False, 0

    def may_claim(self) -> bool:
        return not self.has_enough

    def record(self, now: Pass, tx: Transaction) -> None:
        """Choose and claim until no slot is free or nothing is ready."""
        self._claimed, self._found = [], {}
        self._is_incomplete = now.is_outdated
        if now.claiming and self._backlog.obstacles() == []:
            self._claim(tx)

    def commit(self, tx: Transaction) -> None:
        # First: what fails below must not give back the slots of what is claimed.
        self._count += len(self._taken)
        self._taken = []
        found, self._found = self._found, {}
        if found:
            # Those of this pod's name hold slots.
            self._backlog.sync()
            self._adopt({job for job, lost in found.items() if lost.runs})
        self.started = len(self._claimed)
        self._starter.start(self._claimed)
        upcoming = self._backlog.queue.upcoming() if self._claimed else []
        if upcoming:
            self._shared.store.prepare_claims(upcoming, len(self._claimed))

    def roll_back(self) -> None:
        """What was chosen is still queued, and its slots are free."""
        taken, self._taken = self._taken, []
        for choice in taken:
            self._give_back(choice)
            self._backlog.queue.put_back(choice.entry.job_id)
        for job in self._found:
            self._backlog.queue.put_back(job)
        self._found = {}

    def note(self, job: str, record: Record | None) -> None:
        self._fence.unblock(job)

    def chosen(self) -> dict[str, Choice]:
        """What was claimed in the transaction that goes on, by job."""
        return {one.choice.entry.job_id: one.choice for one in self._claimed}

    def has_more(self) -> bool:
        return self._is_incomplete

    def due_in_s(self, *, claiming: bool) -> float | None:
        """Until an entry that waits for its retry can be claimed, or an outlet finds room for what is ready."""
        if not claiming:
            return None
        retry_at = self._backlog.queue.next_retry(now_text(time.time()))
        waits = [] if retry_at is None else [datetime.fromisoformat(retry_at).timestamp() - time.time()]
        if self._backlog.has_ready() or self._options.addition is not None:
            waits += [due_s for one in self._outlets.values() if (due_s := one.capacity_due_in_s()) is not None]
        return min(waits, default=None)

    def notes(self) -> list[str]:
        return self._fence.notes()

    def offered(self) -> dict[str, Any]:
        return {"blocked": self._fence.blocked}

    def close(self) -> None:
        """Record what the last attempts ran from."""
        self._collector.close(_LAST_RECORDS_S)

    def _claim(self, tx: Transaction) -> None:
        unstarted = 0
        while unstarted < _MOST_UNSTARTED:
            chosen = self._backlog.queue.choose(now_text(time.time()), self._limit(len(self._claimed)))
            self._taken += chosen
            if not chosen:
                return
            for choice in chosen:
                claimed = self._claim_one(tx, choice)
                if claimed is not None:
                    self._claimed.append(claimed)
                    continue
                unstarted += 1
                self._release(choice)
                if choice.entry.job_id not in self._found:
                    self._postpone(choice)
            if self._found:
                # They may hold slots that still count as free.
                break
        self._is_incomplete = True

    def _claim_one(self, tx: Transaction, choice: Choice) -> Claimed | None:
        """Claim one entry; None when it is blocked, or its attempt was `found`."""
        job, first_state = choice.entry.job_id, self._outlets[choice.outlet].first_state
        record = tx.record(job)
        snapshot = record.snapshot if record is not None and self._backlog.wants_copy(choice.entry) else None
        passed = self._fence.pass_through(tx, job, (record.attempt if record else 0) + 1)
        if isinstance(passed, LostClaim):
            self._found[job] = passed
            claim_again(tx, passed)
            return None
        if passed is None:
            return None
        change = CLAIM_UNSETS | Change(
            state=first_state,
            pod=self._options.pod,
            pid=None,
            gpu=gpu_field(choice.slot.gpus),
            started_at=tx.at,
            attempt=passed[0],
            ran_with=choice.entry.digest(),
            inputs_at=inputs_at(choice.entry, record, tx.seq, starts_anew=choice.starts_anew),
            user=choice.entry.user,
            # What does not run at once runs on a host that is not known yet.
            host=host_name() if first_state is State.RUNNING else None,
            outlet=choice.outlet,
            code=snapshot,
        )
        if record is not None and record.snapshot != snapshot:
            # The entry does not ask for one any more.
            change |= Change(snapshot=None)
        if passed[0] > 1 and (record is None or not record.attempt):
            # Its record was deleted: what ran before may have been done, and others may have used it.
            change |= Change(redone=0)
        if choice.starts_anew:
            # Its progress counts from zero again, and its next checkpoint is kept elsewhere.
            change |= Change(furthest_step=None, furthest_checkpoint=None, checkpoint_at=None)
        # Where the scheduler chooses the GPUs, the slot has none, and the record gets them later or never.
        capacity = self._outlets[choice.outlet].capacity
        gpus = 0 if choice.slot.gpus else capacity.gpus_of(self._backlog.request_of(choice.entry))
        claim = Claim(gpus=gpus, gpu_share=choice.slot.gpu_share)
        tx.change(job, Event.CLAIMED, change, data=claim if claim != Claim() else None)
        if record is not None and record.time_limit is not None:
            choice = msgspec.structs.replace(choice, entry=choice.entry.limited_to(record.time_limit))
        return Claimed(choice, passed[0], snapshot)

    def _release(self, choice: Choice) -> None:
        self._taken = [one for one in self._taken if one is not choice]
        self._give_back(choice)

    def _postpone(self, choice: Choice) -> None:
        again_s = blocked_again_s(len(self._fence.blocked))
        self._backlog.queue.postpone(choice.entry.job_id, now_text(time.time() + again_s))

    def _give_back(self, choice: Choice) -> None:
        if is_last(choice.pack):
            self._outlets[choice.outlet].capacity.release(choice.slot)

    def _limit(self, claimed: int) -> int | None:
        return None if self._options.max_jobs is None else self._options.max_jobs - self._count - claimed


def inputs_at(entry: Entry, record: Record | None, seq: int, *, starts_anew: bool) -> int | None:
    """The `Record.inputs_at` of a job that is claimed after line `seq` of the journal."""
    if not entry.needs:
        return None
    if record is not None and record.furthest_checkpoint is not None and not starts_anew:
        # What its checkpoint was made from counts; where that is not known, the record has nothing.
        return record.inputs_at
    return seq


def blocked_again_s(blocked: int) -> float:
    """After what time one of so many blocked jobs is tried again."""
    return min(max(_BLOCKED_AGAIN_S, blocked / _BLOCKED_A_SECOND), _LONGEST_BLOCKED_S)
