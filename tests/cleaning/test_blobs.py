"""`dispatcher clean --blobs`: only what nothing refers to, and nothing that is about to be used."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from fleet import Fleet, shell

from dispatcher import config
from dispatcher.base.schema.reading import fields
from dispatcher.cleaning import blobs
from dispatcher.cleaning.tree import Links, Size
from dispatcher.provenance.blobs import Blobs

OLD_S = time.time() - 2 * 86400


@pytest.fixture
def used(fleet: Fleet) -> Fleet:
    """A workspace with one attempt that has a record of its code."""
    # What is recorded here is written by the tests.
    fleet.write_config("provenance: false\n" if "provenance" in fields(config.Config) else "")
    fleet.write_manifest([shell("a", "echo said")])
    fleet.run_all()
    return fleet


def aged(path: Path) -> Path:
    os.utime(path, (OLD_S, OLD_S))
    return path


def refer(fleet: Fleet, **fields: object) -> None:
    fleet.attempt("a").provenance.write_text(json.dumps({"collected_at": "2026-11-23T03:00:00Z", **fields}))


def listed(fleet: Fleet, *words: str) -> list[str]:
    return [item["what"] for item in json.loads(fleet.run("clean", "--blobs", "--json", *words))["items"]]


def test_only_what_no_attempt_refers_to(used: Fleet) -> None:
    store = Blobs(used.layout)
    kept, packages, host = (
        store.add_diff(b"kept"),
        store.add_packages(["numpy==2.1.0"]),
        store.add_packages(["jax==0.5"]),
    )
    orphan, young = store.add_diff(b"orphan"), store.add_diff(b"young")
    refer(used, git={"diff": kept, "commit": "1" * 40}, packages=packages)
    used.attempt("a").provenance_host.write_text(json.dumps({"packages": host}))
    for path in used.layout.provenance_dir.rglob("*.*"):
        if young not in path.name:
            aged(path)
    strangers = [used.layout.provenance_dir / "diffs" / name for name in ("notes.txt", "A" * 64 + ".patch", ".x.tmp")]
    for stranger in strangers:
        stranger.write_text("mine")
        aged(stranger)
    assert listed(used) == [f"provenance/diffs/{orphan}.patch"]
    assert store.diff(orphan) == b"orphan"
    assert listed(used, "--yes") == [f"provenance/diffs/{orphan}.patch"]
    assert store.diff(orphan) is None
    assert store.diff(kept) == b"kept" and store.diff(young) == b"young"
    assert store.packages(packages) == ["numpy==2.1.0"] and store.packages(host) == ["jax==0.5"]
    assert all(stranger.read_text() == "mine" for stranger in strangers)
    assert listed(used) == []


@pytest.mark.parametrize("content", ["", "{", '{"packages": 7}', "\udcff", '{"git": []}'])
def test_a_record_that_cannot_be_read_may_refer_to_anything(used: Fleet, content: str) -> None:
    orphan = Blobs(used.layout).add_diff(b"orphan")
    aged(used.layout.provenance_diff(orphan))
    used.attempt("a").provenance.write_text(content, errors="surrogateescape")
    done = used.try_("clean", "--blobs", "--yes")
    assert done.returncode != 0 and "provenance.json" in done.stderr and "nothing that attempts share" in done.stderr
    assert Blobs(used.layout).diff(orphan) == b"orphan"
    used.attempt("a").provenance.unlink()
    assert len(listed(used, "--yes")) == 1


def test_one_that_is_used_again_meanwhile_stays(used: Fleet) -> None:
    store = Blobs(used.layout)
    digest = store.add_diff(b"again")
    aged(used.layout.provenance_diff(digest))
    [found] = blobs.orphans(used.layout, [], 0.0)
    assert store.add_diff(b"again") == digest
    assert blobs.remove(used.layout, found, Links(), _raise) == Size()
    assert store.diff(digest) == b"again"
    assert blobs.orphans(used.layout, [], 0.0) == []


def test_a_cleaner_that_was_killed_between_two_names(used: Fleet) -> None:
    store = Blobs(used.layout)
    gone, again = store.add_diff(b"gone"), store.add_diff(b"again")
    for digest in (gone, again):
        path = aged(used.layout.provenance_diff(digest))
        os.rename(path, path.with_name(f".{path.name}.cleaning"))
    # One was made anew since, and is the younger one.
    store.add_diff(b"again")
    blobs.put_back(used.layout)
    assert store.diff(gone) == b"gone" and store.diff(again) == b"again"
    assert sorted(os.listdir(used.layout.provenance_diff(gone).parent)) == sorted([f"{gone}.patch", f"{again}.patch"])
    assert listed(used, "--yes") == [f"provenance/diffs/{gone}.patch"]


def test_links_are_no_blobs(used: Fleet, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    data = b"precious"
    name = f"{hashlib.sha256(data).hexdigest()}.patch"
    (outside / name).write_bytes(data)
    aged(outside / name)
    used.layout.provenance_dir.mkdir(exist_ok=True)
    (used.layout.provenance_dir / "diffs").symlink_to(outside)
    used.run("clean", "--yes")
    assert (outside / name).read_bytes() == data
    (used.layout.provenance_dir / "diffs").unlink()
    (used.layout.provenance_dir / "diffs").mkdir()
    (used.layout.provenance_dir / "diffs" / name).symlink_to(outside / name)
    os.utime(used.layout.provenance_dir / "diffs" / name, (OLD_S, OLD_S), follow_symlinks=False)
    used.run("clean", "--yes")
    assert (outside / name).read_bytes() == data


def test_archives_that_no_record_names(used: Fleet) -> None:
    used.layout.code_dir.mkdir()
    names = {letter: hashlib.sha256(letter.encode()).hexdigest() for letter in "abcd"}
    for letter, digest in names.items():
        path = used.layout.code_archive(digest)
        path.write_text(letter)
        if letter != "d":
            aged(path)
    ran = msgspec.structs.replace(used.record("a"), code=f"1a2b3c4d5e6f {names['a'][:12]}")
    (used.layout.code_dir / f"1a2b3c4d5e6f-{names['b'][:12]}.kept").write_text("{}")
    assert [one.path for one in blobs.orphans(used.layout, [ran], 0.0)] == [f"code/{names['c']}.tar"]
    assert {one.path for one in blobs.orphans(used.layout, [], 0.0)} == {
        f"code/{names['a']}.tar", f"code/{names['c']}.tar",
    }  # fmt: skip
    [found] = blobs.orphans(used.layout, [ran], 0.0)
    blobs.remove(used.layout, found, Links(), _raise)
    assert sorted(path.stem for path in used.layout.code_dir.glob("*.tar")) == sorted(names[letter] for letter in "abd")


def _raise(path: str, error: OSError) -> None:
    raise AssertionError(path) from error
