"""What there is to do for a pod: its manifest and the queue of its entries, kept in step with the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from dispatcher.base.host import host_name
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Limits
from dispatcher.outlets.base import Outlet, Request
from dispatcher.pod.claim import ClaimQueue
from dispatcher.pod.code_copies import CodeCopies
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.current_manifest import CurrentManifest
from dispatcher.pod.external_jobs import ExternalJobs
from dispatcher.pod.failures import Failed, Failures
from dispatcher.pod.fence import Fence
from dispatcher.pod.in_flight import AttemptEntries, InFlight
from dispatcher.pod.offers import Offer, own_offer, request_of
from dispatcher.pod.options import PodOptions
from dispatcher.pod.outcome import longest_pause_s
from dispatcher.pod.placing import vanishing
from dispatcher.pod.running_attempts import RunningAttempts
from dispatcher.pod.startable import Startable
from dispatcher.pod.unmet import UnmetOptions
from dispatcher.pod.waiting import Facts
from dispatcher.run_state.facets.pauses import Pause, host_scope, unpause_command
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import IN_FLIGHT, Record, State
from dispatcher.run_state.store import Store

# How soon, and how late at most, it is tried again to read what an attempt of another manifest runs with.
_FIRST_READ_S: Final = 0.1
_LONGEST_READ_S: Final = 30.0
_SHOWN: Final = 3


class Backlog:
    """The entries that this pod may claim, and the attempts that others have in flight."""

    def __init__(
        self,
        store: Store,
        config: CurrentConfig,
        options: PodOptions,
        outlets: Mapping[str, Outlet],
        attempts: RunningAttempts,
        fence: Fence,
        copies: CodeCopies,
        log: Callable[[str], None],
    ) -> None:
        # A pod that ends when nothing is left and finds nothing at all was started in error.
        may_be_missing = options.matrix is None and (
            not options.until_empty or store.layout.submitted_manifest.exists()
        )
        path = options.matrix or config.now.matrix
        self.manifest = CurrentManifest(path, store, log, may_be_missing=may_be_missing)
        # Whether there may be submitted jobs whose lines were not read yet, and up to which line of the journal there
        # are none; `_new` are those of them that are known.
        self.has_unread = True
        self._read_at = 0
        self._new: set[str] = set()
        self.unmet = UnmetOptions(options.methods, options.where)
        self.startable = Startable(config.now, log, outlets)
        self.external = ExternalJobs(config.now, (config.now.matrix, path), log, anyway=options.anyway)
        self._store = store
        self._config = config
        self._options = options
        self._outlets = outlets
        self._capacities = {name: outlet.capacity for name, outlet in outlets.items()}
        self._attempts = attempts
        self._fence = fence
        self._copies = copies
        self._log = log
        # Jobs in flight that this pod does not watch.
        self._elsewhere: set[str] = set()
        # Whether there is a new manifest whose entries are not all queued yet; at first there is, even if it is empty.
        self._replaced = True
        # The first line of a pod comes before its warnings.
        self._has_begun = False
        # Whether entries of the manifest have lost their records, to be queued anew.
        self._forgotten = False
        self.failures = Failures(options.max_fails)
        self._in_flight = InFlight(Limits.of(config.now))
        self._attempt_entries = AttemptEntries()
        # What was last reported of the entries of the manifest, and of a pause of this host.
        self._warnings: list[str] = []
        self._reported_pause = ""
        self._next_read_s, self._read_pause_s = 0.0, 0.0

    def entry(self, job: str) -> Entry | None:
        return self.manifest.entries.get(job)

    def offer(self) -> Offer:
        """What this pod takes."""
        problems = self._copies.problems
        return own_offer(self._options, self._capacities, self.startable.unusable_methods, problems)

    def request_of(self, entry: Entry) -> Request:
        """What an attempt of the entry asks for."""
        return request_of(self._config.now, entry, self._options.request)

    def wants_copy(self, entry: Entry) -> bool:
        """Whether attempts of the entry run a copy of the code."""
        return self._config.now.wants_copy(entry.method, entry.snapshot)

    def follow_copies(self) -> None:
        """Have copies of the code made that jobs lack."""
        found = self._copies.work(self.queue.needed_copies, self._store.records)
        if found:
            self.queue.note_copy(found)

    def read_attempt_entries(self) -> None:
        """Find out what attempts of other manifests run with, where limits depend on it; not under the lock."""
        if not self._in_flight.unknown or time.monotonic() < self._next_read_s:
            return
        for job in sorted(self._in_flight.unknown):
            record = self._store.records.get(job)
            if record is not None:
                self._attempt_entries.load(self._store.layout, job, record.attempt)
            self._count(job, record)
        # It is written a moment after the claim.
        pause_s = min(2 * self._read_pause_s or _FIRST_READ_S, _LONGEST_READ_S) if self._in_flight.unknown else 0.0
        self._read_pause_s, self._next_read_s = pause_s, time.monotonic() + pause_s

    def attempt_entries_due_in_s(self) -> float | None:
        """Seconds until `read_attempt_entries` may find more; None when it cannot."""
        return max(0.0, self._next_read_s - time.monotonic()) if self._in_flight.unknown else None

    def limit_notes(self) -> list[str]:
        """What keeps limits from being known."""
        unknown = self._in_flight.unknown if self._read_pause_s >= _LONGEST_READ_S else set()
        return [
            f"max_running: {job} counts in every limit, because its attempt has no readable entry.json"
            for job in sorted(unknown)[:_SHOWN]
        ]

    def has_ready(self) -> bool:
        """Whether some entry is ready, whatever slots there are."""
        return self.queue.has_ready(now_text(time.time()))

    def in_flight_elsewhere(self) -> list[tuple[str, Record]]:
        """The attempts in flight that this pod does not watch, external ones included."""
        jobs, chosen = self._elsewhere | self.external.jobs, self._options.jobs
        return [(job, self._store.records[job]) for job in sorted(jobs if chosen is None else jobs & chosen)]

    def adopt(self, jobs: Collection[str] | None = None) -> None:
        """Watch again what an earlier dispatcher of this pod's name has left in flight, where its outlets can.

        `jobs`: only these. What has ended meanwhile, or lives elsewhere, is found by recovery.
        """
        wanted = self._elsewhere if jobs is None else self._elsewhere.intersection(jobs)
        records = ((job, self._store.records[job]) for job in wanted)
        mine = {job: record for job, record in records if record.pod == self._options.pod and record.attempt > 0}
        for attempt in self._attempts.adopt(mine):
            self._elsewhere.discard(attempt.key.job_id)
            self._log(f"found {attempt.key.job_id} (attempt {attempt.key.number}) again")

    def follow_config(self) -> bool:
        """Take in a configuration that was replaced. Returns whether there is another one."""
        if not self._config.follow():
            return False
        config = self._config.now
        self.startable.follow(config)
        self._in_flight = InFlight(Limits.of(config))
        # As with another manifest, everything is decided anew.
        self._replaced = True
        return True

    def follow_manifest(self, *, thoroughly: bool = True) -> None:
        """Take in a manifest that was replaced, and queue anew the entries whose records people have deleted.

        Submitted jobs are taken in too; `thoroughly`: also where people have edited their file.
        """
        is_new = self.manifest.read()
        self._replaced |= is_new
        added = self._read_submitted(thoroughly=thoroughly)
        if is_new:
            self._warn_of_unmet_options()
        self._has_begun = True
        if self._replaced:
            self._warn_of_entries()
            self._check_entries()
            self.manifest.queue_new()
            self._rebuild_queue()
            self._replaced = False
        else:
            # Should this fail, all jobs are looked at the next time, or these would be missing from then on.
            self._replaced = bool(added)
            self._take_in(added)
            self._replaced = False
            if self._forgotten:
                self.manifest.queue_new()
                self.sync()
        self._forgotten = False

    def follow_submitted(self) -> None:
        """Take in jobs that were submitted, if there are any, and no other changes of files."""
        self._take_in(self._read_submitted(thoroughly=False))

    def follow_templates(self) -> None:
        """Take in templates and environments that were mended, and those that were broken before jobs fail by them."""
        if self.startable.has_changed():
            self._check_entries()
            self.queue.recheck(self.startable.unusable_methods)

    def sync(self) -> None:
        """Bring the queue up to date with the records that have changed."""
        store = self._store
        if store.reloads != self._reloads:
            self._rebuild_queue()
            # A journal that has gone back may lack records.
            self._forgotten = True
        for job in store.fold.drain_touched():
            record = store.records.get(job)
            if job not in self.manifest.entries:
                # A submitted job that was deleted; one of another manifest may get its name.
                self.queue.forget(job)
            self._count(job, record)
            self.failures.note(job, record, is_mine=self.queue.may_claim(job))
            self.queue.update(job)
            self._fence.unblock(job)
            self._forgotten |= record is None and self.manifest.requeues(job)
            if record is not None and record.ad_hoc and (store.records.born(job) or 0) > self._read_at:
                self._new.add(job)
                self.has_unread = True
            # A claim of ours that was never started counts too: the lock may have failed after it was written.
            if record is not None and record.state in IN_FLIGHT and job not in self._attempts.by_job:
                self._elsewhere.add(job)
            else:
                self._elsewhere.discard(job)
            self.external.update(job, record)
        pauses = store.fold.pauses
        self.queue.pause(pauses)
        self._hold(pauses.values())

    @property
    def host_note(self) -> str:
        """Why this host is paused; empty when it is not."""
        pause = self._store.fold.pauses.get(host_scope(host_name()))
        return "" if pause is None else f"no claims: {pause.scope} is paused: {pause.why}"

    def report_pause(self) -> None:
        """Log that this host is paused, or may claim again. Outside a transaction, which may not be committed."""
        note = self.host_note
        if note == self._reported_pause:
            return
        self._reported_pause = note
        command = unpause_command(host_scope(host_name()))
        self._log(f"{note}. Continue with `{command}`" if note else "this host may claim again")

    def _warn_of_entries(self) -> None:
        """Limits on keys that no entry has, and checkpoints on disks that vanish."""
        entries = self.manifest.entries.values()
        warnings = [*self._in_flight.limits.unknown(entries), *vanishing(self._config.now, entries, self._outlets)]
        for text in warnings if warnings != self._warnings else ():
            self._log(f"warning: {text}")
        self._warnings = warnings

    def _warn_of_unmet_options(self) -> None:
        news = self.unmet.check(self.manifest.name, self.manifest.entries)
        for warning in news if self._has_begun else ():
            self._log(warning)

    def _read_submitted(self, *, thoroughly: bool) -> tuple[str, ...]:
        """The jobs that were submitted since the last look."""
        if not (self.has_unread or thoroughly):
            return ()
        read_at = self._store.seq
        news = self.manifest.read_submitted(thoroughly=thoroughly)
        self._read_at, self.has_unread = read_at, False
        new, self._new = self._new, set()
        self._replaced |= news.is_rewritten or not new.issuperset(news.replaced)
        # A line that was read before its record counts only now.
        jobs = dict.fromkeys((*news.added, *sorted(new)))
        return tuple(job for job in jobs if self.manifest.is_submitted(job))

    def _take_in(self, jobs: tuple[str, ...]) -> None:
        """Add jobs to the queue; how much work that is does not depend on how many there are already."""
        if not jobs:
            return
        entries = self.manifest.entries
        offer = self.offer()
        mine = [entry for job in jobs if offer.excludes(entry := entries[job]) is None]
        if self.startable.knows(mine):
            self.startable.check_more(mine)
        else:
            self._check_entries()
            self.queue.recheck(self.startable.unusable_methods)
        for job in jobs:
            self._count(job, self._store.records.get(job))
        self.queue.add(jobs, entries)

    def _check_entries(self) -> None:
        """Check what those entries need that this pod was not told to leave to others."""
        offer = self.offer()
        self.startable.check(entry for entry in self.manifest.entries.values() if offer.excludes(entry) is None)

    def _rebuild_queue(self) -> None:
        entries, store = self.manifest.entries, self._store
        facts = Facts(
            records=store.records,
            entries=entries,
            now=now_text(time.time()),
            request_of=self.request_of,
            fault_of=self.startable.fault,
            on_move=self._on_move,
            longest_pause_s=self._longest_pause_s,
            offers=(self.offer(),),
            wants_copy=self.wants_copy,
            copies=self._copies.there,
            in_flight=self._in_flight,
        )
        self._in_flight.clear()
        self.queue = ClaimQueue(facts, self._capacities, self._pack_of)
        if self.failures:
            jobs, may_claim = store.records.by_state().jobs([State.FAILED]), self.queue.may_claim
            self.failures.begin(Failed(job, store.records[job], may_claim(job)) for job in jobs)
        # All records are looked at anew, also those that others changed while new entries were queued.
        store.fold.forget_touched()
        self._elsewhere = {job for job, state in store.records.states() if state in IN_FLIGHT}
        for job in self._elsewhere:
            self._count(job, store.records.get(job))
        self._elsewhere.difference_update(self._attempts.by_job)
        self.external.update_all(store.records)
        for job in (*entries, *self.queue.needed_elsewhere()):
            self.queue.update(job)
        self._reloads = store.reloads
        # There may be new ones among the records.
        self.has_unread = self.has_unread or store.seq > self._read_at

    def _count(self, job: str, record: Record | None) -> None:
        self._attempt_entries.note(self._in_flight, job, record, self.manifest.entries.get(job))

    def _on_move(self, entry: Entry) -> str:
        return self._config.now.method(entry.method).on_move

    def _longest_pause_s(self, entry: Entry, record: Record) -> float:
        return longest_pause_s(record, self._config.now.method(entry.method).backoff_s)

    def _pack_of(self, entry: Entry) -> int:
        return self._config.now.method(entry.method).pack

    def _hold(self, pauses: Iterable[Pause]) -> None:
        """Keep new attempts off paused GPUs and off those that external attempts use."""
        scopes = self.external.gpus(self._store.records) | {pause.scope: pause.why for pause in pauses}
        for outlet in self._outlets.values():
            outlet.hold(scopes)
