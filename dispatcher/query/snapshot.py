"""The state of a workspace at one moment, as data. All tables are made from it."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.times import Clock
from dispatcher.matrix.entries import Entries
from dispatcher.matrix.entry import OWNER, SCHEDULING, Entry
from dispatcher.matrix.limits import Limits
from dispatcher.matrix.needs import dependents
from dispatcher.outlets.base import Request
from dispatcher.pod.offers import Offer
from dispatcher.pod.placing import stays
from dispatcher.pod.waiting import UNKNOWN_JOB, as_written, no_copy, no_fault, no_limit
from dispatcher.query.inputs import Newer, find_newer
from dispatcher.query.ran import LAST_COUNTS, RanWith, differences, last_counts, may_differ
from dispatcher.run_state.external import Presence
from dispatcher.run_state.facets.pauses import Pause
from dispatcher.run_state.facets.refusals import Refusal
from dispatcher.run_state.liveness import PodInfo, clock_ahead_s
from dispatcher.run_state.progress import Progress, elapsed_s
from dispatcher.run_state.records import ByState, Records
from dispatcher.run_state.states import FIELD_NAMES, IN_FLIGHT, Record, State


def _stated_request(entry: Entry) -> Request:
    return Request(gpus=entry.gpus)


# So many jobs are compared in the time in which the digest of one is taken from its entry.
_SHARE: Final = 30
# Of so many results it is looked at whether they are there: after a power cut it is the last ones that may be lost.
_LOOKED_AT: Final = 200


def _compared(snapshot: Snapshot) -> Sequence[str]:
    return snapshot.compare()


def _none_lost(_: str, __: Record) -> str:
    return ""


def _none_stalled(_: Snapshot) -> Mapping[str, float]:
    return {}


class PodStatus(msgspec.Struct, frozen=True):
    """A pod of the workspace, running or not.

    `beat_at_s` is when its last heartbeat was written, in seconds since 1970 by the clock of the file server: only for
    display. `silent_s`: for how long it has shown no heartbeat, where that is much longer than it may take (silence.py)
    and nothing proves that it is dead.
    """

    info: PodInfo
    is_alive: bool
    is_draining: bool = False
    beat_at_s: float | None = None
    silent_s: float | None = None

    @property
    def clock_ahead_s(self) -> float:
        """By how much the clock of its host is ahead of the file server's."""
        return clock_ahead_s(self.info, self.beat_at_s)

    @property
    def is_at_work(self) -> bool:
        """Whether it is alive and shows it: only such a pod gives jobs its slots."""
        return self.is_alive and self.silent_s is None

    @property
    def state(self) -> str:
        """`running`, `draining`, `silent`, `ended` or `dead`."""
        if self.info.phase == "ended":
            return "ended"
        if not self.is_alive:
            return "dead"
        if self.silent_s is not None:
            return "silent"
        return "draining" if self.is_draining else self.info.phase


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The state of a workspace. `records` has every job of the run state and of the default manifest.

    records: in the order of the manifest, then jobs that it does not have.
    entries: the manifest's entry of each job that some manifest has.
    now_s: seconds since 1970, by the clock of the file server where that of this host is off.
    edited: jobs whose record includes a hand edit that no dispatcher has applied yet.
    unqueued: jobs that only the manifest has.
    refusals: hand edits that were refused and are not settled yet (query/refusals.py).
    gpu_idle: running jobs whose GPUs have been at 0 % for longer than they may be, and for how many seconds.
    external: running jobs that no dispatcher started, and whether their process exists.
    problem: what is wrong with the status file; None when nothing is.
    obstacle: why no pod can record a claim; empty when nothing is known to prevent it.
    untold: notices that people may not have got, in words.
    unknown_job: why a record has no entry.
    request_of: what an attempt of an entry asks for.
    fault_of: why no pod could start an entry; empty when it can be started.
    on_move: what becomes of an entry where its checkpoint is not seen.
    longest_pause_s: the longest automatic pause before the next attempt.
    wants_copy: whether attempts of an entry run a copy of the code.
    limits: how many attempts of which jobs may be in flight at once.
    ran: what attempts ran with.
    offers: what the live pods take.
    last_offer: where no pod is alive, what the outlets of the one that ended last offered, whatever its options were.
    clock: how texts write times; see `for_people`.
    find_changed, find_newer, find_stalled: find what `changed`, `newer_inputs` and `stalled` return.
    lost_result_of: what has become of a done job's result that was there; empty where nothing shows that it is lost.
    """

    records: Mapping[str, Record]
    entries: Mapping[str, Entry]
    now_s: float
    edited: frozenset[str] = frozenset()
    unqueued: frozenset[str] = frozenset()
    progress: Mapping[str, Progress] = {}
    pauses: Mapping[str, Pause] = {}
    refusals: tuple[Refusal, ...] = ()
    pods: tuple[PodStatus, ...] = ()
    offers: tuple[Offer, ...] = ()
    last_offer: Offer | None = None
    problem: str | None = None
    obstacle: str = ""
    gpu_idle: Mapping[str, float] = {}
    external: Mapping[str, Presence] = {}
    unknown_job: str = UNKNOWN_JOB
    warnings: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    request_of: Callable[[Entry], Request] = _stated_request
    fault_of: Callable[[Entry], str] = no_fault
    on_move: Callable[[Entry], str] = stays
    longest_pause_s: Callable[[Entry, Record], float] = no_limit
    wants_copy: Callable[[Entry], bool] = no_copy
    limits: Limits = Limits()
    ran: RanWith | None = None
    clock: Callable[[str | None], str] = as_written
    find_changed: Callable[[Snapshot], Sequence[str]] = _compared
    find_newer: Callable[[Snapshot], Newer] = find_newer
    find_stalled: Callable[[Snapshot], Mapping[str, float]] = _none_stalled
    lost_result_of: Callable[[str, Record], str] = _none_lost

    def elapsed_s(self, record: Record) -> float | None:
        """For how long the attempt runs or ran, by the clock of its pod's host; None when a time is unknown."""
        return elapsed_s(record, self.now_s + self._ahead_s.get(record.pod or "", 0.0))

    @functools.cached_property
    def _ahead_s(self) -> Mapping[str, float]:
        """By how much the clocks of pods' hosts are ahead."""
        return {pod.info.pod: pod.clock_ahead_s for pod in self.pods}

    def entry(self, job: str) -> Entry | None:
        """The entry that a job's values are taken from.

        For a job that runs or has ended it is what the last attempt ran with; for one that will run (again), the
        manifest's entry. If one of the two is missing, the other is used.
        """
        listed, record = self.entries.get(job), self.records.get(job)
        if self.ran is None or record is None or (listed is not None and not last_counts(record)):
            return listed
        return self.ran.last(job, record, listed) or listed

    def last_ran(self, job: str) -> Entry | None:
        """What the job's last attempt ran with; None when it has not run or its attempt has no `entry.json`."""
        return self.ran.last(job, self.records[job], self.entries.get(job)) if self.ran is not None else None

    @functools.cached_property
    def changed(self) -> Sequence[str]:
        """The jobs that run or have ended with other parameters than the manifest has now."""
        return self.find_changed(self)

    @functools.cached_property
    def newer_inputs(self) -> Newer:
        """The jobs that are older than jobs that they need, and these, each with its attempt (inputs.py)."""
        return self.find_newer(self)

    def needs(self) -> Iterator[tuple[str, Sequence[str]]]:
        """The jobs that need others by the manifests, each with these."""
        if isinstance(self.entries, Entries):
            return self.entries.needs()
        return ((job, entry.needs) for job, entry in self.entries.items() if entry.needs)

    def downstream(self, jobs: Iterable[str]) -> list[str]:
        """The jobs that need some of these, directly or through others; not through one that was given up."""
        found = dict.fromkeys(jobs)
        count, waiting, needing = len(found), list(found), dependents(dict(self.needs()))
        while waiting:
            for job in needing.get(waiting.pop(), ()):
                record = self.records.get(job)
                if job not in found and record is not None and record.state is not State.ABANDONED:
                    found[job] = None
                    waiting.append(job)
        return list(found)[count:]

    def compare(self) -> list[str]:
        """What `changed` returns, found by comparing all jobs."""
        jobs, digests = self.by_state.ran_with(LAST_COUNTS)
        if isinstance(self.entries, Entries) and len(jobs) * _SHARE > len(self.entries):
            # Of a large matrix most digests are at hand: only where they differ, more is asked.
            jobs = list(itertools.compress(jobs, map(operator.ne, digests, self.entries.digests(jobs))))
        return [job for job in jobs if self.differs(job)]

    def differs(self, job: str) -> bool:
        """Whether a job runs or has ended with other parameters than the manifest has now."""
        record = self.records[job]
        # To find the entry costs more than to see that it is not needed.
        if self.ran is None or not may_differ(record):
            return False
        return self.ran.differs(job, record, self.entries.get(job))

    def differences(self, job: str) -> list[dict[str, Any]]:
        """One row per key in which what the job's last attempt ran with differs from the manifest (ran.py)."""
        ran, listed = self.last_ran(job), self.entries.get(job)
        return differences(ran, listed) if ran is not None and listed is not None else []

    def value(self, job: str, key: str) -> Any:
        """The value of `key` in the job's entry, otherwise in its record; None when neither has it."""
        if key == OWNER:
            return self.owner(job)
        entry = self.entries.get(job) if key in SCHEDULING else None
        entry = entry or self.entry(job)
        record = self.records.get(job)
        if entry is not None and record is not None and key == "time_limit":
            entry = entry.limited_to(record.time_limit)
        if entry is not None and key != "priority":
            value = entry.value(key)
            if value is not None:
                return value
        if key == "job_id":
            return job
        if record is None:
            return None
        if key == "priority":
            return self.priority(job)
        return getattr(record, key) if key in FIELD_NAMES else record.extra.get(key)

    def owner(self, job: str) -> str | None:
        """The user whose job it is; None where neither its record nor a manifest says that.

        Of a job that runs or has ended, who owned it when its attempt was claimed; of others, whom its entry names,
        else the owner of the manifest's file.
        """
        record, listed = self.records.get(job), self.entries.get(job)
        ran_for = record.user if record is not None else None
        if ran_for is not None and record is not None and (listed is None or last_counts(record)):
            return ran_for
        return listed.user if listed is not None else None

    def priority(self, job: str) -> int:
        """The priority set in the record, otherwise the entry's. Higher is claimed first."""
        record, entry = self.records.get(job), self.entries.get(job)
        stated = entry.priority if entry else 0
        return record.priority_or(stated) if record else stated

    def waits_for(self, job: str) -> str | None:
        """What the outlet of a submitted job tells of why it has not begun; None when it does not."""
        record = self.records[job]
        if record.state is not State.SUBMITTED:
            return None
        pod = next((one for one in self.pods if one.info.pod == record.pod and one.is_alive), None)
        return None if pod is None else pod.info.pending.get(job)

    def method(self, job: str) -> str | None:
        entry = self.entry(job)
        return None if entry is None else entry.method

    def kinds(self, jobs: Iterable[str]) -> Iterator[int]:
        """For each job the same number as for others with entries of its kind (see kind_of); 0 where none is known."""
        return self.entries.kinds(jobs) if isinstance(self.entries, Entries) else itertools.repeat(0)

    def kinds_in(self, *states: State) -> Iterator[int]:
        """The kinds of `jobs_in(*states)`."""
        entries = self.entries
        if not isinstance(entries, Entries) or not all(map(operator.eq, entries.of_kinds(), self.records)):
            return self.kinds(self.jobs_in(*states))
        # Where the records begin with all these jobs in their order, none is looked up.
        return itertools.compress(
            itertools.chain(entries.all_kinds(), itertools.repeat(0)), self.by_state.flags(states)
        )

    def methods(self, jobs: Sequence[str]) -> Mapping[str | None, int]:
        """How many of these jobs each method has in the manifests; None: of jobs that no manifest lists."""
        # Of each kind one job is asked, for all of them.
        kinds = list(itertools.islice(self.kinds(jobs), len(jobs)))
        counts, examples = Counter(kinds), dict(zip(kinds, jobs, strict=True))
        asked = [(examples[kind], count) for kind, count in counts.items() if kind]
        if counts[0]:
            asked += [(job, 1) for job, kind in zip(jobs, kinds, strict=True) if not kind]
        methods = Counter[str | None]()
        for job, count in asked:
            entry = self.entries.get(job)
            methods[None if entry is None else entry.method] += count
        return methods

    def only(self, jobs: Mapping[str, Record]) -> Snapshot:
        """The same snapshot with only these jobs. Needs, pods and pauses still refer to all jobs."""
        # What is usual for a method is learned from all of its jobs.
        return msgspec.structs.replace(
            self,
            records=jobs,
            gpu_idle={job: idle_s for job, idle_s in self.gpu_idle.items() if job in jobs},
            external={job: found for job, found in self.external.items() if job in jobs},
            edited=frozenset(job for job in self.edited if job in jobs),
            refusals=tuple(refusal for refusal in self.refusals if refusal.job in jobs),
            find_changed=lambda only: [job for job in self.changed if job in only.records],
            # What it needs may be none of these jobs.
            find_newer=lambda only: {job: newer for job, newer in self.newer_inputs.items() if job in only.records},
            find_stalled=lambda only: {j: s for j, s in self.stalled.items() if j in only.records},
        )

    def for_people(self, *, utc: bool = False) -> Snapshot:
        """The same snapshot, whose reasons and notices have local times, or those of UTC."""
        shown = msgspec.structs.replace(self, clock=Clock(self.now_s, utc))
        # What was found out about the jobs holds for both.
        shown.__dict__.update(self.__dict__)
        return shown

    @functools.cached_property
    def stalled(self) -> Mapping[str, float]:
        """Running jobs that have reported nothing for longer than usual, and for how long in seconds (stalls.py)."""
        return self.find_stalled(self)

    @functools.cached_property
    def lost_results(self) -> Sequence[str]:
        """Of the jobs that were done last, as many as can be looked at each time, those whose results are lost."""
        jobs = self.latest(State.DONE, _LOOKED_AT)
        return [job for job in reversed(jobs) if self.lost_result(job)]

    def lost_result(self, job: str) -> str:
        """What has become of the job's result that was there; empty where nothing shows that it is lost."""
        return self.lost_result_of(job, self.records[job])

    @functools.cached_property
    def by_state(self) -> ByState:
        records = self.records if isinstance(self.records, Records) else Records.of(self.records)
        return records.by_state()

    def jobs_in(self, *states: State) -> Sequence[str]:
        """The jobs in one of these states, in the order of `records`."""
        return self.by_state.jobs(states)

    def latest(self, state: State, most: int) -> Sequence[str]:
        """The jobs in this state that changed last, the last one first."""
        return self.by_state.latest(state, most)

    def in_flight(self) -> Sequence[str]:
        return self.jobs_in(*IN_FLIGHT)
