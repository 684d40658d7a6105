"""Snapshots of tracked files as they are now, and of given files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from repositories import Repository, unpacked

from dispatcher.errors import CodeError
from dispatcher.outlets.code.ship import ship, ship_dirty, ship_files
from dispatcher.workspace import Layout


def test_tracked_files_as_they_are_and_no_untracked_ones(repository: Repository, tmp_path: Path) -> None:
    head = repository.git("rev-parse", "HEAD")
    repository.write("train.py", "changed\n")
    repository.write("added.py", "added\n")
    repository.git("add", "added.py")
    repository.write("untracked.py")
    snapshot = ship_dirty(Layout(repository.root))
    found = unpacked(snapshot.path, tmp_path / "out")
    assert found.keys() == {".gitignore", "train.py", "added.py"}
    assert (found["train.py"], found["added.py"]) == ("changed\n", "added\n")
    assert (snapshot.commit, snapshot.is_dirty) == (head, True)
    assert snapshot.label == f"{head[:12]}+dirty {snapshot.digest[:12]}"
    assert snapshot.commit_text == f"{head}+dirty"


def test_nothing_of_the_users_repository_changes(repository: Repository) -> None:
    repository.write("train.py", "changed\n")
    repository.write("added.py", "added\n")
    repository.git("add", "added.py")
    index = (repository.root / ".git/index").read_bytes()
    before = [repository.git("status", "--porcelain"), repository.git("stash", "list"), repository.git("show-ref")]
    # As while the user's own `git commit` runs.
    (repository.root / ".git/index.lock").touch()
    ship_dirty(Layout(repository.root))
    (repository.root / ".git/index.lock").unlink()
    after = [repository.git("status", "--porcelain"), repository.git("stash", "list"), repository.git("show-ref")]
    assert before == after
    assert index == (repository.root / ".git/index").read_bytes()


def test_without_changes_it_is_head(repository: Repository) -> None:
    layout = Layout(repository.root)
    repository.write("untracked.py")
    assert ship_dirty(layout) == ship(layout)


def test_changes_elsewhere_or_in_the_run_state_are_none_of_the_code(repository: Repository) -> None:
    repository.write("lab/train.py")
    repository.write("lab/run_state/matrix_status.json", "{}\n")
    repository.git("add", "-f", "lab/run_state")
    repository.commit()
    repository.write("train.py", "changed above\n")
    repository.write("lab/run_state/matrix_status.json", "changed\n")
    layout = Layout(repository.root / "lab")
    assert ship_dirty(layout) == ship(layout)


def test_the_same_changes_give_the_same_digest_at_any_time(repository: Repository) -> None:
    repository.write("train.py", "changed\n")
    first = ship_dirty(Layout(repository.root))
    for path in Layout(repository.root).code_dir.iterdir():
        path.unlink()
    os.utime(repository.root / "train.py", (1, 1))
    assert ship_dirty(Layout(repository.root)) == first


def test_a_deleted_file_is_not_in_it(repository: Repository, tmp_path: Path) -> None:
    (repository.root / "train.py").unlink()
    snapshot = ship_dirty(Layout(repository.root))
    assert unpacked(snapshot.path, tmp_path / "out").keys() == {".gitignore"}
    assert snapshot.is_dirty


@pytest.mark.parametrize("state", ["conflict", "intent to add"])
def test_an_index_that_cannot_be_stashed_is_an_error(repository: Repository, state: str) -> None:
    if state == "intent to add":
        repository.write("later.py", "x\n")
        repository.git("add", "--intent-to-add", "later.py")
    else:
        repository.git("checkout", "-q", "-b", "other")
        repository.write("train.py", "theirs\n")
        repository.commit()
        repository.git("checkout", "-q", "main")
        repository.write("train.py", "ours\n")
        repository.commit()
        with pytest.raises(AssertionError, match="git merge other"):
            repository.git("merge", "other")
    with pytest.raises(CodeError, match=r"`git stash` failed: [\s\S]*\nfinish the merge, and `git add` files in full"):
        ship_dirty(Layout(repository.root))


@pytest.mark.parametrize("times", [2, 100])
def test_a_file_that_is_saved_while_git_reads_it(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, times: int
) -> None:
    """The words are those of git 2.39, when a file is truncated and written all the time."""
    tried = tmp_path / "tried"
    said = "error: short read while indexing train.py\nerror: train.py: failed to insert into database"
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\ncase " $* " in *" stash create "*)\n  echo >>"{tried}"\n'
        f'  [ "$(wc -l <"{tried}")" -gt {times} ] || {{ echo "{said}" >&2; exit 1; }}\nesac\n'
        f'exec "{shutil.which("git")}" "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    repository.write("train.py", "changed\n")
    if times < 100:
        assert ship_dirty(Layout(repository.root)).is_dirty
    else:
        with pytest.raises(CodeError, match=r"indexing train.py[\s\S]*\nstop what writes this file all"):
            ship_dirty(Layout(repository.root))
        assert len(tried.read_text()) == 5


def test_a_user_without_a_name_in_git(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    repository.git("config", "user.useConfigOnly", "true")
    repository.write("train.py", "changed\n")
    assert ship_dirty(Layout(repository.root)).is_dirty


def test_given_files_only_without_git(tmp_path: Path) -> None:
    root = tmp_path / "a'; echo foo"
    (root / "sub").mkdir(parents=True)
    for name in ("one.py", "sub/two\n.py", "other.py"):
        (root / name).write_text(name)
    (root / "one.py").chmod(0o700)
    (root / "link").symlink_to("one.py")
    snapshot = ship_files(Layout(root), ["sub/two\n.py", root / "one.py", "link", "./one.py"])
    assert unpacked(snapshot.path, tmp_path / "out") == {
        "link": "-> one.py",
        "one.py": "one.py",
        "sub/two\n.py": "sub/two\n.py",
    }
    assert os.access(tmp_path / "out/one.py", os.X_OK)
    assert (snapshot.commit, snapshot.is_dirty, snapshot.label) == ("", False, snapshot.digest[:12])


def test_the_order_and_the_time_of_given_files_do_not_matter(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    first = ship_files(Layout(tmp_path), ["a", "b"])
    os.utime(tmp_path / "a", (1, 1))
    assert ship_files(Layout(tmp_path), ["b", "a"]) == first


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("missing", r"missing: cannot be shipped: No such file"),
        ("sub", r"sub: not a file: name the files of a directory"),
        ("../outside", "only files below the workspace"),
        ("/etc/passwd", "only files below the workspace"),
        (".", "only files below the workspace"),
    ],
)
def test_what_cannot_be_shipped_is_an_error(tmp_path: Path, path: str, fault: str) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(CodeError, match=fault):
        ship_files(Layout(tmp_path), [path])


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(CodeError, match="no files are given"):
        ship_files(Layout(tmp_path), [])
