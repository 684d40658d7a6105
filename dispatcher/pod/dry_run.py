"""What a pod would claim if it started now, and why it would leave the rest. Changes nothing."""

from __future__ import annotations

import time

import msgspec

from dispatcher.config import Config
from dispatcher.matrix.manifest import load_manifest
from dispatcher.pod.claim import ClaimQueue
from dispatcher.pod.gpu_pool import GpuPool
from dispatcher.pod.offers import Offer, gpus_of, offer_of, own_offer
from dispatcher.pod.options import PodOptions
from dispatcher.pod.waiting import Facts, Waiting
from dispatcher.run_state import life
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.moving_in import refuse_unadopted
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
    refuse_unadopted(layout, (config.matrix, options.matrix or config.matrix))
    store = Store(layout, by=options.pod, lock=config.lock)
    store.refresh(to_the_end=True)
    manifest = load_manifest(options.matrix or config.matrix, store.records.keys())
    pool = GpuPool(options, lambda _: None)
    try:
        pool.look(lambda _: False)
        offer = own_offer(options, pool.slots)
        queue = ClaimQueue(manifest.entries, offer, pool.slots, lambda entry: gpus_of(config, entry))
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
    waiting = Waiting(
        Facts(
            records=records,
            entries=manifest.entries,
            now=now,
            gpus_of=lambda entry: gpus_of(config, entry),
            offers=(offer, *_others(layout, config, options.pod)),
            pauses=pauses,
            me=options.pod,
        )
    )
    rows = []
    for job in manifest.entries:
        if job in chosen:
            gpus = chosen[job].gpus
            rows.append(Row(job, True, "gpu " + ",".join(map(str, gpus)) if gpus else "cpu", ""))
        else:
            rows.append(Row(job, False, "", waiting.why(job).text))
    return rows


def _others(layout: Layout, config: Config, me: str) -> list[Offer]:
    watch = life.Watch()
    return [
        offer_of(info)
        for info in life.read_pods(layout)
        if info.pod != me and info.phase == "running" and life.pod_is_alive(layout, info, watch, config.lost_after_s)
    ]
