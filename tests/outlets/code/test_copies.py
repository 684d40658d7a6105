"""Copies of the code that jobs run from: kept under a name, complete or absent, removed when nothing needs them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from fleet import wait_until
from repositories import Repository

from dispatcher.api import Workspace
from dispatcher.base import slow
from dispatcher.cleaning.blobs import orphans
from dispatcher.errors import CodeError
from dispatcher.outlets.code import copies, git
from dispatcher.outlets.code.cache import CodeCache
from dispatcher.outlets.code.tree import remove_leftovers
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout


@pytest.fixture
def lab(tmp_path: Path) -> tuple[Layout, Repository]:
    repository = Repository(tmp_path / "a'; echo w")
    repository.write("code.txt", "one\n")
    repository.write(".gitignore", "run_state/\n")
    repository.write("odd \udcff name".encode("utf-8", "surrogateescape").decode("latin-1"), "x")
    (repository.root / "link").symlink_to("code.txt")
    repository.commit()
    return Layout(repository.root), repository


def test_equal_code_is_one_copy_and_other_code_another(lab: tuple[Layout, Repository]) -> None:
    layout, repository = lab
    first, again = copies.take(layout), copies.take(layout)
    assert first == again == copies.kept(layout, first.label)
    repository.write("code.txt", "two\n")
    second = copies.take(layout)
    assert second.is_dirty and second.label != first.label
    for snapshot, text in ((first, "one\n"), (second, "two\n")):
        copies.extract(layout, snapshot)
        copy = layout.code_copy(snapshot.digest)
        assert (copy / "code.txt").read_text() == (copy / "link").read_text() == text
        assert sorted(set(os.listdir(copy)) ^ set(os.listdir(layout.root))) == [".git"]
        assert (copy / "run_state").resolve() == layout.run_state.resolve()


def test_the_changes_of_a_copy_are_kept_as_those_of_attempts(lab: tuple[Layout, Repository]) -> None:
    layout, repository = lab
    assert copies.take(layout).changes is None
    repository.write("code.txt", "two\n")
    snapshot = copies.take(layout)
    changes = snapshot.changes
    assert changes is not None and changes.diff is not None
    assert changes.diff_stat == "1 file changed, 1 insertion(+), 1 deletion(-)"
    blob = layout.provenance_diff(changes.diff)
    assert b"-one\n+two\n" in blob.read_bytes()
    # An attempt may need them although none refers to them yet.
    assert changes.diff not in [path.stem for path in _orphans(layout)]
    layout.kept_code(snapshot.label).rename(layout.root / "aside")
    assert changes.diff in [path.stem for path in _orphans(layout)]
    blob.unlink()
    assert copies.take(layout) == snapshot and blob.exists()


def test_changes_beyond_the_limit_are_counted_only(lab: tuple[Layout, Repository]) -> None:
    layout, repository = lab
    repository.write("code.txt", "longer\n" * 200_000)
    changes = copies.take(layout).changes
    assert changes is not None and changes.diff is not None
    assert changes.diff_omitted and changes.diff_bytes > 1 << 20
    assert not layout.provenance_diff(changes.diff).exists()


def test_what_another_user_keeps_is_replaced_to_note_its_use(
    lab: tuple[Layout, Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, repository = lab
    repository.write("code.txt", "two\n")
    snapshot = copies.take(layout)
    assert snapshot.changes is not None and snapshot.changes.diff is not None
    kept, blob = layout.kept_code(snapshot.label), layout.provenance_diff(snapshot.changes.diff)
    others = [os.stat(path).st_ino for path in (kept, blob)]
    real = os.utime

    def refused(path: Path, times: Any = None, **how: Any) -> None:
        if os.stat(path).st_ino in others:
            raise PermissionError(1, "Operation not permitted", str(path))
        real(path, times, **how)

    for path in (kept, blob):
        os.utime(path, (0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", refused)
        assert copies.take(layout) == snapshot
    for path in (kept, blob):
        assert path.stat().st_mtime > time.time() - 60, path


def test_a_copy_whose_cleaner_was_killed_between_two_names_is_there(
    lab: tuple[Layout, Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, _ = lab
    snapshot = copies.take(layout)
    real = os.rename

    def killed(old: Path, new: Path) -> None:
        real(old, new)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            copies.remove(layout, snapshot.label, float("inf"))
    assert not layout.kept_code(snapshot.label).exists()
    # Others remove what killed processes have left.
    remove_leftovers(layout.code_dir)
    assert copies.kept(layout, snapshot.label) == snapshot
    assert not [path for path in layout.code_dir.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("at", ["rev-parse", "stash", "archive"])
def test_a_git_that_hangs_is_ended_and_nothing_is_submitted(
    lab: tuple[Layout, Repository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    layout, repository = lab
    repository.write("code.txt", "two\n")
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    hangs = f"echo $$ >>{tmp_path}/pids; sleep 300 & echo $! >>{tmp_path}/pids; wait"
    program.write_text(f'#!/bin/bash\n[[ " $* " != *" {at} "* ]] || {{ {hangs}; }}\nexec {shutil.which("git")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git, "TELL_AFTER_S", 0.1)
    monkeypatch.setattr(git, "LIMIT_S", 2.0)
    told: list[str] = []
    slow.tell_by(told.append)
    workspace = Workspace(layout.root)
    with pytest.raises(CodeError, match=rf"nothing was submitted.*`git {at}`.*printed nothing for 2 s"):
        workspace.submit(["true"], snapshot=True)
    # On a busy machine others are told of, too.
    assert told[-1] == f"waiting for `git {at}` in {layout.root}, which prints nothing"
    repository.write("dispatcher.yaml", "")
    assert not workspace.records()
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    wait_until(lambda: not any(is_running(int(pid)) for pid in pids), "git and its child have ended")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _orphans(layout: Layout) -> list[Path]:
    later_s = time.time() + 30 * 86400
    return [Path(orphan.path) for orphan in orphans(layout, [], 86400.0, later_s)]


def test_an_archive_that_is_kept_is_not_removed_for_its_age(lab: tuple[Layout, Repository]) -> None:
    layout, _ = lab
    snapshot = copies.take(layout)
    year_s = time.time() + 365 * 86400
    assert CodeCache(layout).remove_unused([], year_s) == []
    assert copies.remove(layout, snapshot.label, float("inf"))
    assert CodeCache(layout).remove_unused([], year_s) == [snapshot.digest]


def test_a_damaged_or_missing_archive_is_never_extracted(lab: tuple[Layout, Repository]) -> None:
    layout, _ = lab
    snapshot = copies.take(layout)
    archive = layout.code_archive(snapshot.digest)
    data = archive.read_bytes()
    archive.write_bytes(data.replace(b"one\n", b"bad\n"))
    with pytest.raises(CodeError, match=r"is damaged.*requeue"):
        copies.extract(layout, snapshot)
    archive.unlink()
    with pytest.raises(CodeError, match=r"is gone.*requeue"):
        copies.extract(layout, snapshot)
    assert [path for path in layout.code_dir.iterdir() if path.is_dir()] == []
    layout.kept_code(snapshot.label).unlink()
    with pytest.raises(CodeError, match=r"is gone.*requeue"):
        copies.kept(layout, snapshot.label)


def test_copies_are_unused_when_no_record_names_them_and_they_are_old(lab: tuple[Layout, Repository]) -> None:
    layout, repository = lab
    labels = []
    for text in ("one", "two", "three", "four"):
        repository.write("code.txt", text)
        snapshot = copies.take(layout)
        copies.extract(layout, snapshot)
        labels.append(snapshot.label)
    records = [
        Record(State.QUEUED, snapshot=labels[0]),
        Record(State.RUNNING, code=labels[1]),
        Record(State.DONE, code=labels[2], snapshot=labels[2]),
        Record(State.FAILED, snapshot=labels[3]),
        Record(State.ABANDONED, snapshot=labels[3]),
    ]
    in_use = copies.labels_in_use(records)
    assert in_use == set(labels[:2])
    assert copies.unused(layout, in_use, time.time() - 60) == {}
    for label in labels:
        os.utime(layout.kept_code(label), (0, 0))
    assert sorted(copies.unused(layout, in_use, time.time() - 60)) == sorted(labels[2:])
    copies.note_use(layout, labels[2])
    assert list(copies.unused(layout, in_use, time.time() - 60)) == labels[3:]
    digest = copies.kept(layout, labels[3]).digest
    assert copies.remove(layout, labels[3], float("inf"))
    assert not layout.code_copy(digest).exists()
    assert sorted(copies.unused(layout, set(), time.time() + 60)) == sorted(labels[:3])


def test_two_commits_with_the_same_files_share_a_directory(lab: tuple[Layout, Repository]) -> None:
    layout, repository = lab
    first = copies.take(layout)
    repository.commit(message="nothing")
    second = copies.take(layout)
    assert first.digest == second.digest and first.label != second.label
    copies.extract(layout, first)
    assert copies.remove(layout, first.label, float("inf"))
    assert copies.is_extracted(layout, second.label)
    assert copies.remove(layout, second.label, float("inf"))
    assert not layout.code_copy(second.digest).exists()
