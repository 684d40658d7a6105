"""Attempts in flight of other pods: those of dead dispatchers are recorded, or watched again by this pod's name."""

from __future__ import annotations

from collections.abc import Collection

from dispatcher.outlets.base import Ended
from dispatcher.outlets.kinds import DEFAULT
from dispatcher.pod.ends_on_disk import EndsOnDisk
from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.pod.recording import Recorder
from dispatcher.pod.recover import Found, Recovery
from dispatcher.run_state.states import IN_FLIGHT, Record
from dispatcher.run_state.store import Transaction


class Orphans(Participant):
    """What is news of them is found out at every poll (recover.py)."""

    def __init__(self, shared: Shared, recorder: Recorder, on_disk: EndsOnDisk) -> None:
        self._shared = shared
        self._recorder = recorder
        self._on_disk = on_disk
        layout, outlets = shared.config.now.layout, shared.outlets
        # A dry run makes no outlets for them.
        makes = () if shared.is_dry else (outlets.for_orphans, outlets.name_for_orphan)
        self._recovery = Recovery(layout, shared.options.pod, outlets, shared.observer, *makes)
        # Jobs in flight that this pod does not watch.
        self._elsewhere: set[str] = set()
        self._found: list[Found] = []
        self._lines: list[str] = []

    def adopt(self, jobs: Collection[str] | None = None) -> None:
        """Watch again what an earlier dispatcher of this pod's name has left in flight, where its outlets can.

        `jobs`: only these. What has ended meanwhile, or lives elsewhere, is found by recovery.
        """
        wanted = self._elsewhere if jobs is None else self._elsewhere.intersection(jobs)
        records = ((job, self._shared.records[job]) for job in wanted)
        mine = {job: record for job, record in records if record.pod == self._shared.options.pod and record.attempt > 0}
        for attempt in self._shared.attempts.adopt(mine):
            self._elsewhere.discard(attempt.key.job_id)
            if not self._shared.is_dry:
                self._shared.log(f"found {attempt.key.job_id} (attempt {attempt.key.number}) again")

    def look(self, now: Pass) -> None:
        if not self._shared.is_dry:
            return
        self._found = self._recovery.find(self._in_flight(), is_dry=True)
        now.may_free |= bool(self._found)
        ended = {one.key: one.ended for one in self._found}
        for key in self._recovery.asked:
            record = self._shared.records[key.job_id]
            is_known = (record.outlet or DEFAULT) in self._shared.outlets
            now.findings[key.job_id] = _finding(record, ended.get(key), is_known=is_known)
        for attempt in self._shared.attempts:
            state = self._shared.records[attempt.key.job_id].state
            now.findings[attempt.key.job_id] = f"it is {state}; this pod would find it again"

    def act(self, now: Pass) -> None:
        found = self._recovery.find(self._in_flight()) if now.poll_is_due else ()
        self._found = self._on_disk.found(found)
        now.may_free |= bool(self._found)

    def has_news(self) -> bool:
        return bool(self._found)

    def record(self, now: Pass, tx: Transaction) -> None:
        self._lines = [self._recorder.found(tx, one) for one in self._found]

    def commit(self, tx: Transaction) -> None:
        self._on_disk.commit(one.key for one in self._found)
        self._found = []
        for line in filter(None, self._lines):
            self._shared.log(line)

    def note(self, job: str, record: Record | None) -> None:
        # A claim of ours that was never started counts too: the lock may have failed after it was written.
        is_mine = job in self._shared.attempts.by_job
        if record is not None and record.state in IN_FLIGHT and (record.external or not is_mine):
            self._elsewhere.add(job)
        else:
            self._elsewhere.discard(job)

    def note_all(self) -> None:
        records = self._shared.records
        self._elsewhere = {job for job, state in records.states() if state in IN_FLIGHT}
        for job in self._elsewhere.intersection(self._shared.attempts.by_job):
            self.note(job, records[job])

    def notes(self) -> list[str]:
        return [*self._recovery.notes(), *self._shared.outlets.notes()]

    def _in_flight(self) -> list[tuple[str, Record]]:
        chosen, records = self._shared.options.jobs, self._shared.records
        jobs = self._elsewhere if chosen is None else self._elsewhere & chosen
        return [(job, records[job]) for job in sorted(jobs)]


def _finding(record: Record, ended: Ended | None, *, is_known: bool) -> str:
    """What a dry run says of the attempt of a dead dispatcher; `is_known`: this pod has its outlet."""
    gone = f"its pod {record.pod} is gone"
    if not is_known:
        return f"it is {record.state} in outlet {record.outlet}; {gone}"
    if ended is None:
        return f"it is {record.state}; {gone}, any pod will record how it ends"
    if ended.is_done:
        return f"it is done; {gone}, so a start would record it"
    how = "without an exit status" if ended.exit_code is None else f"with exit status {ended.exit_code}"
    return f"it has ended {how}; {gone}, so a start would record that first"
