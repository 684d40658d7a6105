"""What a start with these options would do: what it claims, why not the rest, what it takes in. Changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from dispatcher.base.host import host_name
from dispatcher.config import Config
from dispatcher.doctor.fitness import refuse_unfit_host
from dispatcher.errors import PodError, StateError
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import load_manifest
from dispatcher.outlets.base import Capacity, Ended, Key, Outlet
from dispatcher.outlets.kinds import DEFAULT, make_outlets
from dispatcher.pod.claim import Choice, ClaimQueue
from dispatcher.pod.offers import Offer, offer_of, own_offer, request_of
from dispatcher.pod.options import PodOptions, outlet_context
from dispatcher.pod.recover import orphan_of
from dispatcher.pod.registration import Registration, refuse_shared_slots
from dispatcher.pod.startable import Startable
from dispatcher.pod.waiting import Facts, Waiting
from dispatcher.run_state import liveness
from dispatcher.run_state.adoption import refuse_unadopted
from dispatcher.run_state.external import taken_gpus
from dispatcher.run_state.fold import gpu_scope
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.preview import Preview, preview
from dispatcher.run_state.states import IN_FLIGHT, Record, State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_SHOWN = 3


class Row(msgspec.Struct, frozen=True):
    """One entry: whether it would be claimed now and on which slot, else why not."""

    job_id: str
    claimed: bool
    slot: str
    why: str


class DryRun(msgspec.Struct, frozen=True):
    """`rows` has every entry of the manifest in its order, `notes` what else a start would do or be told."""

    rows: list[Row]
    notes: list[str]


def dry_run(layout: Layout, config: Config, options: PodOptions) -> DryRun:
    """Raises the errors that keep any pod from starting here; what only concerns this host and moment is a note."""
    path = options.matrix or config.matrix
    refuse_unadopted(layout, (config.matrix, path))
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
    entries = load_manifest(path, seen.records.keys()).entries
    observer = Observer(layout, config.lost_after_s, lambda: store.lock_kind == "flock")
    outlets = make_outlets(outlet_context(config, options, observer, lambda _: None))
    capacities = {name: outlet.capacity for name, outlet in outlets.items()}
    try:
        looked = _Attempts(layout, config, options.pod, outlets)
        records = looked.take_in(seen.records)
        for job in entries:
            records.setdefault(job, Record(state=State.QUEUED))
        pauses = store.fold.pauses
        scopes = {gpu_scope(host_name(), index): why for index, why in taken_gpus(records.items()).items()}
        scopes.update((pause.scope, pause.why) for pause in pauses.values())
        for outlet in outlets.values():
            outlet.hold(scopes)
            outlet.refresh_capacity()
        said: list[str] = []
        startable = Startable(config, said.append)
        offer = own_offer(options, capacities)
        startable.check(entry for entry in entries.values() if offer.excludes(entry) is None)
        offer = own_offer(options, capacities, startable.unusable_methods)
        facts = Facts(
            records=records,
            entries=entries,
            now=now_text(time.time()),
            request_of=lambda entry: request_of(config, entry),
            offers=(offer, *looked.offers),
            fault_of=startable.fault,
            pauses=pauses,
            me=options.pod,
        )
        choices = _choose(facts, entries, offer, capacities, options.max_jobs)
        slots = [info for outlet in outlets.values() for info in outlet.slot_infos()]
        notes = [*said, *_taken_in(layout, store, seen), *_refusals(layout, config, looked.namesake, options, slots)]
    finally:
        for outlet in outlets.values():
            outlet.close()
    if options.max_jobs is not None and len(choices) >= options.max_jobs:
        notes.append(f"--max-jobs {options.max_jobs}: the pod would end after these; others may take the rest")
    chosen = {choice.entry.job_id: _slot_text(choice, capacities) for choice in choices}
    waiting = Waiting(facts)
    rows = [
        Row(job, True, chosen[job], "")
        if job in chosen
        else Row(job, False, "", looked.explained.get(job) or waiting.why(job).text)
        for job in entries
    ]
    return DryRun(rows, notes)


def _choose(
    facts: Facts, entries: Mapping[str, Entry], offer: Offer, capacities: Mapping[str, Capacity], limit: int | None
) -> list[Choice]:
    queue = ClaimQueue(entries, offer, capacities, facts.request_of, facts.fault_of)
    for job, record in facts.records.items():
        queue.update(job, record)
    queue.pause(facts.pauses)
    return queue.choose(facts.now, limit)


def _slot_text(choice: Choice, capacities: Mapping[str, Capacity]) -> str:
    """The slot as messages name it, with its outlet where the pod has more than one."""
    slot = capacities[choice.outlet].slot_text(choice.slot)
    return slot if len(capacities) == 1 else f"{choice.outlet}: {slot}"


class _Attempts:
    """The attempts in flight, as a start would find them.

    `offers` are what the other live pods take, `namesake` a live pod of this one's name, `explained` what a start would
    find out about a job.
    """

    def __init__(self, layout: Layout, config: Config, me: str, outlets: Mapping[str, Outlet]) -> None:
        self._me = me
        self._outlets = outlets
        self.explained: dict[str, str] = {}
        watch = liveness.Watch()
        alive = [
            info
            for info in liveness.read_pods(layout)
            if liveness.pod_is_alive(layout, info, watch, config.lost_after_s)
        ]
        self._alive = {info.pod for info in alive if info.pod != me}
        self.namesake = next((info for info in alive if info.pod == me), None)
        self.offers = [offer_of(info) for info in alive if info.pod != me and info.phase == "running"]

    def take_in(self, records: Mapping[str, Record]) -> dict[str, Record]:
        """The records after the first turn, which records how attempts of dead dispatchers have ended."""
        found = dict(records)
        for job, record in records.items():
            if record.state in IN_FLIGHT and record.attempt and not (record.external or record.pod in self._alive):
                found[job] = self._look_at(job, record)
        return found

    def _look_at(self, job: str, record: Record) -> Record:
        outlet = self._outlets.get(record.outlet or DEFAULT)
        if outlet is None:
            self.explained[job] = f"it is {record.state}, and its pod {record.pod}, of outlet {record.outlet}, is gone"
            return record
        orphan = orphan_of(Key(job, record.attempt), record)
        if record.pod == self._me and outlet.adopt({orphan.key: orphan.placement}):
            self.explained[job] = "it is running; this pod would find it again"
            return record
        ended = outlet.inspect([orphan])[orphan.key]
        if not isinstance(ended, Ended):
            self.explained[job] = f"it is running, and its pod {record.pod} is gone: any pod looks after it"
            return record
        if ended.exit_code == 0:
            self.explained[job] = f"it is done; its pod {record.pod} is gone, so a start would record it"
            return msgspec.structs.replace(record, state=State.DONE)
        how = "without an exit status" if ended.exit_code is None else f"with exit status {ended.exit_code}"
        self.explained[job] = f"it has ended {how}; its pod {record.pod} is gone, so a start would record that first"
        return record


def _taken_in(layout: Layout, store: Store, seen: Preview) -> list[str]:
    """What a start would take in of the status file."""
    name = os.path.relpath(layout.status_file, layout.root)
    notes = []
    if seen.adopted:
        notes.append(f"a start would adopt the records of {name}: {_jobs(seen.adopted)}")
    if seen.edited:
        notes.append(f"a start would take in hand edits of {name}: {_jobs(seen.edited)}")
    notes += [f"a start would refuse the hand edit of {refusal.job or name}: {refusal.why}" for refusal in seen.refused]
    if store.problem is not None:
        notes.append(store.problem)
    return notes


def _refusals(
    layout: Layout, config: Config, namesake: liveness.PodInfo | None, options: PodOptions, slots: Sequence[SlotInfo]
) -> list[str]:
    """Why a start would be refused at this moment."""
    found = []
    if namesake is not None:
        found.append(f"a dispatcher named {namesake.pod!r} runs already (on host {namesake.host}, pid {namesake.pid})")
    me = Registration(layout, options.pod, config.heartbeat_s).info
    checks: list[Callable[[], None]] = [
        partial(refuse_unfit_host, layout),
        partial(refuse_shared_slots, layout, me, slots, config.lost_after_s),
    ]
    for check in checks:
        try:
            check()
        except PodError as error:
            found.append(str(error))
    return [f"a start would be refused: {why}" for why in found]


def _jobs(jobs: tuple[str, ...]) -> str:
    names = ", ".join(jobs[:_SHOWN]) + (", ..." if len(jobs) > _SHOWN else "")
    return f"{len(jobs)} job{'' if len(jobs) == 1 else 's'} ({names})"
