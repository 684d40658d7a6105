"""The arms of claiming: what a dispatcher does, the least that would do, and the lab's own way."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.workers import repeat
from dispatcher.matrix.manifest import load_manifest
from dispatcher.outlets.base import Request
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.pod.claim import Choice, ClaimQueue
from dispatcher.pod.fence import Fence
from dispatcher.pod.offers import Offer
from dispatcher.pod.waiting import Facts
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import Line
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store, Transaction
from dispatcher.workspace import Layout

_HOST = os.uname().nodename


def _claim_change(pod: str, at: str) -> Change:
    """What a dispatcher's claim on a CPU slot changes."""
    return Change(state=State.RUNNING, pod=pod, started_at=at, attempt=1, host=_HOST)


class Claimer:
    """Claims entry after entry with the same parts as a dispatcher, and starts nothing."""

    def __init__(self, root: str | Path, pod: str = "bench") -> None:
        layout = Layout(root)
        self.pod = pod
        self.store = Store(layout, by=pod)
        self.capacity = LocalCapacity((), 1)
        with self.store.transaction():
            pass
        entries = load_manifest(layout.default_matrix).entries
        offer = Offer(pod=pod, outlets={"local": self.capacity.offer()})
        facts = Facts(
            records=self.store.records,
            entries=entries,
            now="",
            request_of=lambda entry: Request(entry.gpus),
            offers=(offer,),
        )
        self.queue = ClaimQueue(facts, {"local": self.capacity})
        self.store.fold.drain_touched()
        for job in self.store.records:
            self.queue.update(job)
        self.fence = Fence(layout, pod, lambda _pod: True, lambda _text: None)
        self.entered_s = 0.0

    def claim(self) -> str | None:
        """The entry that was claimed, None when none is queued; `entered_s` is when the lock was held."""
        with self.store.transaction() as tx:
            self.entered_s = time.monotonic()
            for job in self.store.fold.drain_touched():
                self.queue.update(job)
            choices = self.queue.choose(journal.now_text(time.time()), 1)
            claimed = [job for choice in choices if (job := self._take(tx, choice)) is not None]
        for choice in choices:
            self.capacity.release(choice.slot)
        return claimed[0] if claimed else None

    def prepare(self) -> None:
        """What a dispatcher does for its next claim while its jobs run."""
        self.store.prepare_claims(self.queue.upcoming(), 1)

    def _take(self, tx: Transaction, choice: Choice) -> str | None:
        job = choice.entry.job_id
        if self.fence.pass_through(tx, job, 1) is None:
            return None
        tx.change(job, Event.CLAIMED, _claim_change(self.pod, tx.at))
        return job


def ours(root: str, *, counts_preparation: bool = False) -> Callable[[int], list[float]]:
    """Seconds per claim of the workspace at `root`, whose entries are all queued.

    A dispatcher prepares its next claim while the job runs that it has just claimed.
    """
    claimer = Claimer(root)

    def claim() -> float:
        begun = time.perf_counter()
        claimer.prepare()
        prepared = time.perf_counter()
        claimer.claim()
        return time.perf_counter() - (begun if counts_preparation else prepared)

    return repeat(claim)


def ours_and_preparation(root: str) -> Callable[[int], list[float]]:
    """As `ours`, and what it takes to prepare the claim."""
    return ours(root, counts_preparation=True)


def floor(root: str) -> Callable[[int], list[float]]:
    """Seconds per flock + mkdir + append (of a line like ours) + fsync in `root`."""
    at = journal.now_text(time.time())
    job = "fft_spanish_cfgB_s42_main"
    line = Line(seq=1000, at=at, by="bench", event=Event.CLAIMED, job=job, set=_claim_change("bench", at).fields())
    data = journal.encode(line) + b"\n"
    lock = os.open(f"{root}/floor.lock", os.O_RDWR | os.O_CREAT)
    file = os.open(f"{root}/floor.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    names = (f"{root}/floor-{number}" for number in range(1_000_000))

    def claim() -> float:
        begun = time.perf_counter()
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.mkdir(next(names))
        os.write(file, data)
        os.fsync(file)
        fcntl.flock(lock, fcntl.LOCK_UN)
        return time.perf_counter() - begun

    return repeat(claim)


def whole_file(root: str, jobs: list[str]) -> Callable[[int], list[float]]:
    """Seconds per claim the lab's own way: under flock, load the whole status file, change one line, dump it.

    Half of the entries have been run, as on an average day of a matrix.
    """
    status = Path(root) / "matrix_status.json"
    line = {"state": "running", "pod": "bench", "pid": 3328333, "gpu": 2, "started_at": "2026-06-17T22:48:00Z"}
    done = {**line, "state": "done", "finished_at": "2026-06-17T23:48:00Z"}
    lines = {job: done if number % 2 else {"state": "queued"} for number, job in enumerate(jobs)}
    status.write_text(json.dumps(lines))

    def claim() -> float:
        begun = time.perf_counter()
        with open(f"{root}/matrix_status.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(status) as file:
                records = json.load(file)
            job = next(job for job, record in records.items() if record["state"] == "queued")
            records[job] = line
            with open(status, "w") as file:
                json.dump(records, file)
        return time.perf_counter() - begun

    return repeat(claim)


def contender(root: str, pod: str) -> Callable[[int], dict[str, Any]]:
    """Claims until nothing is queued: begin, end, seconds until the lock was held, and which entries it got."""
    claimer = Claimer(root, pod)

    def claim_all(_number: int) -> dict[str, Any]:
        waits: list[float] = []
        jobs: list[str] = []
        begun = wanted = time.monotonic()
        while (job := claimer.claim()) is not None:
            jobs.append(job)
            claimer.prepare()
            waits.append(claimer.entered_s - wanted)
            wanted = time.monotonic()
        return {"begun": begun, "ended": wanted, "waits": waits, "jobs": jobs}

    return claim_all


def written(layout: Layout) -> list[str]:
    """The claimed entries as the journal has them, once for each claim."""
    return [line.job for line in journal.history(layout) if line.event is Event.CLAIMED and line.job is not None]
