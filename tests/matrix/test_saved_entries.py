"""Entries that were saved are those of the manifest, or they are not used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher.matrix import saved_entries
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


def test_what_was_saved_is_what_the_manifest_says(tmp_path: Path) -> None:
    data, path = manifest(env={"A": "1"}), tmp_path / "matrix.saved"
    entries = parse_manifest(data, "m.json")
    saved_entries.save(path, tmp_path, data, entries)
    found = saved_entries.read(path, data)
    assert found == entries and found is not None
    assert list(found) == list(entries)
    assert saved_entries.read(path, data + b"\n") is None, "another text"
    before = path.stat()
    saved_entries.save(path, tmp_path, data, entries)
    assert path.stat() == before, "it is there already"
    other = manifest(count=30)
    saved_entries.save(path, tmp_path, other, parse_manifest(other, "m.json"))
    assert saved_entries.read(path, data) is None
    assert len(saved_entries.read(path, other) or ()) == 30
    assert list(tmp_path.iterdir()) == [path]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:20], flip])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    data, path = manifest(), tmp_path / "matrix.saved"
    saved_entries.save(path, tmp_path, data, parse_manifest(data, "m.json"))
    path.write_bytes(damage(path.read_bytes()))
    assert saved_entries.read(path, data) is None


def test_one_of_another_version_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, path = manifest(), tmp_path / "matrix.saved"
    saved_entries.save(path, tmp_path, data, parse_manifest(data, "m.json"))
    monkeypatch.setattr(saved_entries, "_FORM", "another")
    assert saved_entries.read(path, data) is None


def test_entries_without_a_packed_form_are_not_saved(tmp_path: Path) -> None:
    data, path = manifest(big=2**70), tmp_path / "matrix.saved"
    saved_entries.save(path, tmp_path, data, parse_manifest(data, "m.json"))
    assert list(tmp_path.iterdir()) == []
