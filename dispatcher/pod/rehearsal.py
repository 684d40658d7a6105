"""`--dry-run`: the first pass of a pod with these options, rolled back. What it claims, and why not the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.config import Config, LockKind
from dispatcher.doctor.fitness import refuse_unfit_host
from dispatcher.errors import PodError, StateError
from dispatcher.pod.claim import Choice
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.offers import offers_of_others
from dispatcher.pod.options import PodOptions, outlet_context
from dispatcher.pod.participant import Pass
from dispatcher.pod.pod_outlets import PodOutlets
from dispatcher.pod.reconciler import Reconciler
from dispatcher.pod.registration import Registration, refuse_shared_slots
from dispatcher.run_state import liveness
from dispatcher.run_state.adoption import refuse_old_script, refuse_unadopted
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.lock_choice import hardlink_is_in_force
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.preview import Preview
from dispatcher.run_state.rehearsal import Rehearsal
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


def dry_run(layout: Layout, config: Config, options: PodOptions, clock: Callable[[str | None], str]) -> DryRun:
    """Raises the errors that keep any pod from starting; what only concerns this host and moment is a note.

    `clock` writes the times of reasons. Changes nothing.
    """
    manifests = (config.matrix, options.matrix or config.matrix)
    refuse_unadopted(layout, manifests)
    if not options.anyway:
        refuse_old_script(layout, manifests)
    store = Rehearsal(layout, by=options.pod, manifest_jobs=ManifestJobs(config, options.matrix).ids)
    preview = store.begin()
    if store.problem is not None and store.generation is None:
        raise StateError(store.problem)
    locks_work = config.lock in ("auto", LockKind.FLOCK) and not hardlink_is_in_force(layout)
    observer = Observer(layout, config.lost_after_s, lambda: locks_work)
    outlets = PodOutlets(outlet_context(config, options, observer, lambda _: None))
    rows: list[Row] = []
    notes: list[str] = []
    try:
        current = CurrentConfig(config, notes.append, outlets.names)
        reconciler = Reconciler(store, current, options, outlets, observer, notes.append, is_dry=True)
        reconciler.begin()
        reconciler.rehearse(lambda now: rows.extend(_rows(reconciler, now, clock)))
        reconciler.close()
        notes += [*_edits(layout, preview), *filter(None, (store.problem,)), *_refusals(reconciler)]
    finally:
        outlets.close()
    most = options.max_jobs
    if most is not None and sum(row.claimed for row in rows) >= most:
        notes.append(f"--max-jobs {most}: the pod would end after these; others may take the rest")
    return DryRun(rows, notes)


def _rows(reconciler: Reconciler, now: Pass, clock: Callable[[str | None], str]) -> list[Row]:
    """As things are in the transaction, after the claims."""
    shared, backlog = reconciler.shared, reconciler.backlog
    chosen = reconciler.participants.claims.chosen()
    others = offers_of_others(shared.config.now.layout, shared.options.pod, shared.observer.pod_is_alive)
    waiting = backlog.queue.waiting(now_text(time.time()), [offer for _, offer in others], clock)
    return [
        Row(job, True, _slot_text(reconciler, chosen[job]), "")
        if job in chosen
        else Row(job, False, "", now.findings.get(job) or waiting.why(job).text)
        for job in backlog.manifest.entries
    ]


def _slot_text(reconciler: Reconciler, choice: Choice) -> str:
    """The slot as messages name it, with its outlet where the pod has more than one."""
    outlets = reconciler.shared.outlets
    slot = outlets[choice.outlet].capacity.slot_text(choice.slot)
    return slot if len(outlets) == 1 else f"{choice.outlet}: {slot}"


def _edits(layout: Layout, preview: Preview) -> list[str]:
    """What a start would take in of the status file."""
    name = os.path.relpath(layout.status_file, layout.root)
    notes = []
    if preview.adopted:
        notes.append(f"a start would adopt the records of {name}: {_jobs(preview.adopted)}")
    if preview.edited:
        notes.append(f"a start would take in hand edits of {name}: {_jobs(preview.edited)}")
    refused = preview.refused
    return [*notes, *(f"a start would refuse the hand edit of {one.job or name}: {one.why}" for one in refused)]


def _refusals(reconciler: Reconciler) -> list[str]:
    """Why a start would be refused at this moment."""
    shared = reconciler.shared
    config, pod = shared.config.now, shared.options.pod
    me, namesake = Registration(config.layout, pod, config.heartbeat_s).info, liveness.read_pod(config.layout, pod)
    slots = [info for outlet in shared.outlets.values() for info in outlet.slot_infos()]
    found = []
    if namesake is not None and shared.observer.is_alive(namesake):
        where = f"on host {namesake.host}, pid {namesake.pid}"
        found.append(f"a dispatcher named {pod!r} is already running ({where})")
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


def _jobs(jobs: tuple[str, ...]) -> str:
    return f"{counted(len(jobs), 'job')} ({first_names(jobs)})"
