"""One turn of the loop: record what has ended and claim what comes next, in one transaction; then start it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime

from dispatcher.config import Config
from dispatcher.contract import EXIT_DONE
from dispatcher.errors import ManifestError
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import Manifest, load_manifest
from dispatcher.pod import outcome
from dispatcher.pod.claim import Choice, ClaimQueue, Filter
from dispatcher.pod.fence import Fence
from dispatcher.pod.flights import Flight, Flights, judge
from dispatcher.pod.gpu_pool import GpuPool
from dispatcher.pod.launch import gpus_of
from dispatcher.pod.options import PodOptions
from dispatcher.pod.outcome import Ending, Policy
from dispatcher.pod.recover import Found, Recovery
from dispatcher.pod.slots import Slot
from dispatcher.run_state import life
from dispatcher.run_state.fold import tripped
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.life import SlotInfo
from dispatcher.run_state.states import IN_FLIGHT, Record, State
from dispatcher.run_state.store import Store, Transaction
from dispatcher.workspace import AttemptPaths

# New entries are queued in portions, so that nobody waits long for the lock.
_PORTION = 5_000


class Turn:
    """What one pod knows and does between two waits."""

    def __init__(
        self, store: Store, config: Config, options: PodOptions, gpus: GpuPool, say: Callable[[str], None]
    ) -> None:
        self.store = store
        self.config = config
        self.options = options
        self.gpus = gpus
        self.say = say
        self.flights = Flights(config, options.pod)
        self.recovery = Recovery(
            config,
            options.pod,
            trust_locks=lambda: store.lock_kind == "flock",
            look_every_s=options.poll_interval_s or config.poll_interval_s,
        )
        self.manifest_path = options.matrix or config.matrix
        self.something_changed = True
        self._fence = Fence(config.layout, options.pod, self.recovery.pod_is_alive)
        self._manifest: Manifest | None = None
        self._manifest_identity: tuple[int, int, int] | None = None
        self._elsewhere: set[str] = set()
        # Whether entries of the manifest have lost their records, to be queued anew.
        self._forgotten = False
        self._claims = 0
        self._failures = 0
        self._shown_slots: list[SlotInfo] = []
        self._complaint = ""
        self._status_complaint: str | None = None

    # Beginning.

    def begin(self) -> None:
        """Read everything, queue what is new, find the own running attempts again."""
        with self.store.transaction():
            pass
        self._read_manifest()
        for job, record in self.store.records.items():
            if record.state in IN_FLIGHT:
                self._elsewhere.add(job)
        self._adopt()

    def _adopt(self) -> None:
        """A dispatcher that restarts under its name on its host finds its running jobs again."""
        for job in list(self._elsewhere):
            record = self.store.records[job]
            paths = self.config.layout.attempt(job, record.attempt)
            mine = record.pod == self.options.pod and record.host == life.host_name() and record.attempt > 0
            if not mine or not paths.directory.is_dir():
                continue
            indices = record.gpu if isinstance(record.gpu, tuple) else () if record.gpu is None else (record.gpu,)
            entry = self._entry(job)
            flight = self.flights.adopt(job, record, self.gpus.slots.adopt(indices), entry.method if entry else "")
            self._elsewhere.discard(job)
            self.say(f"found {job} (attempt {flight.number}) again")

    # The manifest.

    def _read_manifest(self) -> bool:
        """Load the manifest when it has changed; a broken one is reported and the old one stays in force."""
        try:
            found = self.manifest_path.stat()
            identity = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError as error:
            if self._manifest is None:
                raise ManifestError(str(self.manifest_path), [f"cannot be read: {error.strerror}"]) from None
            return False
        if identity == self._manifest_identity:
            return False
        try:
            manifest = load_manifest(self.manifest_path, self.store.records.keys())
        except ManifestError as error:
            if self._manifest is None:
                raise
            self._manifest_identity = identity
            self._complaint = f"{self.manifest_path.name} is broken, the manifest of before stays in force: {error}"
            self.say(f"warning: {self._complaint}")
            return False
        self._manifest, self._manifest_identity, self._complaint = manifest, identity, ""
        self._queue_new(manifest)
        self._rebuild_queue()
        return True

    def _queue_new(self, manifest: Manifest) -> None:
        new = [job for job in manifest.entries if job not in self.store.records]
        for start in range(0, len(new), _PORTION):
            with self.store.transaction() as tx:
                for job in new[start : start + _PORTION]:
                    if tx.record(job) is None:
                        tx.change(job, "queued", {"state": State.QUEUED})

    def _rebuild_queue(self) -> None:
        assert self._manifest is not None
        only = Filter(self.options.methods, self.options.where)
        self.queue = ClaimQueue(
            self._manifest.entries, only, self.gpus.slots, lambda entry: gpus_of(self.config, entry)
        )
        self.store.fold.drain_touched()
        for job in self._manifest.entries:
            self.queue.update(job, self.store.records.get(job))
        for need in self.queue.needed_elsewhere():
            self.queue.update(need, self.store.records.get(need))
        self._reloads = self.store.reloads

    def _entry(self, job: str) -> Entry | None:
        return self._manifest.entries.get(job) if self._manifest is not None else None

    # One turn.

    def take(self, *, claiming: bool, look_around: bool) -> int:
        """Record endings and, when `claiming`, take new entries; how many were started.

        `look_around`: the poll interval is over; look for a new manifest, and after attempts of dead dispatchers.
        """
        ended = self.flights.collect()
        found: list[Found] = []
        if look_around or self.something_changed:
            self.something_changed = False
            self.store.refresh()
            self._sync()
            if not self._read_manifest() and self._forgotten and self._manifest is not None:
                self._queue_new(self._manifest)
                self._sync()
            self._forgotten = False
        if look_around:
            found = self.recovery.look([(job, self.store.records[job]) for job in sorted(self._elsewhere)])
        self._carry_out_wishes()
        for flight in ended:
            self._release(flight)
        # What has ended may be what others wait for, so only the transaction itself can tell what is ready then.
        claiming = claiming and not self.enough() and self.has_free_slots()
        claiming = claiming and (bool(ended or found) or self.queue.has_ready(self._now()))
        if claiming:
            self.gpus.look(self.flights.is_ours)
        if not (ended or found or claiming or self._pids_are_due() or self._is_edited()):
            return 0
        return self._transact(ended, found, claiming)

    def _transact(self, ended: list[Flight], found: list[Found], claiming: bool) -> int:
        choices: list[tuple[Choice, int, AttemptPaths]] = []
        taken: list[Choice] = []
        flights = list(self.flights.by_job.values())
        try:
            with self.store.transaction() as tx:
                for flight in flights:
                    self._record_pid(tx, flight)
                endings = [self._record_end(tx, f.job, f.number, f.ending, f.slot) for f in ended if f.ending]
                endings += [self._record_found(tx, one) for one in found]
                self._sync()
                if claiming:
                    taken = self.queue.choose(self._now(), self._limit())
                    choices = self._claim(tx, taken)
        except BaseException:
            # Nothing has happened: what has ended stays to be recorded, what was chosen is still queued.
            self._give_back(taken)
            self._sync()
            raise
        for flight in flights:
            flight.pid_recorded = flight.pid is not None
        for flight in ended:
            del self.flights.by_job[flight.job]
        for line in filter(None, endings):
            self.say(line)
        claimed = {choice.entry.job_id for choice, _, _ in choices}
        self._give_back([choice for choice in taken if choice.entry.job_id not in claimed])
        for choice, number, paths in choices:
            self._start(choice, number, paths)
        return len(choices)

    def _claim(self, tx: Transaction, choices: list[Choice]) -> list[tuple[Choice, int, AttemptPaths]]:
        claimed = []
        for choice in choices:
            job = choice.entry.job_id
            record = tx.record(job)
            passed = self._fence.pass_through(tx, job, (record.attempt if record else 0) + 1)
            if passed is None:
                continue
            number, paths = passed
            gpus = choice.slot.gpus
            fields = {
                "state": State.RUNNING,
                "pod": self.options.pod,
                "pid": None,
                "gpu": None if not gpus else gpus[0] if len(gpus) == 1 else list(gpus),
                "started_at": tx.at,
                "attempt": number,
                "host": life.host_name(),
                "finished_at": None,
                "exit_code": None,
                "reason": None,
                "error": None,
                "retry_at": None,
                "want": None,
            }
            tx.change(job, "claimed", fields)
            claimed.append((choice, number, paths))
        return claimed

    def _start(self, choice: Choice, number: int, paths: AttemptPaths) -> None:
        entry = choice.entry
        flight = self.flights.start(entry, number, choice.slot, paths)
        self._claims += 1
        where = "gpu " + ",".join(map(str, choice.slot.gpus)) if choice.slot.gpus else "cpu"
        if flight.ending is not None:
            self.say(f"cannot start {entry.job_id} (attempt {number}): {flight.ending.error}")
        else:
            self.say(f"start {entry.job_id} (attempt {number}) on {where}, pid {flight.pid}")

    def _release(self, flight: Flight) -> None:
        """Free the slot of an attempt that has ended, once, however often its end must be recorded."""
        if not flight.released:
            flight.released = True
            self.gpus.slots.release(flight.slot)

    def _give_back(self, choices: list[Choice]) -> None:
        for choice in choices:
            self.gpus.slots.release(choice.slot)
            self.queue.put_back(choice.entry.job_id)

    # Recording.

    def _record_pid(self, tx: Transaction, flight: Flight) -> None:
        record = tx.record(flight.job)
        if flight.pid is not None and not flight.pid_recorded and _is_current(record, flight):
            tx.change(flight.job, "started", {"pid": flight.pid})

    def _record_end(self, tx: Transaction, job: str, number: int, ending: Ending, slot: Slot) -> str:
        """Record how an attempt ended, unless it is not the entry's current one any more; a line for people."""
        record = tx.record(job)
        if record is None or record.state not in IN_FLIGHT or record.attempt != number:
            return f"{job} (attempt {number}) has ended, but is not the current attempt any more: not recorded"
        entry = self._entry(job)
        event, fields = outcome.after(ending, record, self._policy(entry), time.time())
        scopes = self._scopes(entry, slot)
        counted = event in ("done", "failed", "retried") and ending.reason not in (outcome.PREEMPTED, outcome.LOST)
        tx.change(job, event, fields, data=scopes if counted else None)
        if counted and event != "done":
            self._trip(tx, scopes.values())
        self._failures += event == "failed"
        state = fields["state"]
        detail = f": {ending.reason}" if ending.reason else ""
        if ending.error and ending.exit_code != EXIT_DONE:
            detail += f": {ending.error}"
        return f"{event if event == state else f'{event} ({state})'} {job} (attempt {number}){detail}"

    def _record_found(self, tx: Transaction, found: Found) -> str:
        record = tx.record(found.job)
        if record is None or record.attempt != found.attempt or record.state not in IN_FLIGHT:
            return ""
        ending = judge(found.ended, self.config.layout.attempt(found.job, found.attempt).log)
        gpus = record.gpu if isinstance(record.gpu, tuple) else () if record.gpu is None else (record.gpu,)
        line = self._record_end(tx, found.job, found.attempt, ending, Slot(gpus))
        return f"{line} (of pod {record.pod}, which is gone)"

    def _trip(self, tx: Transaction, scopes: object) -> None:
        fold = self.store.fold
        for scope in list(scopes):  # type: ignore[call-overload]
            why = tripped(fold.streaks[scope], scope) if scope in fold.streaks else None
            if why is not None and scope not in fold.pauses:
                tx.note("paused", {"scope": scope, "why": why})
                self.say(f"paused {scope}: {why}. `dispatcher resume {scope}` goes on")

    def _scopes(self, entry: Entry | None, slot: Slot) -> dict[str, str]:
        scopes = {"method": entry.method} if entry is not None else {}
        if len(slot.gpus) == 1:
            scopes["gpu"] = f"gpu:{life.host_name()}:{slot.gpus[0]}"
        return scopes

    def _policy(self, entry: Entry | None) -> Policy:
        if entry is None:
            return Policy(max_returns=self.config.max_returns)
        method = self.config.method(entry.method)
        return Policy(
            retries=method.retries if entry.retries is None else entry.retries,
            retry_on=method.retry_on if entry.retry_on is None else entry.retry_on,
            backoff_s=method.backoff_s,
            max_returns=self.config.max_returns,
        )

    def record_pids(self) -> None:
        """Record the pids of attempts that run on without this dispatcher."""
        if self.has_unrecorded_pids():
            with self.store.transaction() as tx:
                for flight in self.flights.by_job.values():
                    self._record_pid(tx, flight)

    # Keeping up.

    def _sync(self) -> None:
        """Bring the queue up to date with the records that have changed."""
        if self.store.reloads != self._reloads:
            self._rebuild_queue()
            self._elsewhere = {job for job, record in self.store.records.items() if record.state in IN_FLIGHT}
            self._elsewhere.difference_update(self.flights.by_job)
        for job in self.store.fold.drain_touched():
            record = self.store.records.get(job)
            self.queue.update(job, record)
            self._forgotten |= record is None and self._entry(job) is not None
            # A claim of ours that was never started counts too: the lock may have failed after it was written.
            if record is not None and record.state in IN_FLIGHT and job not in self.flights.by_job:
                self._elsewhere.add(job)
            else:
                self._elsewhere.discard(job)
        pauses = self.store.fold.pauses
        self.queue.pause(scope for scope in pauses if not scope.startswith("gpu:"))
        mine = f"gpu:{life.host_name()}:"
        self.gpus.pause({int(s.removeprefix(mine)): p.why for s, p in pauses.items() if s.startswith(mine)})
        if self.store.problem != self._status_complaint:
            self._status_complaint = self.store.problem
            if self.store.problem is not None:
                self.say(f"warning: {self.store.problem}")

    def _carry_out_wishes(self) -> None:
        """Stop what people want stopped, and kill what is no longer the entry's current attempt."""
        for flight in self.flights.by_job.values():
            if flight.ending is not None:
                continue
            record = self.store.records.get(flight.job)
            if not _is_current(record, flight) or flight.paths.superseded.exists():
                if not flight.stopping:
                    self.say(f"{flight.job} (attempt {flight.number}) belongs to somebody else now: killing it")
                    flight.stopping = "superseded"
                    self.flights.kill(flight)
            elif record is not None and record.want is not None:
                self.flights.stop(flight, "")

    def stop_all(self) -> None:
        """Stop every attempt and put its entry back."""
        for flight in self.flights.by_job.values():
            self.flights.stop(flight, outcome.PREEMPTED)

    def _is_edited(self) -> bool:
        identity = self.store.status_identity()
        return identity not in (self.store.expected_projection, self.store.examined)

    def _now(self) -> str:
        return now_text(time.time())

    def _limit(self) -> int | None:
        return None if self.options.max_jobs is None else self.options.max_jobs - self._claims

    # Answers for the loop.

    def enough(self) -> bool:
        """Whether `--max-jobs` have been claimed."""
        return self.options.max_jobs is not None and self._claims >= self.options.max_jobs

    def has_free_slots(self) -> bool:
        return self.gpus.slots.free_cpu > 0 or bool(self.gpus.slots.free_gpus) or self.gpus.will_look_again() == 0.0

    def can_claim_more(self) -> bool:
        """Whether another turn at once would claim again (an attempt could not be started, say)."""
        return any(flight.ending is not None for flight in self.flights.by_job.values())

    def has_unrecorded_pids(self) -> bool:
        return any(f.pid is not None and not f.pid_recorded for f in self.flights.by_job.values())

    def _pids_are_due(self) -> bool:
        now = time.monotonic()
        waiting = (f for f in self.flights.by_job.values() if f.pid is not None and not f.pid_recorded)
        return any(now - flight.started_s >= 0.02 for flight in waiting)

    def next_retry_in_s(self) -> float | None:
        """Seconds until an entry that waits for its retry, or a GPU that was busy, is worth a look."""
        waits = []
        retry_at = self.queue.next_retry()
        if retry_at is not None:
            waits.append(datetime.fromisoformat(retry_at).timestamp() - time.time())
        busy_s = self.gpus.will_look_again()
        if busy_s is not None and self.queue.has_ready(self._now()):
            waits.append(busy_s)
        return max(0.0, min(waits)) if waits else None

    def is_finished(self) -> bool:
        return not self.has_unrecorded_pids() and self.queue.is_finished()

    def exit_code(self) -> int:
        """1 when an entry that this pod could run has failed for good or cannot go on, else 0."""
        return int(self._failures > 0 or (self.options.until_empty and bool(self.queue.unfinished)))

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
        return [note for note in (self._complaint, self.store.problem or "") if note]

    def describe_slots(self) -> str:
        slots = self.gpus.slots
        parts = [f"GPUs {','.join(map(str, slots.gpus))}"] if slots.gpus else []
        if slots.cpu_slots:
            parts.append("1 CPU slot" if slots.cpu_slots == 1 else f"{slots.cpu_slots} CPU slots")
        return " and ".join(parts)

    def counts(self) -> str:
        assert self._manifest is not None
        records = (self.store.records.get(job) for job in self._manifest.entries)
        states = Counter(record.state for record in records if record is not None)
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no entries"


def _is_current(record: Record | None, flight: Flight) -> bool:
    return record is not None and record.state in IN_FLIGHT and record.attempt == flight.number
