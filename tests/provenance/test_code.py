"""The code of a workspace, as it is recorded from real repositories."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from origins import DEADLINE_S, counting_git, look, state
from repositories import Repository

from dispatcher.provenance.blobs import Blobs
from dispatcher.provenance.code import CodeReader
from dispatcher.workspace import Layout


def test_a_clean_tree(repository: Repository, layout: Layout) -> None:
    repository.git("remote", "add", "origin", "https://ada:token@git.lab.org/ada/lab.git")
    found = state(layout)
    assert found.commit == repository.git("rev-parse", "HEAD")
    assert (found.branch, found.remote) == ("main", "https://git.lab.org/ada/lab.git")
    assert not found.is_dirty
    assert found.diff is None
    assert found.is_known


def test_the_difference_can_be_applied(repository: Repository, layout: Layout, tmp_path: Path) -> None:
    repository.write("image.bin", bytes(range(256)))
    repository.commit()
    repository.write("train.py", "print(2)\n")
    repository.write("image.bin", bytes(reversed(range(256))))
    repository.write("added.py", "new\n")
    repository.git("add", "added.py")
    found = state(layout)
    assert found.is_dirty
    assert found.diff_stat == "3 files changed, 2 insertions(+), 1 deletion(-)"
    assert found.diff is not None
    patch = Blobs(layout).diff(found.diff)
    assert patch is not None
    assert len(patch) == found.diff_bytes
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", repository.root, copy], check=True)
    subprocess.run(["git", "apply", "--whitespace=nowarn"], cwd=copy, input=patch, check=True)
    for name in ("train.py", "image.bin", "added.py"):
        assert (copy / name).read_bytes() == (repository.root / name).read_bytes()


def test_equal_changes_are_equal_whatever_the_settings_of_the_user(repository: Repository, layout: Layout) -> None:
    repository.write("train.py", "print(2)\n")
    repository.write("b.py", "".join(f"{number}\n" for number in range(50)))
    repository.git("add", "b.py")
    first = state(layout)
    for setting in ("diff.noprefix", "diff.mnemonicPrefix", "diff.renames", "status.showUntrackedFiles"):
        repository.git("config", setting, "no" if setting.startswith("status") else "true")
    for setting, value in (("diff.context", "9"), ("diff.algorithm", "patience"), ("color.ui", "always")):
        repository.git("config", setting, value)
    repository.git("config", "diff.orderFile", "order")
    repository.write("order", "train.py\n")
    repository.git("config", "core.excludesFile", "order")
    assert state(layout).diff == first.diff


def test_untracked_files_have_hashes_and_ignored_ones_are_left_out(repository: Repository, layout: Layout) -> None:
    repository.write(".gitignore", "/run_state/\n*.log\n")
    repository.commit()
    repository.write("notes/a.txt", "a")
    repository.write("out.log", "ignored")
    (repository.root / "link").symlink_to("notes")
    found = state(layout)
    assert found.untracked == {
        "link": hashlib.sha256(b"notes").hexdigest(),
        "notes/a.txt": hashlib.sha256(b"a").hexdigest(),
    }
    assert not found.is_dirty
    assert found.is_known


def test_what_dispatchers_write_is_not_code(tmp_path: Path) -> None:
    """Also where the workspace is a directory of a larger repository, and does not ignore its run state."""
    repository = Repository(tmp_path / "monorepo")
    repository.write("library.py", "1\n")
    repository.write("lab/matrix/matrix.json", "[]")
    repository.write("lab/run_state/matrix_status.json", "{}")
    repository.commit()
    layout = Layout(repository.root / "lab")
    clean = state(layout)
    repository.write("lab/run_state/matrix_status.json", '{"a": 1}')
    repository.write("lab/run_state/journal/1.jsonl", "{}")
    repository.write("lab/matrix/submitted.jsonl", "{}")
    assert state(layout) == clean
    repository.write("library.py", "2\n")
    assert state(layout).is_dirty


def test_a_detached_head_and_a_repository_without_commit(repository: Repository, tmp_path: Path) -> None:
    repository.git("checkout", "-q", "--detach")
    found = state(Layout(repository.root))
    assert found.commit is not None
    assert found.branch is None
    empty = Repository(tmp_path / "empty")
    empty.write("a.py", "1")
    code = look(Layout(empty.root))
    assert code.state is not None
    assert (code.state.commit, code.state.branch) == (None, "main")
    assert code.problems == ("git: the repository has no commit yet",)
    assert not code.state.is_known


def test_the_remote_of_the_branch_is_recorded(repository: Repository, layout: Layout) -> None:
    repository.git("remote", "add", "origin", "git@host:lab/code.git")
    repository.git("remote", "add", "fork", "ssh://me@fork:22/me/code.git")
    assert state(layout).remote == "host:lab/code.git"
    repository.git("config", "branch.main.remote", "fork")
    assert state(layout).remote == "ssh://fork:22/me/code.git"
    # What an address is replaced with may hold a token: the configured one is recorded.
    repository.git("config", "url.https://token@secret/.insteadOf", "ssh://")
    assert state(layout).remote == "ssh://fork:22/me/code.git"


def test_an_unchanged_tree_costs_two_calls_of_git(
    repository: Repository, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counting_git(tmp_path, monkeypatch)
    repository.write("train.py", "print(2)\n")
    repository.write("notes.txt", "a")
    for name in ("train.py", "notes.txt"):
        os.utime(repository.root / name, (time.time() - 60, time.time() - 60))
    reader = CodeReader(layout)
    # The clock of a change of the inode cannot be set.
    reader_waits_s = 3.0
    time.sleep(reader_waits_s)
    first = reader.read(DEADLINE_S)
    calls.write_text("")
    assert reader.read(DEADLINE_S) is first
    assert calls.read_text().split() == ["config", "status"]
    repository.write("train.py", "print(3)\n")
    second = reader.read(DEADLINE_S)
    assert second.state is not None
    assert first.state is not None
    assert second.state.diff != first.state.diff
    assert second.state.untracked == first.state.untracked


def test_a_file_that_was_changed_a_moment_ago_is_looked_at_again(repository: Repository, layout: Layout) -> None:
    """Filesystems' clocks tick slowly: a second change within a tick leaves no trace but the content."""
    reader = CodeReader(layout)
    path = repository.write("train.py", "print(2)\n")
    at = path.stat()
    first = reader.read(DEADLINE_S).state
    path.write_text("print(3)\n")
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    second = reader.read(DEADLINE_S).state
    assert first is not None
    assert second is not None
    assert first.diff != second.diff


def test_a_submodule_whose_files_change_is_not_taken_for_clean(
    repository: Repository, layout: Layout, tmp_path: Path
) -> None:
    """The repository's own status is the same before and after."""
    library = Repository(tmp_path / "library")
    library.write("a.py", "1\n")
    commit = library.commit()
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", os.fspath(library.root), "lib")
    repository.commit()
    reader = CodeReader(layout)
    clean = reader.read(DEADLINE_S).state
    repository.write("lib/a.py", "2\n")
    changed = reader.read(DEADLINE_S).state
    assert clean is not None
    assert (clean.submodules, clean.is_known) == ({"lib": commit}, True)
    assert changed is not None
    assert (changed.submodules, changed.is_known) == ({"lib": f"{commit}+dirty"}, False)


def test_who_commits_meanwhile_does_not_part_the_difference_from_its_commit(
    repository: Repository, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write("other.py", "1\n")
    commit = repository.commit()
    repository.write("train.py", "print(2)\n")
    repository.write("other.py", "2\n")
    before = state(layout)
    real = subprocess.check_output(["which", "git"], text=True).strip()
    script = f'[[ " $* " != *" diff "* ]] || {real} -c user.name=a -c user.email=a@b commit -qm part train.py\n'
    (tmp_path / "git").write_text(f'#!/bin/bash\n{script}exec {real} "$@"\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = state(layout)
    assert repository.git("rev-parse", "HEAD") != commit
    assert (found.commit, found.diff) == (commit, before.diff)


def test_a_difference_that_was_cleaned_away_is_kept_again(repository: Repository, layout: Layout) -> None:
    path = repository.write("train.py", "print(2)\n")
    os.utime(path, (time.time() - 60, time.time() - 60))
    time.sleep(3.0)
    reader = CodeReader(layout)
    first = reader.read(DEADLINE_S).state
    assert first is not None
    assert first.diff is not None
    layout.provenance_diff(first.diff).unlink()
    assert reader.read(DEADLINE_S).state == first
    assert Blobs(layout).diff(first.diff) is not None


def test_the_digest_tells_differences_apart_that_are_not_kept(repository: Repository, layout: Layout) -> None:
    lines = "".join(f"{number:08d}{'x' * 90}\n" for number in range(50_000))
    repository.write("train.py", lines)
    first = state(layout)
    assert first.diff_bytes > 4_900_000
    assert first.diff_omitted
    assert first.diff is not None
    assert Blobs(layout).diff(first.diff) is None
    assert first.diff_stat == "1 file changed, 50000 insertions(+), 1 deletion(-)"
    repository.write("train.py", lines + "y\n")
    assert state(layout).diff != first.diff
    assert not layout.provenance_dir.exists()


def test_what_is_recorded_survives_json(repository: Repository, layout: Layout) -> None:
    """Names that are no UTF-8, or have newlines, are escaped."""
    for name in (b"caf\xe9.txt", b"two\nlines", b"tab\there", b"\xf0\x9f\x98\x80", b'quote"', b"back\\slash"):
        with open(os.path.join(os.fsencode(repository.root), name), "wb") as file:
            file.write(name)
    found = state(layout)
    assert set(found.untracked) == {
        "caf\\xe9.txt",
        "two\nlines",
        "tab\there",
        "\N{GRINNING FACE}",
        'quote"',
        "back\\slash",
    }
    assert all(len(digest) == 64 for digest in found.untracked.values())
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
