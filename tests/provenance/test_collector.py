"""Recording beside the loop: one look for many attempts, a deadline for all, no failure that a job notices."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from pathlib import Path

import pytest
from fleet import wait_until
from origins import an_origin, counting_git, recorded
from repositories import Repository

from dispatcher.provenance.blobs import Blobs
from dispatcher.provenance.collector import Collector
from dispatcher.provenance.read import package_lines, read_provenance
from dispatcher.provenance.record import GitState, GpuName, HostFacts
from dispatcher.workspace import Layout


def test_an_attempt_is_recorded(repository: Repository, layout: Layout) -> None:
    repository.write("train.py", "print(2)\n")
    host = HostFacts(host="ws1", driver="580.1", gpus=(GpuName(index=2, name="NVIDIA H200", uuid="GPU-1"),))
    command = (sys.executable, "-P", "train.py")
    found = recorded(layout, command=command, host=host, environment={"XLA_FLAGS": "--x"}, env_names=("WANDB_API_KEY",))
    assert found is not None
    assert found.git is not None
    assert found.git.is_dirty
    assert (found.host, found.driver, found.gpus) == ("ws1", "580.1", host.gpus)
    assert found.command == command
    assert (found.environment, found.env_names) == ({"XLA_FLAGS": "--x"}, ("WANDB_API_KEY",))
    assert found.python is not None
    assert found.python.executable == sys.executable
    assert found.python.version == sys.version.split()[0]
    lines = package_lines(layout, "a", 1)
    assert lines is not None
    assert lines == sorted(lines)
    assert any(line.startswith("msgspec==") for line in lines)
    assert found.problems == ()


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_records_have_the_workspaces_group_bit_and_appear_complete(layout: Layout, mode: int) -> None:
    layout.root.chmod(mode)
    assert recorded(layout) is not None
    paths = layout.attempt("a", 1)
    assert bool(paths.provenance.stat().st_mode & stat.S_IWGRP) == bool(mode & stat.S_IWGRP)
    assert [path.name for path in paths.directory.iterdir()] == [paths.provenance.name]


def test_attempts_that_start_together_share_one_look(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counting_git(tmp_path, monkeypatch)
    collector = Collector(layout, pause_s=3600)
    collector.note([an_origin(layout, "first", 1)])
    wait_until(layout.attempt("first", 1).provenance.exists, "the first record")
    asked = calls.read_text().split().count("status")
    for number in range(500):
        collector.note([an_origin(layout, "many", number + 1)])
    assert not layout.attempt("many", 1).provenance.exists()
    collector.close(60)
    assert all(read_provenance(layout, "many", number + 1) for number in range(500))
    assert asked == 1
    assert calls.read_text().split().count("status") == 2


def test_a_look_begins_after_the_last_start_that_it_is_for(repository: Repository, layout: Layout) -> None:
    """A change between two starts belongs to the second: a look from before it does not count."""
    collector = Collector(layout, pause_s=0.2)
    commits = []
    for number in range(1, 4):
        repository.write("train.py", f"print({number})\n")
        commits.append(repository.commit())
        collector.note([an_origin(layout, "a", number)])
        wait_until(layout.attempt("a", number).provenance.exists, "its record")
    collector.close(60)
    found = [read_provenance(layout, "a", number) for number in range(1, 4)]
    assert [one.git.commit for one in found if one and one.git] == commits


def test_code_that_is_known_is_not_asked_for(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting_git(tmp_path, monkeypatch)
    known = GitState(commit="a" * 40, shipped="b" * 64)
    found = recorded(layout, git=known)
    assert found is not None
    assert found.git == known
    elsewhere = recorded(layout, runs_workspace=False, host=None)
    assert elsewhere is not None
    assert (elsewhere.git, elsewhere.host, elsewhere.python) == (None, None, None)
    assert calls.read_text() == ""


def test_a_git_that_hangs_is_killed_with_its_children_and_left_alone(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    script = f"#!/bin/bash\necho $$ >>{tmp_path}/pids\nsleep 987 &\necho $! >>{tmp_path}/pids\nwait\n"
    (folder / "git").write_text(script)
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    collector = Collector(layout, deadline_s=1.0, pause_s=0.01)
    collector.note([an_origin(layout, "a", 1)])
    wait_until(layout.attempt("a", 1).provenance.exists, "its record")
    asked = (tmp_path / "pids").read_text().split()
    for pid in asked:
        wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), "the program is gone")
    # The next attempts do not wait for it.
    collector.note([an_origin(layout, "a", 2)])
    collector.close(60)
    assert (tmp_path / "pids").read_text().split() == asked
    for number in (1, 2):
        found = read_provenance(layout, "a", number)
        assert found is not None
        assert found.git is None
        assert found.problems == ("git: no answer within 1 s",)


def test_without_git_or_a_repository_the_rest_is_recorded(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Layout(tmp_path / "plain")
    plain.run_state.mkdir(parents=True)
    found = recorded(plain)
    assert found is not None
    assert (found.git, found.host, found.problems) == (None, "here", ("git: not in a repository",))
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", os.fspath(empty))
    found = recorded(layout)
    assert found is not None
    assert (found.git, found.host, found.problems) == (None, "here", ("git: not installed",))


def test_a_record_that_cannot_be_written_is_no_failure(layout: Layout) -> None:
    collector = Collector(layout, pause_s=0.01)
    gone = an_origin(layout, "gone", 1)
    Path(gone.directory).rmdir()
    collector.note([gone, an_origin(layout, "a", 1)])
    collector.close(60)
    assert read_provenance(layout, "gone", 1) is None
    assert read_provenance(layout, "a", 1) is not None


def test_blobs_that_cannot_be_written_are_a_problem_of_the_record(repository: Repository, layout: Layout) -> None:
    repository.write("train.py", "print(2)\n")
    layout.provenance_dir.write_text("a file where a directory is needed")
    found = recorded(layout, command=(sys.executable, "-c", ""))
    assert found is not None
    assert found.git is not None
    assert found.git.diff_omitted
    assert found.git.diff_stat == "1 file changed, 1 insertion(+), 1 deletion(-)"
    assert found.packages is None
    assert len(found.problems) == 2


def test_a_pod_waits_neither_before_nor_at_its_end_for_what_hangs(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, returned = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        release.wait(600)
        returned.set()

    monkeypatch.setattr(Blobs, "add_packages", hangs)
    collector = Collector(layout)
    collector.note([an_origin(layout, "a", 1, command=(sys.executable, "-c", ""))])
    begun_s = time.monotonic()
    collector.close(0.2)
    assert time.monotonic() - begun_s >= 0.2 and not returned.is_set()
    release.set()


def test_words_that_are_no_utf8_are_recorded(layout: Layout) -> None:
    found = recorded(layout, command=("echo", os.fsdecode(b"caf\xe9"), "\N{GRINNING FACE}"))
    assert found is not None
    assert found.command == ("echo", "caf\\xe9", "\N{GRINNING FACE}")


def test_an_address_that_is_no_utf8_is_recorded(repository: Repository, layout: Layout) -> None:
    repository.git("remote", "add", "origin", os.fsdecode(b"https://git.lab.org/\xff.git"))
    found = recorded(layout)
    assert found is not None
    assert found.git is not None
    assert found.git.remote == "https://git.lab.org/\\xff.git"


def test_a_problem_that_is_no_utf8_is_recorded(layout: Layout, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "python").write_text("#!/bin/sh\nexit 3\n")
    (folder / "python").chmod(0o755)
    found = recorded(layout, command=("python", "train.py"), path=os.fspath(folder))
    assert found is not None
    assert any("caf\\xe9/python does not tell" in problem for problem in found.problems)
