"""What a start with these options would do: what it claims, why not the rest, what it takes in. Changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from dispatcher.config import Config
from dispatcher.doctor.fitness import refuse_unfit_host
from dispatcher.errors import PodError, StateError
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import load_manifest
from dispatcher.outlets.base import Capacity, Ended, Slot
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.outlets.local import outlet, processes
from dispatcher.outlets.local.gpu_monitor import GpuMonitor, gpus_paused_here
from dispatcher.pod.claim import Choice, ClaimQueue
from dispatcher.pod.offers import Offer, offer_of, own_offer, request_of
from dispatcher.pod.options import PodOptions
from dispatcher.pod.recording import gpu_indices
from dispatcher.pod.recover import claimed_here
from dispatcher.pod.registration import Registration, refuse_shared_slots
from dispatcher.pod.startable import Startable
from dispatcher.pod.waiting import Facts, Waiting
from dispatcher.run_state import liveness
from dispatcher.run_state.adoption import refuse_unadopted
from dispatcher.run_state.external import taken_gpus
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.known_jobs import ManifestJobs
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
    monitor = GpuMonitor(options.gpus, options.cpu_slots, options.jobs_per_gpu, lambda _: None)
    try:
        capacities = {LOCAL: monitor.capacity}
        looked = _Attempts(layout, config, options.pod)
        records = looked.take_in(seen.records)
        for directory, gpus in looked.mine.items():
            monitor.capacity.adopt(Slot(gpus))
            looked.said[_job_of(directory)] = "it is running; this pod would find it again"
        for job in entries:
            records.setdefault(job, Record(state=State.QUEUED))
        pauses = store.fold.pauses
        monitor.hold({**taken_gpus(records.items()), **gpus_paused_here(pauses)})
        monitor.refresh(lambda pid: processes.attempt_of(pid) in looked.mine)
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
        notes = [*said, *_taken_in(layout, store, seen), *_refusals(layout, config, looked.namesake, options, monitor)]
    finally:
        monitor.close()
    if options.max_jobs is not None and len(choices) >= options.max_jobs:
        notes.append(f"--max-jobs {options.max_jobs}: the pod would end after these; others may take the rest")
    chosen = {choice.entry.job_id: _slot_text(choice, capacities) for choice in choices}
    waiting = Waiting(facts)
    rows = [
        Row(job, True, chosen[job], "")
        if job in chosen
        else Row(job, False, "", looked.said.get(job) or waiting.why(job).text)
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

    `mine` are those that this pod would watch again (their GPUs by directory), `offers` what the other live pods take,
    `namesake` a live pod of this one's name, `said` what is to be said of a job.
    """

    def __init__(self, layout: Layout, config: Config, me: str) -> None:
        self._layout = layout
        self._me = me
        self.mine: dict[str, tuple[int, ...]] = {}
        self.said: dict[str, str] = {}
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
        paths = self._layout.attempt(job, record.attempt)
        if record.pod == self._me and claimed_here(paths) and processes.first_of(paths.directory):
            self.mine[os.fspath(paths.directory)] = gpu_indices(record)
            return record
        ended = outlet.read_exit(paths.directory) if paths.directory.is_dir() else None
        if not isinstance(ended, Ended) or liveness.is_held(paths.alive):
            self.said[job] = f"it is running, and its pod {record.pod} is gone: any pod looks after it"
            return record
        if ended.exit_code == 0:
            self.said[job] = f"it is done; its pod {record.pod} is gone, so a start would record it"
            return msgspec.structs.replace(record, state=State.DONE)
        how = "without an exit status" if ended.exit_code is None else f"with exit status {ended.exit_code}"
        self.said[job] = f"it has ended {how}; its pod {record.pod} is gone, so a start would record that first"
        return record


def _job_of(directory: str) -> str:
    return os.path.basename(os.path.dirname(directory))


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
    layout: Layout, config: Config, namesake: liveness.PodInfo | None, options: PodOptions, monitor: GpuMonitor
) -> list[str]:
    """Why a start would be refused at this moment."""
    found = []
    if namesake is not None:
        found.append(f"a dispatcher named {namesake.pod!r} runs already (on host {namesake.host}, pid {namesake.pid})")
    me = Registration(layout, options.pod, config.heartbeat_s).info
    checks: list[Callable[[], None]] = [
        partial(refuse_unfit_host, layout),
        partial(refuse_shared_slots, layout, me, monitor.slot_infos({}), config.lost_after_s),
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
