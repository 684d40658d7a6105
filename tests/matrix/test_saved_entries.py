"""Entries that were saved are those of the manifest, or they are not used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher.matrix import saved_entries
from dispatcher.matrix.entries import Entries, kind_of
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import parse_manifest


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_entries, "_LARGE_BYTES", 1)


def manifest(count: int = 1_000, **fields: Any) -> bytes:
    return json.dumps(
        [
            {"job_id": f"job_{n}", "method": "fft", "seed": n, "needs": ["job_0"] if n else [], **fields}
            for n in range(count)
        ]
    ).encode()


class Lab:
    """A manifest in a file, and the file with its entries."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.saved = root / "matrix.saved"
        self.manifest = root / "matrix.json"

    def save(self, data: bytes) -> Entries:
        self.manifest.write_bytes(data)
        entries = parse_manifest(data, "m.json")
        saved_entries.save(self.saved, self.root, data, self.manifest.stat(), entries)
        return entries

    def read(self, data: bytes | None = None) -> Entries | None:
        if data is not None:
            self.manifest.write_bytes(data)
        with open(self.manifest, "rb") as file:
            return saved_entries.read(self.saved, file)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_what_was_saved_is_what_the_manifest_says(lab: Lab) -> None:
    data = manifest(env={"A": "1"})
    entries = lab.save(data)
    found = lab.read()
    assert found == entries and found is not None
    assert list(found) == list(entries)
    assert list(found.kinds([*entries, "unknown"])) == list(entries.kinds([*entries, "unknown"]))
    assert lab.read(data + b"\n") is None, "another text"
    assert lab.read(data) == entries, "the same text in another file"
    other = manifest(count=30)
    lab.save(other)
    assert lab.read(data) is None
    assert len(lab.read(other) or ()) == 30


def test_it_is_there_already(lab: Lab) -> None:
    data = manifest()
    entries, before = lab.save(data), lab.saved.stat()
    saved_entries.save(lab.saved, lab.root, data, lab.manifest.stat(), entries)
    after = lab.saved.stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert sorted(lab.root.iterdir()) == [lab.manifest, lab.saved]


def test_a_file_that_has_not_changed_is_not_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    data = manifest()
    entries = lab.save(data)
    digests = []
    digest = saved_entries._digest
    monkeypatch.setattr(saved_entries, "_digest", lambda data: digests.append(len(data)) or digest(data))
    assert lab.read() == entries
    assert len(digests) == 1, "written within the same tick of the clock as the saved entries"
    later_ns = lab.manifest.stat().st_ctime_ns + 3600 * 10**9
    os.utime(lab.saved, ns=(later_ns, later_ns))
    assert lab.read() == entries
    assert len(digests) == 1
    # A text of the same length, in the same file, with the old time.
    times = lab.manifest.stat()
    changed = data.replace(b'"seed": 7', b'"seed": 8')
    assert changed != data
    lab.manifest.write_bytes(changed)
    os.utime(lab.manifest, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert lab.read() is None
    assert len(digests) == 2
    # Another file with the old text, under the same name.
    os.replace(shutil.copy2(lab.manifest, lab.root / "copy"), lab.manifest)
    assert lab.read(data) == entries
    assert len(digests) == 3


def test_kinds_tell_which_entries_are_alike(lab: Lab) -> None:
    """Also where neighbours differ, and where a number has no packed form."""
    documents = [
        {"job_id": f"j{n}", "method": "fft", "seed": 2**70 if n == 70 else n}
        | ({"gpus": n % 3} if n % 2 else {})
        | ({"needs": ["j0"]} if n and n % 10 == 0 else {})
        for n in range(200)
    ]
    jobs = [str(document["job_id"]) for document in documents]
    for data in (json.dumps(documents).encode(), json.dumps(documents[:70]).encode()):
        entries = lab.save(data)
        for found in filter(None, (entries, lab.read(), entries.with_others([Entry(job_id="x", method="m")]))):
            kinds = dict(zip(jobs, found.kinds(jobs), strict=True))
            for job in entries:
                assert (kinds[job] == 0) == bool(entries[job].needs)
                same = [other for other in entries if kinds[other] == kinds[job]]
                assert not kinds[job] or same == [o for o in entries if kind_of(entries[o]) == kind_of(entries[job])]
            assert list(found.kinds(["x", "nobody"])) == [0, 0]
            assert [found[job] for job in entries] == list(entries.values())
    assert lab.read() is not None


def test_ids_that_are_in_memory_are_not_kept_twice(lab: Lab) -> None:
    entries = lab.save(manifest(count=50))
    known = ["".join(list(job)) for job in entries]
    with open(lab.manifest, "rb") as file:
        found = saved_entries.read(lab.saved, file, known)
    assert found is not None and found == entries
    assert all(job is other for job, other in zip(found, known, strict=True))
    with open(lab.manifest, "rb") as file:
        assert saved_entries.read(lab.saved, file, known[::-1]) == entries


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:20], flip])
def test_a_damaged_file_is_as_good_as_none(lab: Lab, damage: Callable[[bytes], bytes]) -> None:
    lab.save(manifest())
    lab.saved.write_bytes(damage(lab.saved.read_bytes()))
    assert lab.read() is None


def test_one_of_another_version_is_left_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.save(manifest())
    monkeypatch.setattr(saved_entries, "_VERSION", "another")
    assert lab.read() is None


def test_entries_without_a_packed_form_are_not_saved(lab: Lab) -> None:
    lab.save(manifest(big=2**70))
    assert list(lab.root.iterdir()) == [lab.manifest]
