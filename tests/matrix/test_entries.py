"""Entries in little memory: what is asked for is what was added."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from dispatcher.matrix.entries import Entries
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import parse_manifest

COUNT = 10_000
# Everything that an entry may have, in values that a packed form could change.
RICH: dict[str, Any] = {
    "method": "fft", "x": None, "y": [1, 2.0, {"z": True}], "empty": {}, "command": ["python", "{script}"], "gpus": 0,
    "needs": ["job_0"], "priority": -3, "retries": 2, "retry_on": ["lost"], "time_limit": "1-12:00:00",
    "env": {"OMP_NUM_THREADS": 2}, "outlet": ["b", "a"], "resources": {"chip": "h100", "memory": "64G"},
    "container": {"runtime": "apptainer", "image": "x.sif", "mounts": ["/data"]}, "queue_limit": "2h",
    "job": "gpt/train", "config": {"lr": 1e-4}, "import": ["jobs"], "big": 2**64 - 1,
}  # fmt: skip


def documents(count: int) -> list[dict[str, Any]]:
    return [
        {"job_id": f"job_{n}", "method": "fft", "seed": n, "asr_ratio": 0.5, "output_dir": f"/checkpoints/runs/{n}"}
        for n in range(count)
    ]


def test_every_entry_comes_back_as_it_was_written() -> None:
    written = [*documents(COUNT), {"job_id": "rich", **RICH}, *documents(COUNT + 5)[COUNT:]]
    entries = parse_manifest(json.dumps(written).encode(), "m.json")
    assert len(entries) == len(written) and "rich" in entries and "poor" not in entries
    assert list(entries) == [document["job_id"] for document in written]
    assert [entry.document() for entry in entries.values()] == written
    assert [entry.order for entry in entries.values()] == list(range(len(written)))
    # Again, and from the end: what was asked for last is of no importance.
    for document in reversed(written[-50:]):
        assert entries[document["job_id"]].document() == document
    alone = parse_manifest(json.dumps([{"job_id": "rich", **RICH}, {"job_id": "job_0", "method": "m"}]).encode(), "m")
    assert entries["rich"].digest() == alone["rich"].digest()
    with pytest.raises(KeyError):
        entries["poor"]


def test_what_needs_what_is_told_without_unpacking_entries() -> None:
    written = documents(200)
    for number in range(3, 200, 7):
        written[number]["needs"] = [f"job_{number - 1}", f"job_{number - 2}"]
    expected = {one["job_id"]: tuple(one["needs"]) for one in written if "needs" in one}
    entries = parse_manifest(json.dumps(written).encode(), "m.json")
    assert dict(entries.needs()) == expected
    assert dict(Entries.of(list(entries), list(entries.packed())).needs()) == expected
    other = Entry(job_id="other", method="m", needs=("job_1",))
    assert dict(entries.with_others([other]).needs()) == {**expected, "other": ("job_1",)}
    # Of one that is written again the last version counts.
    added = Entries()
    for entry in (*entries.values(), msgspec.structs.replace(entries["job_3"], needs=("job_0",)), entries["job_10"]):
        added.add(entry)
    added.add(msgspec.structs.replace(entries["job_10"], needs=()))
    assert dict(added.needs()) == {
        **{job: needs for job, needs in expected.items() if job != "job_10"},
        "job_3": ("job_0",),
    }


def test_an_entry_with_a_number_beyond_64_bits_comes_back_with_its_neighbours() -> None:
    written = documents(40)
    written[20]["seed"] = 2**70
    entries = parse_manifest(json.dumps(written).encode(), "m.json")
    assert [entry.document() for entry in entries.values()] == written


def test_an_entry_takes_a_small_part_of_what_it_takes_as_an_object() -> None:
    data = json.dumps(documents(COUNT)).encode()
    tracemalloc.start()
    try:
        entries = parse_manifest(data, "m.json")
        packed = tracemalloc.get_traced_memory()[0]
        unpacked = [entries[job] for job in entries]
        both = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(unpacked) == COUNT
    # The id of each is among the first, and some that are kept unpacked among the second.
    assert packed < (both - packed) / 3
