"""A snapshot made from the one before it is what a fresh one is."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dispatcher.api import Workspace
from dispatcher.matrix.entry import Entry
from dispatcher.query.listed_records import ListedRecords
from dispatcher.query.overview import overview
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store

EVENTS = {
    State.QUEUED: Event.REQUEUED, State.RUNNING: Event.CLAIMED, State.DONE: Event.DONE, State.FAILED: Event.FAILED,
    State.HELD: Event.HELD, State.ABANDONED: Event.ABANDONED,
}  # fmt: skip


class Lab:
    """A workspace in which things happen, and a reader that stays."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self.rng = rng
        self.store = Store(Workspace(root).layout, by="pod-0")
        self.entries = [self.entry(number) for number in range(30)]
        self.written = 0
        self.unedited = b""
        self.write_manifest()
        self.reader = Workspace(root)

    def entry(self, number: int) -> dict[str, Any]:
        needs = {"needs": [f"j{number - 1}"]} if number % 2 else {}
        return {"job_id": f"j{number}", "method": ("fft", "lora")[number % 2], "seed": self.rng.randrange(3), **needs}

    def write_manifest(self) -> None:
        path = self.root / "matrix" / "matrix.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.entries))
        # Every version has another time, however fast they follow one another.
        self.written += 1
        os.utime(path, ns=(self.written * 10**9,) * 2)

    def queue(self) -> None:
        with self.store.transaction() as tx:
            for entry in self.rng.sample(self.entries, len(self.entries) // 2):
                if tx.record(entry["job_id"]) is None:
                    tx.change(entry["job_id"], Event.QUEUED, Change(state=State.QUEUED))

    def change(self) -> None:
        """Some jobs take another state, as if they ran with what the manifest has now."""
        listed = {entry["job_id"]: entry for entry in self.entries}
        with self.store.transaction() as tx:
            jobs = list(self.store.records)
            for job in self.rng.sample(jobs, min(len(jobs), self.rng.choice((1, 1, 5)))):
                record = tx.record(job)
                assert record is not None
                if record.state is State.QUEUED and job in listed and self.rng.random() < 0.7:
                    values = {
                        key: value for key, value in listed[job].items() if key not in ("job_id", "method", "needs")
                    }
                    digest = Entry(job_id=job, method=listed[job]["method"], params=values).digest()
                    running = Change(state=State.RUNNING, attempt=record.attempt + 1, ran_with=digest, pod="pod-0")
                    running |= Change(inputs_at=tx.seq)
                    tx.change(job, Event.CLAIMED, running)
                elif record.state is State.RUNNING:
                    state = self.rng.choice((State.DONE, State.DONE, State.FAILED))
                    tx.change(job, EVENTS[state], Change(state=state, reason="exit 1", exit_code=1))
                elif record.state is State.QUEUED:
                    tx.change(job, Event.HELD, Change(state=State.HELD))
                else:
                    tx.change(job, Event.REQUEUED, Change(state=State.QUEUED))

    def delete(self) -> None:
        with self.store.transaction() as tx:
            idle = [job for job in self.store.records if tx.record(job).state is not State.RUNNING]
            for job in self.rng.sample(idle, min(1, len(idle))):
                tx.delete(job)

    def project(self) -> None:
        Projector(self.store).write()

    def edit(self) -> None:
        """A person saves the status file; a later transaction applies that."""
        path = self.store.layout.status_file
        if path.exists():
            lines = json.loads(path.read_text())
            self.unedited = path.read_bytes()
            if lines:
                lines[self.rng.choice(list(lines))]["priority"] = self.rng.randrange(9)
            path.write_text(json.dumps(lines))

    def undo(self) -> None:
        """The person thinks better of it."""
        if self.unedited:
            self.store.layout.status_file.write_bytes(self.unedited)

    def alter(self) -> None:
        self.entries[self.rng.randrange(len(self.entries))]["seed"] = self.rng.randrange(3, 9)
        self.write_manifest()

    def extend(self) -> None:
        self.entries.append(self.entry(100 + self.written))
        self.write_manifest()

    def remove(self) -> None:
        del self.entries[self.rng.randrange(len(self.entries))]
        self.write_manifest()

    def reorder(self) -> None:
        self.rng.shuffle(self.entries)
        self.write_manifest()

    def rotate(self) -> None:
        self.store.rotate()

    def nothing(self) -> None:
        pass


def shown(snapshot: Snapshot) -> list[Any]:
    seen = overview(msgspec.structs.replace(snapshot, now_s=0.0))
    states = [snapshot.jobs_in(state) for state in State]
    found = [list(snapshot.records.items()), snapshot.unqueued, snapshot.edited, list(snapshot.changed), states]
    found.append(dict(snapshot.newer_inputs))
    latest = [list(snapshot.latest(state, 3)) for state in State]
    return [*found, latest, list(snapshot.entries), msgspec.to_builtins(seen)]


@pytest.mark.parametrize("seed", range(12))
def test_a_kept_snapshot_is_what_a_fresh_one_is(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    lab = Lab(tmp_path, rng)
    steps = [
        *[lab.change] * 12, *[lab.nothing] * 3, lab.queue, lab.queue, lab.project, lab.project, lab.edit, lab.alter,
        lab.extend, lab.remove, lab.reorder, lab.delete, lab.rotate, lab.edit, lab.undo, lab.undo,
    ]  # fmt: skip
    before = lab.reader.snapshot()
    was = shown(before)
    for number in range(60):
        step = rng.choice(steps) if number else lab.queue
        for _ in range(rng.choice((1, 1, 3))):
            step()
        name = f"after step {number}, {step.__name__}"
        if rng.random() < 0.8:
            before, old = lab.reader.snapshot(), before
            assert list(old.records.items()) == was[0], f"{name}: an old snapshot has changed"
            was = shown(before)
            assert was == shown(Workspace(tmp_path).snapshot()), name


def test_only_jobs_that_changed_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, random.Random(0))
    with lab.store.transaction() as tx:
        for entry in lab.entries:
            tx.change(entry["job_id"], Event.QUEUED, Change(state=State.QUEUED))
    first = lab.reader.snapshot()
    assert not first.changed
    monkeypatch.setattr(Snapshot, "compare", lambda self: pytest.fail("all jobs were compared"))
    monkeypatch.setattr(Records, "has_order", lambda self, jobs: pytest.fail("all jobs were looked at"))
    monkeypatch.setattr(ListedRecords, "_make", lambda *args: pytest.fail("all jobs were looked at"))
    again = lab.reader.snapshot()
    assert again.records is first.records and not again.changed
    with lab.store.transaction() as tx:
        for job, digest in (("j3", "0" * 16), ("j2", "1" * 16)):
            tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1, ran_with=digest))
    assert list(lab.reader.snapshot().changed) == ["j2", "j3"]
    with lab.store.transaction() as tx:
        tx.change("j3", Event.AUTO_REQUEUED, Change(state=State.QUEUED))
    assert list(lab.reader.snapshot().changed) == ["j2"]
    assert not first.changed
