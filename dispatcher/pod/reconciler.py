"""One turn of the loop: record what has ended and claim what comes next, in one transaction; then start it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from dispatcher.base.host import host_name
from dispatcher.config import Config
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import PREEMPTED, Request, Slot
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.outlets.local import processes
from dispatcher.outlets.local.gpu_monitor import GpuMonitor, gpus_paused_here
from dispatcher.pod.claim import Choice, ClaimQueue
from dispatcher.pod.complaint import StatusComplaint
from dispatcher.pod.current_manifest import CurrentManifest
from dispatcher.pod.fence import Fence
from dispatcher.pod.offers import Offer, own_offer, published, request_of
from dispatcher.pod.options import PodOptions
from dispatcher.pod.recording import Recorder, gpu_indices, is_current
from dispatcher.pod.recover import Found, Recovery, claimed_here
from dispatcher.pod.running_attempts import Flight, Flights
from dispatcher.pod.script_lock import ScriptLock
from dispatcher.pod.startable import Startable
from dispatcher.pod.unwatched import Unwatched
from dispatcher.pod.waiting import summary
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.fold import Pause, host_scope
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.states import IN_FLIGHT, State
from dispatcher.run_state.store import Store, Transaction
from dispatcher.workspace import AttemptPaths

# A job that is blocked gives its slot to the next one at once, and is tried again after this time; many that are
# blocked at once (by permissions, say) so much later that few of them are looked at in a second.
_BLOCKED_AGAIN_S: Final = 5.0
_LONGEST_BLOCKED_S: Final = 300.0
_BLOCKED_A_SECOND: Final = 20
# How many blocked jobs one transaction may come across: each costs a look at the disk under the lock.
_MOST_BLOCKED: Final = 20


class Turn:
    """What one pod knows and does between two waits."""

    def __init__(
        self, store: Store, config: Config, options: PodOptions, gpus: GpuMonitor, say: Callable[[str], None]
    ) -> None:
        self.store = store
        self.config = config
        self.options = options
        self.gpus = gpus
        self.capacities = {LOCAL: gpus.capacity}
        self.say = say
        self.flights = Flights(config, options.pod)
        self.recovery = Recovery(
            config,
            options.pod,
            trust_locks=lambda: store.lock_kind == "flock",
            look_every_s=options.poll_interval_s or config.poll_interval_s,
        )
        self.manifest = CurrentManifest(options.matrix or config.matrix, store, say)
        self.startable = Startable(config, say)
        self.something_changed = True
        self._record = Recorder(store, config, self._entry, say)
        self._fence = Fence(config.layout, options.pod, self.recovery.pod_is_alive, say)
        self._elsewhere: set[str] = set()
        self.unwatched = Unwatched(config, say)
        # Whether there is a new manifest whose entries are not all queued yet.
        self._replaced = False
        # Whether entries of the manifest have lost their records, to be queued anew.
        self._forgotten = False
        self._claims = 0
        self._shown_slots: list[SlotInfo] = []
        path = config.script_lock
        self._script_lock = None if path is None else ScriptLock(path, config.layout.root, say)
        # Brings the status file up to date.
        self.show_claims: Callable[[], None] = lambda: None
        # The last line of the journal with a claim that the script must be shown.
        self._claimed_at = 0
        # Whether the last turn left blocked jobs behind without reaching the others.
        self._came_short = False
        self.complaint = StatusComplaint(store, say)
        # Why nothing is claimed on this host, as it was last said.
        self._host_note = ""

    def begin(self) -> None:
        """Read everything, queue what is new, find the own running attempts again."""
        with self.store.transaction():
            pass
        self._follow_manifest()
        self._adopt()

    def _adopt(self) -> None:
        """A dispatcher that restarts under its name on its host finds its running jobs again.

        Only those of which a process is seen here: what has ended meanwhile, or lives elsewhere, is recovery's to tell.
        """
        for job in list(self._elsewhere):
            record = self.store.records[job]
            paths = self.config.layout.attempt(job, record.attempt)
            mine = record.pod == self.options.pod and record.attempt > 0 and claimed_here(paths)
            if not mine or not processes.first_of(paths.directory):
                continue
            slot = Slot(tuple(sorted(gpu_indices(record))))
            self.capacities[LOCAL].adopt(slot)
            flight = self.flights.adopt(job, record, slot)
            self._elsewhere.discard(job)
            self.say(f"found {job} (attempt {flight.number}) again")

    def _follow_manifest(self) -> None:
        """Take in a manifest that was replaced, and queue anew what people have forgotten."""
        self._replaced |= self.manifest.read()
        if self._replaced:
            self._check_entries()
            self.manifest.queue_new()
            self._rebuild_queue()
            self._replaced = False
        elif self._forgotten:
            self.manifest.queue_new()
            self._sync()
        self._forgotten = False

    def _follow_templates(self) -> None:
        """Take in templates and environments that were mended, and those that were broken before jobs fail by them."""
        if self.startable.has_changed():
            self._check_entries()
            self.queue.recheck(self.startable.unusable_methods)

    def _check_entries(self) -> None:
        """Look at what those entries need that this pod was not told to leave."""
        offer = self.offer()
        self.startable.check(entry for entry in self.manifest.entries.values() if offer.excludes(entry) is None)

    def _rebuild_queue(self) -> None:
        entries = self.manifest.entries
        self.queue = ClaimQueue(entries, self.offer(), self.capacities, self._request_of, self.startable.fault)
        # All records are looked at anew, also those that others changed while new entries were queued.
        self.store.fold.drain_touched()
        self._elsewhere = {job for job, record in self.store.records.items() if record.state in IN_FLIGHT}
        self._elsewhere.difference_update(self.flights.by_job)
        self.unwatched.look_at_all(self.store.records)
        for job in entries:
            self.queue.update(job, self.store.records.get(job))
        for need in self.queue.needed_elsewhere():
            self.queue.update(need, self.store.records.get(need))
        self._reloads = self.store.reloads

    def offer(self) -> Offer:
        """What this pod takes."""
        return own_offer(self.options, self.capacities, self.startable.unusable_methods)

    def published_offer(self) -> dict[str, Any]:
        """What this pod takes, as its file says it."""
        stopped = self._why_no_claims()
        return {**published(self.offer()), "stopped": stopped, "blocked": self._fence.shown()}

    def _why_no_claims(self) -> str:
        """Why this pod claims nothing, whatever is free; empty when it does."""
        unreadable = self._script_lock is not None and self.store.problem is not None
        if (unreadable or self._script_waits()) and not self.unwatched.complaint:
            # A claim that cannot be shown there is one that the script does not know of.
            return f"{self.config.layout.status_file} cannot be brought up to date, and a script goes by it"
        return self.unwatched.complaint

    def _request_of(self, entry: Entry) -> Request:
        return request_of(self.config, entry)

    def _entry(self, job: str) -> Entry | None:
        return self.manifest.entries.get(job)

    def take(self, *, claiming: bool, look_around: bool) -> int:
        """Record endings and, when `claiming`, take new entries; how many were started.

        `look_around`: the poll interval is over; look for a new manifest, and after attempts of dead dispatchers.
        """
        self._came_short = False
        ended = self.flights.collect()
        found: list[Found] = []
        changed = look_around or self.something_changed
        if changed:
            self.something_changed = False
            self.store.refresh()
            self._sync()
            self._follow_manifest()
        if look_around:
            others = sorted(self._elsewhere | self.unwatched.jobs)
            found = self.recovery.look([(job, self.store.records[job]) for job in others])
        self._carry_out_desired()
        self.flights.enforce_limits()
        for flight in ended:
            self._release(flight)
        # What has ended may be what others wait for, so only the transaction itself can tell what is ready then.
        claiming = claiming and not (self.enough() or self.unwatched.complaint or self._script_waits())
        claiming = claiming and self.has_free_slots()
        if changed or (claiming and self.queue.has_ready(self._now())):
            self._follow_templates()
        claiming = claiming and (bool(ended or found) or self.queue.has_ready(self._now()))
        if claiming:
            self.gpus.refresh(self.flights.is_ours)
        if not (ended or found or claiming or self._pids_are_due() or self._is_edited()):
            return 0
        if not claiming or self._script_lock is None:
            return self._transact(ended, found, claiming)
        with self._script_lock.held() as is_held:
            claims = self._transact(ended, found, is_held)
            if claims:
                self._claimed_at = self.store.seq
                self._script_lock.keep()
        self._came_short |= not is_held
        self.show_claims_to_script()
        return claims

    def show_claims_to_script(self) -> None:
        """Write new claims into the status file; the script's lock is kept until they stand there."""
        if self._script_lock is not None and self._script_waits():
            self.show_claims()
            if self.store.projected >= self._claimed_at:
                self._script_lock.give_back()

    def give_script_lock_back(self) -> None:
        """Before the end: whoever comes next cannot wait for this process."""
        if self._script_lock is not None:
            self._script_lock.give_back()

    def _script_waits(self) -> bool:
        """Whether the script's lock is kept for claims that could not be shown to it yet."""
        return self._script_lock is not None and self._script_lock.is_kept

    def _transact(self, ended: list[Flight], found: list[Found], claiming: bool) -> int:
        choices: list[tuple[Choice, int, AttemptPaths]] = []
        taken: list[Choice] = []
        flights = list(self.flights.by_job.values())
        try:
            with self.store.transaction() as tx:
                for flight in flights:
                    self._record.pid(tx, flight)
                endings = [self._record.end(tx, f.job, f.number, f.ending) for f in ended if f.ending]
                endings += [self._record.found(tx, one) for one in found]
                self._sync()
                if claiming and not self._why_no_claims():
                    choices = self._claim(tx, taken)
        except BaseException:
            # Nothing has happened: what has ended stays to be recorded, what was chosen is still queued.
            self._give_back(taken)
            self._sync()
            raise
        for flight in flights:
            flight.pid_recorded = flight.pid is not None
        for flight in ended:
            self.flights.drop(flight)
        for line in filter(None, endings):
            self.say(line)
        for choice, number, paths in choices:
            self._start(choice, number, paths)
        return len(choices)

    def _claim(self, tx: Transaction, taken: list[Choice]) -> list[tuple[Choice, int, AttemptPaths]]:
        """Choose and claim until no slot is free or nothing is ready; `taken` lists what holds a slot meanwhile."""
        claimed: list[tuple[Choice, int, AttemptPaths]] = []
        blocked = 0
        while blocked < _MOST_BLOCKED:
            chosen = self.queue.choose(self._now(), self._limit(len(claimed)))
            taken += chosen
            if not chosen:
                return claimed
            for choice in chosen:
                passed = self._claim_one(tx, choice)
                if passed is None:
                    blocked += 1
                    taken.remove(choice)
                    self.capacities[choice.outlet].release(choice.slot)
                    again_s = blocked_again_s(len(self._fence.blocked))
                    self.queue.postpone(choice.entry.job_id, now_text(time.time() + again_s))
                else:
                    claimed.append((choice, *passed))
        self._came_short = True
        return claimed

    def _claim_one(self, tx: Transaction, choice: Choice) -> tuple[int, AttemptPaths] | None:
        """Claim one entry; its number and its directory, None when it is blocked."""
        job = choice.entry.job_id
        record = tx.record(job)
        passed = self._fence.pass_through(tx, job, (record.attempt if record else 0) + 1)
        if passed is None:
            return None
        gpus = choice.slot.gpus
        change = Change(
            state=State.RUNNING,
            pod=self.options.pod,
            pid=None,
            gpu=None if not gpus else gpus[0] if len(gpus) == 1 else gpus,
            started_at=tx.at,
            attempt=passed[0],
            ran_with=choice.entry.digest(),
            host=host_name(),
            finished_at=None,
            exit_code=None,
            reason=None,
            error=None,
            retry_at=None,
            desired=None,
        )
        tx.change(job, Event.CLAIMED, change)
        return passed

    def _start(self, choice: Choice, number: int, paths: AttemptPaths) -> None:
        entry = choice.entry
        flight = self.flights.start(entry, number, choice.slot, paths)
        self._claims += 1
        where = self.capacities[choice.outlet].slot_text(choice.slot)
        if flight.ending is not None:
            self.say(f"cannot start {entry.job_id} (attempt {number}): {flight.ending.error}")
        else:
            self.say(f"start {entry.job_id} (attempt {number}) on {where}, pid {flight.pid}")

    def _release(self, flight: Flight) -> None:
        """Free the slot of an attempt that has ended, once, however often its end must be recorded."""
        if not flight.released:
            flight.released = True
            self.capacities[LOCAL].release(flight.slot)

    def _give_back(self, choices: list[Choice]) -> None:
        for choice in choices:
            self.capacities[choice.outlet].release(choice.slot)
            self.queue.put_back(choice.entry.job_id)

    def record_pids(self) -> None:
        """Record the pids of attempts that run on without this dispatcher."""
        if self.has_unrecorded_pids():
            with self.store.transaction() as tx:
                for flight in self.flights.by_job.values():
                    self._record.pid(tx, flight)

    def _sync(self) -> None:
        """Bring the queue up to date with the records that have changed."""
        if self.store.reloads != self._reloads:
            self._rebuild_queue()
        for job in self.store.fold.drain_touched():
            record = self.store.records.get(job)
            self.queue.update(job, record)
            self._fence.unblock(job)
            self._forgotten |= record is None and self._entry(job) is not None
            # A claim of ours that was never started counts too: the lock may have failed after it was written.
            if record is not None and record.state in IN_FLIGHT and job not in self.flights.by_job:
                self._elsewhere.add(job)
            else:
                self._elsewhere.discard(job)
            self.unwatched.update(job, record)
        pauses = self.store.fold.pauses
        self.queue.pause(pauses)
        self._note_host_pause(pauses.get(host_scope(host_name())))
        self.gpus.hold({**self.unwatched.taken_gpus(self.store.records), **gpus_paused_here(pauses)})

    def _note_host_pause(self, pause: Pause | None) -> None:
        note = "" if pause is None else f"no claims: {pause.scope} is paused since {pause.at}: {pause.why}"
        if note != self._host_note:
            self._host_note = note
            self.say(
                f"{note}. Continue with `dispatcher unpause {pause.scope}`" if pause else "this host may claim again"
            )

    def _carry_out_desired(self) -> None:
        """Stop what people want stopped, and kill what is no longer the entry's current attempt."""
        for flight in self.flights.by_job.values():
            if flight.ending is not None:
                continue
            record = self.store.records.get(flight.job)
            if not is_current(record, flight.number) or flight.paths.superseded.exists():
                if not flight.stopping:
                    self.say(f"{flight.job} (attempt {flight.number}) belongs to somebody else now: killing it")
                    flight.stopping = "superseded"
                    self.flights.kill(flight)
            elif record is not None and record.desired is not None:
                self.flights.stop(flight, "")

    def stop_all(self) -> None:
        """Stop every attempt and put its entry back."""
        for flight in self.flights.by_job.values():
            self.flights.stop(flight, PREEMPTED)

    def _is_edited(self) -> bool:
        identity = self.store.status_identity()
        return identity not in (self.store.expected_projection, self.store.examined)

    def _now(self) -> str:
        return now_text(time.time())

    def _limit(self, claimed: int) -> int | None:
        return None if self.options.max_jobs is None else self.options.max_jobs - self._claims - claimed

    def enough(self) -> bool:
        """Whether `--max-jobs` have been claimed."""
        return self.options.max_jobs is not None and self._claims >= self.options.max_jobs

    def has_free_slots(self) -> bool:
        has_room = any(not capacity.is_full for capacity in self.capacities.values())
        return has_room or self.gpus.due_in_s() == 0.0

    def can_claim_more(self) -> bool:
        """Whether another turn at once would claim again (an attempt could not be started, say)."""
        return self._came_short or any(flight.ending is not None for flight in self.flights.by_job.values())

    def has_unrecorded_pids(self) -> bool:
        return any(f.pid is not None and not f.pid_recorded for f in self.flights.by_job.values())

    def _pids_are_due(self) -> bool:
        now = time.monotonic()
        waiting = (f for f in self.flights.by_job.values() if f.pid is not None and not f.pid_recorded)
        return any(now - flight.started_s >= 0.02 for flight in waiting)

    def next_retry_in_s(self) -> float | None:
        """Seconds until an entry that waits for its retry, or a GPU that was busy, is worth a look."""
        waits = []
        retry_at = self.queue.next_retry(self._now())
        if retry_at is not None:
            waits.append(datetime.fromisoformat(retry_at).timestamp() - time.time())
        busy_s = self.gpus.due_in_s()
        if busy_s is not None and self.queue.has_ready(self._now()):
            waits.append(busy_s)
        return max(0.0, min(waits)) if waits else None

    def is_finished(self) -> bool:
        is_finished = bool(self.unwatched.complaint) or self.queue.is_finished(self._now())
        return is_finished and not self.has_unrecorded_pids()

    def exit_code(self) -> int:
        """1 when an entry that this pod could run has failed for good or cannot go on, else 0."""
        return int(self._record.failures > 0 or bool(self._stuck() or self._stopped_early()))

    def last_words(self) -> list[str]:
        """What a pod that ends by itself leaves behind, and why."""
        said = []
        if self.enough():
            said.append(f"ended after --max-jobs {self.options.max_jobs}; others may take the rest")
        now = self._now()
        stuck = self._stuck()
        waiting = self.queue.waiting(now)
        if stuck:
            why = summary(reason.root or reason.text for reason in map(waiting.why, stuck))
            said.append(f"ended with {_entries(len(stuck))} left that cannot go on now: {why}")
        refused = self.queue.refused() if self.options.until_empty else []
        if refused:
            why = summary(waiting.why(job).text for job in refused)
            said.append(f"{_entries(len(refused))} left that this pod cannot run: {why}")
        return said

    def _stopped_early(self) -> bool:
        return self.options.until_empty and bool(self.unwatched.complaint)

    def _stuck(self) -> list[str]:
        return self.queue.stuck(self._now()) if self.options.until_empty else []

    def slots_changed(self) -> bool:
        """Whether the slots are otherwise than `slot_infos` last said."""
        return self._slots_now() != self._shown_slots

    def slot_infos(self) -> list[SlotInfo]:
        self._shown_slots = self._slots_now()
        return self._shown_slots

    def _slots_now(self) -> list[SlotInfo]:
        jobs: dict[int | None, list[str]] = {}
        for flight in self.flights.by_job.values():
            for index in flight.slot.gpus or (None,):
                jobs.setdefault(index, []).append(f"{flight.job}/{flight.number}")
        return self.gpus.slot_infos(jobs)

    def notes(self) -> list[str]:
        notes = (
            self._host_note,
            self.unwatched.complaint,
            self.manifest.complaint,
            self.startable.note,
            self.complaint.said,
            *self._fence.notes(),
        )
        return [note for note in notes if note]

    def describe_slots(self) -> str:
        slots = self.gpus.capacity
        parts = [f"GPUs {','.join(map(str, slots.gpus))}"] if slots.gpus else []
        if slots.cpu_slots:
            parts.append("1 CPU slot" if slots.cpu_slots == 1 else f"{slots.cpu_slots} CPU slots")
        return " and ".join(parts)


def blocked_again_s(blocked: int) -> float:
    """After what time one of so many blocked jobs is tried again."""
    return min(max(_BLOCKED_AGAIN_S, blocked / _BLOCKED_A_SECOND), _LONGEST_BLOCKED_S)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
