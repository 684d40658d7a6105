"""What a pod would claim if it started now, and why it would leave the rest. Changes nothing."""

from __future__ import annotations

import time

import msgspec

from dispatcher.config import Config
from dispatcher.matrix.manifest import load_manifest
from dispatcher.pod.claim import ClaimQueue, Filter
from dispatcher.pod.gpu_pool import GpuPool
from dispatcher.pod.launch import gpus_of
from dispatcher.pod.options import PodOptions
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import Record, State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


class Row(msgspec.Struct, frozen=True):
    """One entry: whether it would be claimed now and on which slot, else why not."""

    job_id: str
    claimed: bool
    slot: str
    why: str


def dry_run(layout: Layout, config: Config, options: PodOptions) -> list[Row]:
    """Every entry of the manifest, in its order; hand edits that nobody has taken in yet are not looked at."""
    store = Store(layout, by=options.pod, lock=config.lock)
    store.refresh(to_the_end=True)
    manifest = load_manifest(options.matrix or config.matrix, store.records.keys())
    pool = GpuPool(options, lambda _: None)
    try:
        pool.look(lambda _: False)
        only = Filter(options.methods, options.where)
        queue = ClaimQueue(manifest.entries, only, pool.slots, lambda entry: gpus_of(config, entry))
        records = dict(store.records)
        for job in manifest.entries:
            records.setdefault(job, Record(state=State.QUEUED))
        for job, record in records.items():
            queue.update(job, record)
        pauses = store.fold.pauses
        queue.pause(pauses)
        now = now_text(time.time())
        chosen = {choice.entry.job_id: choice.slot for choice in queue.choose(now, options.max_jobs)}
    finally:
        pool.close()
    rows = []
    for job, entry in manifest.entries.items():
        if job in chosen:
            gpus = chosen[job].gpus
            rows.append(Row(job, True, "gpu " + ",".join(map(str, gpus)) if gpus else "cpu", ""))
        else:
            why = queue.why_waiting(entry, records[job], now, pauses)
            if records[job].state is State.QUEUED:
                why = queue.rejects(entry) or why or "no free slot"
            rows.append(Row(job, False, "", why))
    return rows
