"""One pass of the loop: record what has ended and claim what comes next, in one transaction; then start it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from dispatcher.base import files
from dispatcher.base.messages import counted
from dispatcher.errors import LockLostError
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import CANNOT_START, PREEMPTED, QUEUE_LIMIT
from dispatcher.outlets.bundle import time_limit_s
from dispatcher.pod.adding import Adding
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.claiming import Claimer
from dispatcher.pod.code_copies import CodeCopies
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.ends_on_disk import EndsOnDisk
from dispatcher.pod.fence import Fence
from dispatcher.pod.gpu_idle import IdleGpus
from dispatcher.pod.offers import offers_of_others, published
from dispatcher.pod.options import PodOptions
from dispatcher.pod.pod_outlets import PodOutlets
from dispatcher.pod.queue_limits import QueueLimits
from dispatcher.pod.recording import Recorder, is_current, is_forgotten
from dispatcher.pod.recover import Found, Recovery
from dispatcher.pod.running_attempts import RunningAttempt, RunningAttempts
from dispatcher.pod.script_lock import ScriptLock
from dispatcher.pod.starting import Claimed, Starter
from dispatcher.pod.status_problem import StatusProblem
from dispatcher.pod.summary import EndCounts, still_running, stopped_early_text
from dispatcher.pod.waiting import Reason, root_causes, summary
from dispatcher.provenance.collector import Collector
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store, Transaction

# Where an attempt runs is recorded with the next transaction, or by itself when none comes in this time.
_PLACEMENT_DELAY_S: Final = 0.02
# How long the end of a pod waits for the records of what its last attempts ran from.
_LAST_RECORDS_S: Final = 3.0
# How long nothing is claimed after an attempt that could not be started because of the storage.
_STORAGE_PAUSE_S: Final = 2.0
# How often a pod that starts tries its first transaction where the lock is lost on the way.
_START_TRIES: Final = 3


class Reconciler:
    """Brings the attempts of one pod and the run state in step, one `reconcile` at a time.

    `show_claims` brings the status file up to date.
    """

    def __init__(
        self,
        store: Store,
        config: CurrentConfig,
        options: PodOptions,
        outlets: PodOutlets,
        observer: Observer,
        log: Callable[[str], None],
        show_claims: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._config = config
        self._options = options
        self._observer = observer
        self._outlets = outlets
        self._log = log
        self._show_claims = show_claims
        self._attempts = RunningAttempts(config.now.layout, outlets, outlets.without_slots)
        self._fence = Fence(config.now.layout, options.pod, observer.pod_is_alive, log)
        self._copies = CodeCopies(config.now.layout, log)
        if options.addition is not None and options.addition.code:
            self._copies.there.add(options.addition.code)
        self._backlog = Backlog(store, config, options, outlets, self._attempts, self._fence, self._copies, log)
        self._claimer = Claimer(options, outlets, self._backlog, self._fence)
        self._collector = Collector(config.now.layout)
        self._starter = Starter(
            config,
            options.pod,
            outlets,
            self._attempts,
            self._backlog.request_of,
            self._copies.use,
            log,
            self._collector.note,
        )
        self._tally = EndCounts()
        self._adding = Adding(options, outlets, self._backlog)
        self._recorder = Recorder(store, config, outlets.place, self.entries, log)
        self._on_disk = EndsOnDisk(config.now.layout, log)
        # After an attempt that could not be started because of the storage.
        self._claims_from_s = 0.0
        self._recovery = Recovery(
            config.now.layout, options.pod, outlets, observer, outlets.for_orphans, outlets.name_for_orphan
        )
        self._queue_limits = QueueLimits(config, options.pod, observer, self._backlog.offer, self._outlets_with_room)
        self._idle_gpus = IdleGpus(config, self._backlog.entry)
        self._status_problem = StatusProblem(store, log)
        path = config.now.script_lock
        self._script_lock = None if path is None else ScriptLock(path, config.now.layout.root, log)
        # The last line of the journal with a claim that the script must be shown.
        self._claimed_at = 0
        self._something_changed = True
        self._shown_slots: list[SlotInfo] = []

    def begin(self, note_start: Callable[[Transaction], None] = lambda _: None) -> None:
        """Read everything, queue what is new, find the own running attempts again.

        `note_start` writes into the first transaction.
        """
        self._write_start(note_start)
        self._follow_config()
        self._backlog.follow_manifest()
        self._backlog.adopt()

    def _follow_config(self) -> None:
        if self._backlog.follow_config():
            self._outlets.follow(self._config.now)

    def _write_start(self, note_start: Callable[[Transaction], None]) -> None:
        """The first transaction may wait for what a dead holder of the lock has left, and so lose the lock itself."""
        for last in (*[False] * (_START_TRIES - 1), True):
            try:
                with self._store.transaction() as tx:
                    note_start(tx)
                return
            except LockLostError:
                if last:
                    raise

    @property
    def is_adding(self) -> bool:
        """Whether new jobs are still to be queued."""
        return bool(self._adding)

    def reconcile(self, *, claiming: bool, poll_is_due: bool) -> int:
        """Record endings and, when `claiming`, take new entries; how many were started.

        `poll_is_due`: the poll interval is over, so the manifest and the attempts of dead dispatchers are checked too.
        """
        backlog = self._backlog
        # New jobs are claimed at once or not at all: a pod that drains queues none.
        adding = bool(self._adding) and claiming
        self._claimer.is_incomplete = False
        ended = self._on_disk.own(self._attempts.collect())
        found = self._on_disk.found()
        changed = poll_is_due or self._something_changed or backlog.has_unread
        if changed:
            self._store.refresh()
            backlog.sync()
            backlog.report_pause()
            self._follow_config()
            backlog.follow_manifest(thoroughly=poll_is_due)
            # Where one of these has failed, all of them are due again.
            self._something_changed = False
        if claiming:
            backlog.follow_copies()
            backlog.read_attempt_entries()
        if poll_is_due:
            found = self._on_disk.found(self._recovery.find(backlog.in_flight_elsewhere()))
            self._take_back_late()
        self._carry_out_desired(poll_is_due=poll_is_due)
        self._stop_idle()
        self._attempts.release(ended)
        if any(one.ended is not None and one.ended.is_passing for one in ended):
            # The storage has no room or does not answer: the next job would not start either.
            self._claims_from_s = time.monotonic() + _STORAGE_PAUSE_S
        claiming = claiming and time.monotonic() >= self._claims_from_s
        if adding and self._adding.must_wait():
            return 0
        if claiming:
            backlog.external.check_ignored_files()
        # What has ended may be what others wait for, so only the transaction itself can tell what is ready then.
        claiming = claiming and not (self._claimer.has_enough or backlog.external.problem or self._script_waits())
        claiming = claiming and self._has_free_slots()
        if changed or (claiming and backlog.has_ready()):
            backlog.follow_templates()
        claiming = claiming and (bool(ended or found or adding) or backlog.has_ready())
        if claiming:
            for outlet in self._outlets.values():
                outlet.refresh_capacity()
        idle = self._idle_gpus.news(self._attempts, self._store.fold, time.time())
        has_news = bool(ended or found or idle or adding or self._copies.has_news)
        if not (has_news or claiming or self._placements_are_due() or self._is_edited()):
            return 0
        if not claiming or self._script_lock is None:
            return self._transact(ended, found, claiming, adding)
        with self._script_lock.held() as is_held:
            claims = self._transact(ended, found, is_held, adding)
            if claims:
                self._claimed_at = self._store.seq
                self._script_lock.keep()
        self._claimer.is_incomplete |= not is_held
        self.show_claims_to_script()
        return claims

    def stop_all(self) -> None:
        """Stop every attempt and put its entry back."""
        self._attempts.stop(self._attempts, PREEMPTED)

    def record_rest(self, *, leaving: bool) -> None:
        """Record what is not recorded yet; `leaving`: attempts run on without this dispatcher."""
        if not leaving:
            self.reconcile(claiming=False, poll_is_due=False)
            # Else these jobs would get the code of a later time.
            while self._copies.has_news:
                self.reconcile(claiming=False, poll_is_due=False)
        elif self._attempts.unrecorded():
            with self._store.transaction() as tx:
                for attempt in self._attempts:
                    self._recorder.placement(tx, attempt)

    def close(self) -> None:
        """Record what the last attempts ran from, and end what is under way beside the attempts."""
        self._copies.close()
        self._on_disk.close()
        self._collector.close(_LAST_RECORDS_S)

    def note_change(self) -> None:
        """A watched file has changed: the next `reconcile` looks at all of them."""
        self._something_changed = True

    def show_claims_to_script(self) -> None:
        """Write new claims into the status file; the script's lock is kept until they are there."""
        if self._script_lock is not None and self._script_waits():
            self._show_claims()
            if self._store.projected >= self._claimed_at:
                self._script_lock.release()

    def release_script_lock(self) -> None:
        """Before the end: the script cannot wait for a process that is gone."""
        if self._script_lock is not None:
            self._script_lock.release()

    def report_problems(self, *, at_once: bool = False) -> None:
        """Report what is wrong with the status file, when that is due."""
        self._status_problem.report_when_due(at_once=at_once)

    def running(self) -> dict[str, int]:
        """The jobs whose attempts run here or wherever this pod has sent them, with the attempts' numbers."""
        return {one.key.job_id: one.key.number for one in self._attempts if one.has_begun and one.ended is None}

    def entries(self) -> Mapping[str, Entry]:
        """Those of the manifest in force, and of submitted jobs."""
        return self._backlog.manifest.entries

    def files_to_watch(self) -> list[Path]:
        """The files whose changes `note_change` is to be called for; new templates may join them at any time."""
        return [self._backlog.manifest.path, *self._config.files(), *self._backlog.startable.templates()]

    def wait_fds(self) -> list[int]:
        """Descriptors that become readable when an attempt has news."""
        return [*self._attempts.wait_fds(), *self._copies.wait_fds(), *self._on_disk.wait_fds()]

    def wants_changes(self, *, claiming: bool) -> bool:
        """Whether a change of a watched file matters now: attempts can be stopped, and free slots filled."""
        return bool(self._attempts) or (claiming and self._has_free_slots())

    def due_in_s(self, *, claiming: bool) -> float | None:
        """Seconds until `reconcile` is due although nothing has happened; None when never."""
        if self._on_disk.has_news or any(
            one.ended is not None and not self._on_disk.holds(one.key) for one in self._attempts
        ):
            return 0.0
        waits = [self._status_problem.due_in_s(), self._attempts.due_in_s(), self._on_disk.due_in_s()]
        if self._attempts.unrecorded():
            waits.append(_PLACEMENT_DELAY_S)
        if claiming:
            waits += [self._retry_in_s(), self._room_in_s(), self._copies.due_in_s()]
            if self._backlog.has_ready() and self._claims_from_s > time.monotonic():
                waits.append(self._claims_from_s - time.monotonic())
            waits.append(self._backlog.attempt_entries_due_in_s())
        return min((max(0.0, wait_s) for wait_s in waits if wait_s is not None), default=None)

    def has_more_to_do(self) -> bool:
        """Whether `reconcile` is to be called again before anything else: slots are free that it could not fill.

        An attempt that has ended by itself meanwhile does not count: short jobs would keep the status file from being
        written for as long as there are any.
        """
        unstarted = (one.ended is not None and one.ended.exit_reason == CANNOT_START for one in self._attempts)
        return self._claimer.is_incomplete or self._backlog.has_unread or self._copies.has_news or any(unstarted)

    def is_idle(self) -> bool:
        """Whether no attempt is in flight."""
        return not self._attempts

    def is_up_to_date(self) -> bool:
        """Whether each attempt was accepted or refused, and no outlet has anything under way that could be news."""
        if self._adding or self._claimer.is_incomplete or self._copies.is_busy or self._on_disk.is_busy:
            return False
        if any(one.ended or not one.is_answered for one in self._attempts):
            return False
        return all(outlet.is_up_to_date() for outlet in self._outlets.with_orphans())

    def is_finished(self) -> bool:
        """Whether the pod ends by itself: `--max-jobs` are claimed, or with `--until-empty` nothing is left for it."""
        if self._claimer.has_enough:
            return True
        is_empty = bool(self._backlog.external.problem) or self._backlog.queue.is_finished(_now())
        return self._options.until_empty and is_empty and not self._attempts.unrecorded()

    def exit_code(self) -> int:
        """0 when all that this pod was to run is done, or left to others that can; else 1."""
        is_stopped = bool(self.too_many_failures() or self._stopped_early())
        is_left = bool(self._stuck()) or any(not why.other_takes for why in self._refused().values())
        return int(self._tally.failed > 0 or is_stopped or is_left)

    def too_many_failures(self) -> str:
        """Why this pod is to drain, because so many jobs have failed; empty when it is not."""
        return self._backlog.failures.why_stop()

    def opening_lines(self) -> list[str]:
        """The slots and the entries of a pod that begins, then what looks wrong with its options."""
        manifest = self._backlog.manifest
        slots = " and ".join(filter(None, (outlet.describe() for outlet in self._outlets.values())))
        lines = [f"{slots}; {manifest.name}: {manifest.counts()}", *manifest.warnings()]
        return [*lines, *self._backlog.unmet.warnings]

    def closing_lines(self) -> list[str]:
        """What a pod that ends by itself leaves behind, and why."""
        if self._options.once:
            return [*self._not_claimed(), *self._recovery.notes(), *self._outlets.notes()]
        lines = []
        if self._claimer.has_enough:
            lines.append(f"ended after --max-jobs {self._options.max_jobs}; others may take the rest")
        queue, stuck = self._backlog.queue, self._stuck()
        waiting = queue.waiting(_now())
        why = summary(root_causes([waiting.why(job) for job in stuck]))
        records = self._store.records
        early = (
            stopped_early_text(queue.unfinished, stuck, records, self._why_no_claims()) if self._stopped_early() else ""
        )
        if early:
            lines += [early, *([f"{len(stuck)} of these cannot run now: {why}"] if stuck else [])]
        elif stuck:
            lines.append(f"ended with {counted(len(stuck), 'job')} left that cannot run now: {why}")
        refused = self._refused()
        if refused:
            why = summary(reason.text for reason in refused.values())
            lines.append(f"{counted(len(refused), 'job')} left that this pod cannot run: {why}")
        return lines

    def summary(self) -> str:
        """How the attempts ended that this pod has recorded, what goes on without it, and which ends it must leave."""
        ended = self.unrecorded_ends()
        running = len(self._attempts) - ended
        parts = [self._tally.text()]
        if running:
            parts.append(f"{counted(running, 'job keeps', 'jobs keep')} running")
        if ended:
            parts.append(f"{counted(ended, 'end')} not recorded: a pod of this workspace finds them")
        return "; ".join(parts)

    def unrecorded_ends(self) -> int:
        """The number of attempts that have ended, which could not be recorded yet."""
        return sum(attempt.ended is not None for attempt in self._attempts)

    def still_running(self) -> list[str]:
        """What is in flight and how long it may take, where that is known; the first line has it in brief."""
        return still_running(self._attempts, self._store.records, self._limit_s, time.time())

    def in_flight(self) -> int:
        """The number of attempts in flight."""
        return len(self._attempts)

    def slots_changed(self) -> bool:
        """Whether the slots are otherwise than `describe` last had them."""
        return self._attempts.slot_infos() != self._shown_slots

    def offered(self) -> dict[str, Any]:
        """The fields of the pod's file that say what it takes."""
        return published(self._backlog.offer())

    def describe(self) -> dict[str, Any]:
        """The fields of the pod's file that say what it takes and what it runs."""
        self._shown_slots = self._attempts.slot_infos()
        warnings = [*self._attempts.notes(), *(note for outlet in self._outlets.values() for note in outlet.notes())]
        return {
            **self.offered(),
            "stopped": self._why_no_claims(),
            "blocked": self._fence.shown(),
            "slots": self._shown_slots,
            "pending": self._attempts.pending(),
            "notes": [*self._notes(), *warnings],
            "warnings": warnings,
            "matrix": os.fspath(self._backlog.manifest.path),
        }

    def _transact(self, ended: list[RunningAttempt], found: list[Found], claiming: bool, adding: bool) -> int:
        claims: list[Claimed] = []
        attempts = list(self._attempts)
        try:
            with self._store.transaction() as tx:
                for attempt in attempts:
                    self._recorder.placement(tx, attempt)
                lines = self._idle_gpus.record(tx, self._idle_gpus.news(attempts, self._store.fold, time.time()))
                lines += [self._recorder.end(tx, one.key, one.ended) for one in ended if one.ended]
                lines += [self._recorder.found(tx, one) for one in found]
                self._copies.record(tx)
                self._backlog.sync()
                if claiming and self._config.has_changed():
                    # A job that was requeued after a correction must run with it.
                    self._something_changed = self._claimer.is_incomplete = True
                    adding = claiming = False
                if adding:
                    self._adding.append(self._store, tx)
                if claiming and not self._why_no_claims():
                    claims = self._claimer.claim(tx)
                if adding:
                    self._adding.hold_rest(tx)
        except BaseException:
            # Nothing has happened: what has ended stays to be recorded, what was chosen is still queued.
            self._claimer.roll_back()
            self._copies.roll_back()
            self._recorder.roll_back()
            self._backlog.sync()
            raise
        if self._claimer.found:
            # Those of this pod's name hold slots.
            self._backlog.sync()
            self._backlog.adopt({job for job, lost in self._claimer.found.items() if lost.runs})
        if adding:
            self._adding.commit()
        self._tally.add(tx.lines)
        self._claimer.commit()
        self._copies.commit()
        for attempt in attempts:
            attempt.mark_recorded()
        self._attempts.drop(ended)
        self._on_disk.commit(ended, found)
        for line in filter(None, lines):
            self._log(line)
        self._recorder.commit()
        self._backlog.report_pause()
        self._starter.start(claims)
        upcoming = self._backlog.queue.upcoming() if claims else []
        if upcoming:
            self._store.prepare_claims(upcoming, len(claims))
        return len(claims)

    def _limit_s(self, job: str) -> float | None:
        entry = self._backlog.entry(job)
        return None if entry is None else time_limit_s(entry, self._config.now.method(entry.method)) or None

    def _carry_out_desired(self, *, poll_is_due: bool) -> None:
        """Stop what people want stopped, and kill what is no longer its job's current attempt.

        `poll_is_due`: files are looked for. Thousands may be in flight, and each short job wakes the loop.
        """
        for attempt in self._attempts:
            if attempt.ended is not None:
                continue
            job, number = attempt.key.job_id, attempt.key.number
            record = self._store.records.get(job)
            if record is not None and record.force and is_current(record, number):
                self._attempts.kill(attempt, record.rev)
            elif attempt.is_stopping:
                continue
            elif record is None or is_forgotten(record, number):
                # The journal has gone back: nobody has taken the job over. With its record comes its claim.
                if record is not None:
                    attempt.mark_forgotten()
            elif not is_current(record, number) or (poll_is_due and files.is_there(attempt.paths.superseded)):
                by_whom = "is superseded" if is_current(record, number) else "was taken over by another pod"
                self._log(f"{job} (attempt {number}) {by_whom}: killing it")
                self._attempts.kill(attempt)
            elif record is not None and record.desired is not None:
                self._attempts.stop([attempt])

    def _stop_idle(self) -> None:
        """Stop attempts that have left their GPUs idle for longer than their methods let them."""
        for attempt, reason in self._idle_gpus.to_stop(self._attempts):
            self._log(f"{attempt.key.job_id} (attempt {attempt.key.number}): {reason}: stopping it")
            self._attempts.stop([attempt], reason)

    def _take_back_late(self) -> None:
        """Cancel what waits too long in a queue, and what another outlet can take."""
        entries, records = self._backlog.manifest.entries, self._store.records
        for attempt in self._queue_limits.over(self._attempts, entries, records, time.time()):
            job, number = attempt.key.job_id, attempt.key.number
            self._log(f"{job} (attempt {number}) waits too long in the queue of {attempt.outlet}: withdrawn")
            self._attempts.stop([attempt], QUEUE_LIMIT)

    def _outlets_with_room(self) -> list[str]:
        return [name for name, outlet in self._outlets.items() if not outlet.capacity.is_full]

    def _why_no_claims(self) -> str:
        """Why this pod claims nothing, whatever is free; empty when it does."""
        unreadable = self._script_lock is not None and self._store.problem is not None
        problem = self._backlog.external.problem
        if (unreadable or self._script_waits()) and not problem:
            # A claim that cannot be shown there is one that the script does not know of.
            return f"{self._config.now.layout.status_file} cannot be updated, and a script relies on it"
        return problem or self.too_many_failures()

    def _script_waits(self) -> bool:
        """Whether the script's lock is kept for claims that could not be shown to it yet."""
        return self._script_lock is not None and self._script_lock.is_kept

    def _is_edited(self) -> bool:
        identity = self._store.status_identity()
        return identity not in (self._store.expected_projection, self._store.examined)

    def _has_free_slots(self) -> bool:
        """Whether some outlet has room, or may have when it is asked to look."""
        outlets = self._outlets.values()
        return any(not outlet.capacity.is_full or outlet.capacity_due_in_s() == 0.0 for outlet in outlets)

    def _placements_are_due(self) -> bool:
        now = time.monotonic()
        return any(now - attempt.claimed_s >= _PLACEMENT_DELAY_S for attempt in self._attempts.unrecorded())

    def _retry_in_s(self) -> float | None:
        """Seconds until an entry that waits for its retry can be claimed."""
        retry_at = self._backlog.queue.next_retry(_now())
        return None if retry_at is None else datetime.fromisoformat(retry_at).timestamp() - time.time()

    def _room_in_s(self) -> float | None:
        """Seconds until an outlet may find room for what is ready."""
        waits = [wait_s for outlet in self._outlets.values() if (wait_s := outlet.capacity_due_in_s()) is not None]
        return min(waits) if waits and (self._adding or self._backlog.has_ready()) else None

    def _stopped_early(self) -> bool:
        return self._options.until_empty and bool(self._backlog.external.problem)

    def _not_claimed(self) -> list[str]:
        """Why jobs that were to be submitted are still queued; of a pod without slots there are none."""
        if not self._outlets:
            return []
        waiting, records = self._backlog.queue.waiting(_now()), self._store.records
        wanted = [job for job in sorted(self._options.jobs or ()) if job in records]
        queued = [job for job in wanted if records[job].state is State.QUEUED]
        return [*self._adding.held, *(f"{job} was not submitted: {waiting.why(job).text}" for job in queued)]

    def _stuck(self) -> list[str]:
        return self._backlog.queue.stuck(_now()) if self._options.until_empty else []

    def _refused(self) -> dict[str, Reason]:
        """The jobs that are left because this pod can never run them, and why; or which other pod takes them."""
        refused = self._backlog.queue.refused() if self._options.until_empty else []
        if not refused:
            return {}
        matrix = os.fspath(self._backlog.manifest.path)
        found = offers_of_others(self._config.now.layout, self._options.pod, self._observer.pod_is_alive)
        waiting = self._backlog.queue.waiting(_now(), [offer for info, offer in found if info.matrix == matrix])
        return {job: waiting.why(job) for job in refused}

    def _notes(self) -> list[str]:
        notes = (
            self._backlog.host_note,
            self._backlog.external.problem,
            self._backlog.manifest.problem,
            *self._config.notes(),
            self._backlog.startable.note,
            self._status_problem.reported,
            *self._backlog.limit_notes(),
            *self._fence.notes(),
            *self._queue_limits.notes(),
            *self._recovery.notes(),
            *self._on_disk.notes(),
            *self._outlets.notes(),
        )
        return [note for note in notes if note]


def _now() -> str:
    return now_text(time.time())
