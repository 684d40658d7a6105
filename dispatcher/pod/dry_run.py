"""What a start with these options would do: what it claims, why not the rest, what it takes in. Changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.config import Config, LockKind
from dispatcher.doctor.fitness import refuse_unfit_host
from dispatcher.errors import PodError, StateError
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Limits
from dispatcher.matrix.manifest import load_manifest
from dispatcher.matrix.submitted import Listed, SubmittedJobs
from dispatcher.outlets.base import Ended, Key, Outlet
from dispatcher.outlets.kinds import DEFAULT, make_outlets
from dispatcher.pod.claim import Choice, ClaimQueue
from dispatcher.pod.in_flight import AttemptEntries, InFlight
from dispatcher.pod.offers import offer_of, offers_of, own_offer, request_of
from dispatcher.pod.options import PodOptions, outlet_context
from dispatcher.pod.outcome import longest_pause_s
from dispatcher.pod.recover import orphan_of
from dispatcher.pod.registration import Registration, refuse_shared_slots
from dispatcher.pod.startable import Startable
from dispatcher.pod.waiting import Facts, Waiting, as_written
from dispatcher.run_state import liveness
from dispatcher.run_state.adoption import refuse_old_script, refuse_unadopted
from dispatcher.run_state.external import external_gpus
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.preview import Preview, preview
from dispatcher.run_state.states import IN_FLIGHT, Record, State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


class Row(msgspec.Struct, frozen=True):
    """One entry: whether it would be claimed now and on which slot, else why not."""

    job_id: str
    claimed: bool
    slot: str
    why: str


class DryRun(msgspec.Struct, frozen=True):
    """`rows` has every entry of the manifest in its order, `notes` what else a start would do or report."""

    rows: list[Row]
    notes: list[str]


def dry_run(
    layout: Layout, config: Config, options: PodOptions, clock: Callable[[str | None], str] = as_written
) -> DryRun:
    """Raises the errors that keep any pod from starting; what only concerns this host and moment is a note.

    `clock` writes the times of reasons.
    """
    path = options.matrix or config.matrix
    refuse_unadopted(layout, (config.matrix, path))
    if not options.anyway:
        refuse_old_script(layout, (config.matrix, path))
    store = Store(
        layout,
        by=options.pod,
        lock=config.lock,
        lost_after_s=config.lost_after_s,
        manifest_jobs=ManifestJobs(config, options.matrix).ids,
    )
    seen = preview(store)
    if store.problem is not None and store.generation is None:
        raise StateError(store.problem)
    entries = _entries(path, options, layout, seen)
    observer = Observer(layout, config.lost_after_s, lambda: store.lock_kind == LockKind.FLOCK)
    outlets = make_outlets(outlet_context(config, options, observer, lambda _: None))
    try:
        return _Start(config, options, store, outlets, clock).plan(entries, seen)
    finally:
        for outlet in outlets.values():
            outlet.close()


def _entries(path: Path, options: PodOptions, layout: Layout, seen: Preview) -> Mapping[str, Entry]:
    """The entries of the manifest, and those of submitted jobs."""
    submitted = SubmittedJobs(layout.submitted_manifest, layout.saved_submitted)
    submitted.read()
    is_optional = options.matrix is None and submitted.path.exists()
    entries = {} if is_optional and not path.exists() else load_manifest(path, seen.records.keys()).entries
    return Listed(entries, submitted.entries, seen.records.is_ad_hoc)


class _Start:
    """A start that only computes what it would do."""

    def __init__(
        self,
        config: Config,
        options: PodOptions,
        store: Store,
        outlets: Mapping[str, Outlet],
        clock: Callable[[str | None], str],
    ) -> None:
        self._config = config
        self._clock = clock
        self._options = options
        self._store = store
        self._outlets = outlets
        self._capacities = {name: outlet.capacity for name, outlet in outlets.items()}
        self._messages: list[str] = []
        self._startable = Startable(config, self._messages.append, outlets)
        self._attempts = _Attempts(config, options.pod, outlets)

    def plan(self, entries: Mapping[str, Entry], seen: Preview) -> DryRun:
        facts = self._facts(entries, self._attempts.recovered(seen.records))
        choices = self._choose(facts)
        notes = [*self._messages, *self._edits(seen), *self._refusals()]
        most = self._options.max_jobs
        if most is not None and len(choices) >= most:
            notes.append(f"--max-jobs {most}: the pod would end after these; others may take the rest")
        chosen = {choice.entry.job_id: self._slot_text(choice) for choice in choices}
        waiting = Waiting(self._after_claims(facts))
        rows = [
            Row(job, True, chosen[job], "")
            if job in chosen
            else Row(job, False, "", self._attempts.findings.get(job) or waiting.why(job).text)
            for job in entries
        ]
        return DryRun(rows, notes)

    def _facts(self, entries: Mapping[str, Entry], recovered: Mapping[str, Record]) -> Facts:
        records = {**{job: Record(state=State.QUEUED) for job in entries}, **recovered}
        self._refresh_capacities(records)
        offer = own_offer(self._options, self._capacities)
        self._startable.check(entry for entry in entries.values() if offer.excludes(entry) is None)
        offer = msgspec.structs.replace(offer, unusable_methods=self._startable.unusable_methods)
        return Facts(
            records=records,
            entries=entries,
            now=now_text(time.time()),
            request_of=lambda entry: request_of(self._config, entry),
            on_move=lambda entry: self._config.method(entry.method).on_move,
            longest_pause_s=lambda entry, record: longest_pause_s(record, self._config.method(entry.method).backoff_s),
            offers=(offer, *self._attempts.offers),
            fault_of=self._startable.fault,
            pauses=self._store.fold.pauses,
            me=self._options.pod,
            clock=self._clock,
            in_flight=self._count(entries, records),
        )

    def _count(self, entries: Mapping[str, Entry], records: Mapping[str, Record]) -> InFlight:
        """The attempts that count in limits. What is chosen counts too, so the reasons are those after the claims."""
        found, known = InFlight(Limits.of(self._config)), AttemptEntries()
        for job, record in records.items() if found.limits else ():
            if record.state in IN_FLIGHT:
                known.load(self._config.layout, job, record.attempt)
                known.note(found, job, record, entries.get(job))
        return found

    def _refresh_capacities(self, records: Mapping[str, Record]) -> None:
        pauses = self._store.fold.pauses
        held = external_gpus(records.items()) | {scope: pause.why for scope, pause in pauses.items()}
        for outlet in self._outlets.values():
            outlet.hold(held)
            outlet.refresh_capacity()

    def _choose(self, facts: Facts) -> list[Choice]:
        queue = ClaimQueue(facts, self._capacities, self._pack_of)
        for job in facts.records:
            queue.update(job)
        queue.pause(facts.pauses)
        return queue.choose(facts.now, self._options.max_jobs)

    def _pack_of(self, entry: Entry) -> int:
        return self._config.method(entry.method).pack

    def _after_claims(self, facts: Facts) -> Facts:
        """With what this pod offers once it has taken what was chosen."""
        me = self._options.pod
        outlets = offers_of(self._capacities)
        own = [msgspec.structs.replace(offer, outlets=outlets) for offer in facts.offers if offer.pod == me]
        return msgspec.structs.replace(facts, offers=[*own, *(offer for offer in facts.offers if offer.pod != me)])

    def _slot_text(self, choice: Choice) -> str:
        """The slot as messages name it, with its outlet where the pod has more than one."""
        slot = self._capacities[choice.outlet].slot_text(choice.slot)
        return slot if len(self._capacities) == 1 else f"{choice.outlet}: {slot}"

    def _edits(self, seen: Preview) -> list[str]:
        """What a start would take in of the status file."""
        layout = self._config.layout
        name = os.path.relpath(layout.status_file, layout.root)
        notes = []
        if seen.adopted:
            notes.append(f"a start would adopt the records of {name}: {_jobs(seen.adopted)}")
        if seen.edited:
            notes.append(f"a start would take in hand edits of {name}: {_jobs(seen.edited)}")
        for refusal in seen.refused:
            notes.append(f"a start would refuse the hand edit of {refusal.job or name}: {refusal.why}")
        if self._store.problem is not None:
            notes.append(self._store.problem)
        return notes

    def _refusals(self) -> list[str]:
        """Why a start would be refused at this moment."""
        config, namesake = self._config, self._attempts.namesake
        found = []
        if namesake is not None:
            where = f"on host {namesake.host}, pid {namesake.pid}"
            found.append(f"a dispatcher named {namesake.pod!r} is already running ({where})")
        me = Registration(config.layout, self._options.pod, config.heartbeat_s).info
        slots = [info for outlet in self._outlets.values() for info in outlet.slot_infos()]
        checks: list[Callable[[], None]] = [
            partial(refuse_unfit_host, config.layout),
            partial(refuse_shared_slots, config.layout, me, slots, config.lost_after_s),
        ]
        for check in checks:
            try:
                check()
            except PodError as error:
                found.append(str(error))
        return [f"a start would be refused: {why}" for why in found]


class _Attempts:
    """The attempts in flight, as a start would find them.

    `offers` are those of the other live pods, `namesake` is a live pod of this one's name, `findings` is what a start
    would find out about jobs, by job.
    """

    def __init__(self, config: Config, me: str, outlets: Mapping[str, Outlet]) -> None:
        self._me = me
        self._outlets = outlets
        self.findings: dict[str, str] = {}
        watch = liveness.Watch()
        layout, lost_after_s = config.layout, config.lost_after_s
        pods = liveness.read_pods(layout)
        alive = [info for info in pods if liveness.pod_is_alive(layout, info, watch, lost_after_s)]
        self._alive = {info.pod for info in alive if info.pod != me}
        self.namesake = next((info for info in alive if info.pod == me), None)
        self.offers = [offer_of(info) for info in alive if info.pod != me and info.phase == "running"]

    def recovered(self, records: Mapping[str, Record]) -> dict[str, Record]:
        """The records after a start, which first records how attempts of dead dispatchers have ended."""
        found = dict(records)
        for job, record in records.items():
            if record.state in IN_FLIGHT and record.attempt and not (record.external or record.pod in self._alive):
                self.findings[job], found[job] = self._recover(job, record)
        return found

    def _recover(self, job: str, record: Record) -> tuple[str, Record]:
        """What a start would find out about an attempt without a live dispatcher, and its record then."""
        outlet = self._outlets.get(record.outlet or DEFAULT)
        if outlet is None:
            return f"it is {record.state} in outlet {record.outlet}; its pod {record.pod} is gone", record
        orphan = orphan_of(Key(job, record.attempt), record)
        if record.pod == self._me and outlet.adopt({orphan.key: orphan.placement}):
            return f"it is {record.state}; this pod would find it again", record
        ended = outlet.inspect([orphan])[orphan.key]
        if not isinstance(ended, Ended):
            return f"it is {record.state}; its pod {record.pod} is gone, any pod will record how it ends", record
        if ended.is_done:
            done = msgspec.structs.replace(record, state=State.DONE)
            return f"it is done; its pod {record.pod} is gone, so a start would record it", done
        how = "without an exit status" if ended.exit_code is None else f"with exit status {ended.exit_code}"
        return f"it has ended {how}; its pod {record.pod} is gone, so a start would record that first", record


def _jobs(jobs: tuple[str, ...]) -> str:
    return f"{counted(len(jobs), 'job')} ({first_names(jobs)})"
