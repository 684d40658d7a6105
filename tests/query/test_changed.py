"""Jobs that ran with other parameters than the manifest has now."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dispatcher.matrix.entries import Entries
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import parse_manifest
from dispatcher.query.ran import RanWith
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import BY_HAND, Record, State
from dispatcher.workspace import Layout

COUNT = 300


def record(rng: random.Random, entry: Entry | None) -> Record:
    right = entry.digest() if entry is not None else "0123456789abcdef"
    ran_with = rng.choice((right, right, right, right[::-1], None, "short", right.upper()))
    fields: dict[str, Any] = {"attempt": rng.choice((0, 1, 1, 2)), "reason": rng.choice((None, "exit 1", BY_HAND))}
    if rng.random() < 0.05:
        fields["extra"] = {"seed": 2**70}
    return Record(state=rng.choice(list(State)), ran_with=ran_with, **fields)


@pytest.mark.parametrize("seed", range(10))
def test_saved_digests_tell_what_comparing_each_job_tells(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    documents = [{"job_id": f"j{n}", "method": "fft", "seed": n, "priority": n % 2} for n in range(COUNT)]
    parsed = parse_manifest(json.dumps(documents).encode(), "m.json")
    saved = Entries.of(list(parsed), list(parsed.packed()))
    others = [Entry(job_id=f"other{n}", method="m") for n in range(20)]
    jobs = [*parsed, *(f"other{n}" for n in range(30))]
    if seed % 2:
        rng.shuffle(jobs)
    entries = saved.with_others(others) if seed % 3 else saved
    snapshot = Snapshot(
        records=Records.of({job: record(rng, entries.get(job)) for job in jobs}),
        entries=entries,
        now_s=0.0,
        ran=RanWith(Layout(tmp_path)),
    )
    expected = [job for job in jobs if snapshot.differs(job)]
    assert expected, "of no use otherwise"
    asked = []
    differs = Snapshot.differs
    monkeypatch.setattr(Snapshot, "differs", lambda self, job: asked.append(job) or differs(self, job))
    assert snapshot.changed == expected
    same = {job for job in jobs if (one := saved.get(job)) and snapshot.records[job].ran_with == one.digest()}
    assert same.isdisjoint(job for job in asked if not snapshot.records[job].extra)
    assert msgspec.structs.replace(snapshot, entries=dict(entries)).changed == expected
    half = {job: snapshot.records[job] for job in jobs[::2]}
    assert snapshot.only(half).changed == [job for job in expected if job in half]
