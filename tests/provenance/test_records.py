"""What attempts ran from, as it is kept and read."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import msgspec
import pytest

from dispatcher.provenance.blobs import Blobs
from dispatcher.provenance.read import package_lines, read_provenance
from dispatcher.provenance.record import GitState, HostFacts, Provenance
from dispatcher.query.provenance import provenance_facts
from dispatcher.workspace import AttemptPaths, Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "run_state").mkdir()
    return Layout(tmp_path)


@pytest.fixture
def attempt(layout: Layout) -> AttemptPaths:
    paths = layout.attempt("a", 1)
    paths.directory.mkdir(parents=True)
    return paths


def test_equal_differences_are_one_file_that_is_never_rewritten(layout: Layout) -> None:
    blobs = Blobs(layout)
    digest = blobs.add_diff(b"--- a\n+++ b\n")
    assert digest == hashlib.sha256(b"--- a\n+++ b\n").hexdigest()
    before = os.stat(layout.provenance_diff(digest))
    os.utime(layout.provenance_diff(digest), (0, 0))
    assert blobs.add_diff(b"--- a\n+++ b\n") == digest
    after = os.stat(layout.provenance_diff(digest))
    assert before.st_ino == after.st_ino
    # `dispatcher clean` spares what was in use a short time ago.
    assert after.st_mtime_ns >= before.st_mtime_ns
    assert blobs.diff(digest) == b"--- a\n+++ b\n"
    assert [path.name for path in layout.provenance_diff(digest).parent.iterdir()] == [f"{digest}.patch"]


def test_writers_at_the_same_moment_do_no_harm(layout: Layout) -> None:
    lines = [f"package{number}==1.{number}" for number in range(5000)]
    barrier = threading.Barrier(8)
    digests: list[str] = []

    def write() -> None:
        barrier.wait(10)
        digests.append(Blobs(layout).add_packages(lines))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(digests) == 8
    assert len(set(digests)) == 1
    assert Blobs(layout).packages(digests[0]) == lines
    assert len(list((layout.provenance_dir / "packages").iterdir())) == 1


def test_a_damaged_blob_is_not_shown(layout: Layout) -> None:
    digest = Blobs(layout).add_diff(b"one")
    layout.provenance_diff(digest).write_bytes(b"two")
    assert Blobs(layout).diff(digest) is None
    assert Blobs(layout).diff("0" * 64) is None


@pytest.mark.parametrize(("mode", "expected"), [(0o755, 0o644), (0o775, 0o664)])
def test_blobs_have_the_workspaces_group_bit(layout: Layout, mode: int, expected: int) -> None:
    layout.root.chmod(mode)
    path = layout.provenance_diff(Blobs(layout).add_diff(b"x"))
    assert path.stat().st_mode & 0o777 == expected
    assert path.parent.stat().st_mode & 0o777 == expected | 0o111


def test_a_record_of_a_later_version_is_read(layout: Layout, attempt: AttemptPaths) -> None:
    document = {"collected_at": "2026-11-23T03:00:00.123Z", "git": {"commit": "a" * 40, "moon": 1}, "new": [2]}
    attempt.provenance.write_text(json.dumps(document))
    found = read_provenance(layout, "a", 1)
    assert found is not None
    assert found.git == GitState(commit="a" * 40)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"collected_at": 3}', b"\xff", b"[" * 100_000])
def test_what_is_no_record_is_not_recorded(layout: Layout, attempt: AttemptPaths, content: bytes) -> None:
    attempt.provenance.write_bytes(content)
    assert read_provenance(layout, "a", 1) is None


def test_a_pipe_in_place_of_the_record_does_not_block(layout: Layout, attempt: AttemptPaths) -> None:
    os.mkfifo(attempt.provenance)
    assert read_provenance(layout, "a", 1) is None


def test_the_host_completes_what_the_pod_has_recorded(layout: Layout, attempt: AttemptPaths) -> None:
    own = Provenance(collected_at="2026-11-23T03:00:00.123Z", problems=("git: not installed",))
    attempt.provenance.write_bytes(msgspec.json.encode(own))
    there = HostFacts(host="gpu-7", driver="580.1", package_lines=("jax==1.0",), problems=("no nvidia-smi",))
    attempt.provenance_host.write_bytes(msgspec.json.encode(there))
    found = read_provenance(layout, "a", 1)
    assert found is not None
    assert (found.host, found.driver) == ("gpu-7", "580.1")
    assert found.problems == ("git: not installed", "no nvidia-smi")
    assert package_lines(layout, "a", 1) == ["jax==1.0"]


def test_code_is_known_only_when_all_of_it_is() -> None:
    clean = GitState(commit="a" * 40)
    assert clean.is_known
    assert msgspec.structs.replace(clean, is_dirty=True, diff="b" * 64).is_known
    assert msgspec.structs.replace(clean, is_dirty=True, diff="b" * 64, diff_omitted=True).is_known
    assert msgspec.structs.replace(clean, untracked={"notes.txt": "c" * 64}).is_known
    for unknown in (
        GitState(),
        msgspec.structs.replace(clean, is_dirty=True),
        msgspec.structs.replace(clean, untracked={"pipe": ""}),
        msgspec.structs.replace(clean, untracked_more=1),
        msgspec.structs.replace(clean, submodules={"lib": f"{'d' * 40}+dirty"}),
        msgspec.structs.replace(clean, unchecked=("weights.bin",)),
    ):
        assert not unknown.is_known


def test_show_says_that_changes_inside_a_submodule_are_not_recorded(layout: Layout, attempt: AttemptPaths) -> None:
    git = {"commit": "a" * 40, "submodules": {"lib": "b" * 40, "more": f"{'c' * 40}+dirty"}}
    attempt.provenance.write_text(json.dumps({"collected_at": "2026-11-23T03:00:00.123Z", "git": git}))
    said = provenance_facts(layout, "a", 1)["submodules"]
    assert said == "lib bbbbbbbbbbbb, more cccccccccccc with uncommitted changes, which are not recorded"
