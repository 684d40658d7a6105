"""What an attempt's directory says of its cgroup and its slot: its job may write there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.outlets.base import Slot
from dispatcher.outlets.local import cgroups
from dispatcher.outlets.local.slot_file import read_slot
from dispatcher.workspace import AttemptPaths, Layout


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptPaths:
    """Of attempt 1 of the job `a`, on a host whose cgroups are below `cgroups`."""
    found = Layout(tmp_path).attempt("a", 1)
    found.directory.mkdir(parents=True)
    root = tmp_path / "cgroups"
    root.mkdir()
    monkeypatch.setattr(cgroups, "own_directory", lambda: (root, root))
    return found


def test_the_cgroup_of_an_attempt_that_has_ended_is_removed(paths: AttemptPaths, tmp_path: Path) -> None:
    own = tmp_path / "cgroups" / "attempt.a.1.0123abcd"
    own.mkdir()
    paths.cgroup.write_text(f"{own}\n")
    cgroups.remove_of(paths)
    assert not own.exists()


@pytest.mark.parametrize("name", ["attempt.b.1.0123abcd", "attempt.a.1.2.0123abcd", "../attempt.a.1.0123abcd", "x"])
def test_a_job_cannot_name_what_is_not_its_own(paths: AttemptPaths, tmp_path: Path, name: str) -> None:
    other = tmp_path / "cgroups" / name
    other.mkdir()
    (other / "cgroup.kill").write_text("")
    paths.cgroup.write_text(f"{other}\n")
    cgroups.remove_of(paths)
    assert (other / "cgroup.kill").read_text() == "", "nothing in it is killed"


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"/\xff\n", b"attempt.a.1.0123abcd", b"{root}/\0/attempt.a.1.0123abcd"]
)
def test_what_is_no_cgroup_is_left_alone(paths: AttemptPaths, tmp_path: Path, content: bytes) -> None:
    paths.cgroup.write_bytes(content.replace(b"{root}", os.fsencode(tmp_path / "cgroups")))
    cgroups.remove_of(paths)


@pytest.mark.parametrize("content", ['{"cpus": -8}', '{"gpu_memory_mib": -1024}', '{"memory_mib": "all"}', "{"])
def test_a_job_cannot_make_room_that_is_not_there(paths: AttemptPaths, content: str) -> None:
    paths.slot.write_text(content)
    assert read_slot(paths) == Slot()


def test_nobody_waits_for_the_writer_of_a_pipe(paths: AttemptPaths) -> None:
    os.mkfifo(paths.cgroup)
    os.mkfifo(paths.slot)
    cgroups.remove_of(paths)
    assert read_slot(paths) == Slot()
