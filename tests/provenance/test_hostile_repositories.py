"""Repositories that would run programs, block, never end, or lie: each a real one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from origins import look, recorded, state
from repositories import Repository

from dispatcher.provenance.blobs import Blobs
from dispatcher.provenance.code import CodeReader
from dispatcher.provenance.programs import TooSlowError
from dispatcher.provenance.untracked import LARGEST
from dispatcher.workspace import Layout


class GitDoes:
    """Puts a git on PATH that does something after, or `before`, it answers a command as the real one does."""

    def __init__(self, directory: Path) -> None:
        self._real = shutil.which("git")
        self._script = directory / "git"

    def __call__(self, command: str, does: str, *, before: bool = False) -> None:
        words = 'asked=("$@"); while [[ $1 == -c ]]; do shift 2; done\n'
        answer = f'{self._real} "${{asked[@]}}"\nstatus=$?\n'
        steps = (does, answer) if before else (answer, does)
        run = f'[[ $1 == {command} ]] || exec {self._real} "${{asked[@]}}"\n{steps[0]}\n{steps[1]}\nexit $status\n'
        self._script.write_text(f"#!/bin/bash\n{words}{run}")
        self._script.chmod(0o755)


@pytest.fixture
def git_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitDoes:
    folder = tmp_path / "bin"
    folder.mkdir()
    found = GitDoes(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return found


class Trap:
    """A program that notes that it ran."""

    def __init__(self, directory: Path) -> None:
        self.notes = directory / "ran"
        self.program = directory / "trap"
        self.program.write_text(f'#!/bin/sh\necho "$0 $*" >>{self.notes}\ncat\n')
        self.program.chmod(0o755)

    @property
    def ran(self) -> str:
        return self.notes.read_text() if self.notes.exists() else ""


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


def set_traps(repository: Repository, trap: Trap) -> None:
    """Name the trap wherever the configuration of a repository can name a program."""
    program = trap.program
    for name in ("evil", "a.b c", "Evil"):
        for key in ("clean", "smudge", "process"):
            repository.git("config", f"filter.{name}.{key}", f"{program} {key}")
        repository.git("config", f"filter.{name}.required", "true")
    for key in ("textconv", "command"):
        repository.git("config", f"diff.evil.{key}", f"{program} {key}")
    for key in ("diff.external", "core.pager", "pager.diff", "pager.status", "core.sshCommand", "core.editor",
                "core.fsmonitor", "core.askPass", "credential.helper", "gpg.program", "core.gitProxy",
                "interactive.diffFilter", "core.alternateRefsCommand"):  # fmt: skip
        repository.git("config", key, f"{program} {key}")
    repository.git("config", "status.submoduleSummary", "true")
    repository.git("config", "log.showSignature", "true")
    repository.git("config", "alias.status", f"!{program} alias")
    hooks = repository.root / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-auto-gc", "reference-transaction"):
        shutil.copy2(program, hooks / hook)


def test_nothing_of_a_repositorys_configuration_is_run(repository: Repository, layout: Layout, trap: Trap) -> None:
    for name in ("plain.py", "data.bin", "other.bin", "third.bin"):
        repository.write(name, "one\n")
    repository.commit()
    attributes = '*.py diff=evil\ndata.bin filter=evil diff=evil\nother.bin filter=Evil\nthird.bin filter="a.b c"\n'
    repository.write(".gitattributes", attributes)
    repository.git("add", ".gitattributes")
    set_traps(repository, trap)
    for name in ("plain.py", "data.bin", "other.bin", "third.bin", "new.txt"):
        repository.write(name, "two\n")
    code = look(layout)
    assert trap.ran == ""
    assert code.state is not None, code.problems
    assert code.state.is_dirty
    assert code.state.diff is not None
    patch = Blobs(layout).diff(code.state.diff)
    assert patch is not None
    assert b"+two" in patch
    assert code.state.untracked.keys() == {"new.txt"}
    # Whoever uses the repository would have run them: the trap works.
    subprocess.run(["git", "-c", "alias.x=status", "diff"], cwd=repository.root, capture_output=True, check=False)
    assert trap.ran != ""


def test_a_filter_that_cannot_be_switched_off_keeps_git_from_being_asked(
    repository: Repository, layout: Layout, trap: Trap
) -> None:
    repository.git("config", "filter.a=b.clean", f"{trap.program}")
    repository.write(".gitattributes", "*.py filter=a=b\n")
    repository.write("train.py", "two\n")
    code = look(layout)
    assert code.state is None
    assert "'a=b' cannot be switched off" in code.problems[0]
    assert trap.ran == ""


def test_nothing_of_a_submodules_configuration_is_run(
    repository: Repository, layout: Layout, trap: Trap, tmp_path: Path
) -> None:
    library = Repository(tmp_path / "library")
    library.write("code.py", "one\n")
    library.write(".gitattributes", "*.py filter=evil diff=evil\n")
    commit = library.commit()
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.root), "lib")
    repository.commit()
    inside = Repository.__new__(Repository)
    inside.root = repository.root / "lib"
    assert state(layout).submodules == {"lib": commit}
    for name in ("clean", "smudge", "process"):
        inside.git("config", f"filter.evil.{name}", str(trap.program))
    for name in ("core.fsmonitor", "diff.evil.textconv", "diff.external"):
        inside.git("config", name, str(trap.program))
    inside.write("code.py", "two\n")
    os.utime(inside.root / "code.py")
    found = state(layout)
    assert trap.ran == ""
    assert found.submodules == {"lib": f"{commit}+dirty"}
    assert not found.is_known
    inside.git("-c", "filter.evil.clean=", "-c", "filter.evil.process=", "-c", "filter.evil.required=false",
               "-c", "core.fsmonitor=false", "checkout", "-q", "code.py")  # fmt: skip
    trap.notes.unlink(missing_ok=True)


def test_missing_objects_are_not_fetched(tmp_path: Path, trap: Trap) -> None:
    """Of a partial clone git would fetch what it needs for a difference, by a program that the configuration names."""
    origin = Repository(tmp_path / "origin")
    origin.write("train.py", "one\n")
    origin.commit()
    origin.git("config", "uploadpack.allowFilter", "true")
    place = tmp_path / "lab"
    subprocess.run(
        ["git", "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{origin.root}", place], check=True
    )
    lab = Repository.__new__(Repository)
    lab.root = place
    lab.git("reset", "-q")
    lab.write("train.py", "two\n")
    lab.git("config", "remote.origin.uploadpack", str(trap.program))
    lab.git("config", "core.sshCommand", str(trap.program))
    for url in (f"file://{origin.root}", "ssh://host/repository", f"ext::{trap.program}"):
        lab.git("config", "remote.origin.url", url)
        found = state(Layout(place))
        assert trap.ran == ""
        assert found.is_dirty


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository to somebody else")
def test_a_repository_of_another_user_is_left_alone(repository: Repository, layout: Layout) -> None:
    subprocess.run(["chown", "-R", "65534", repository.root], check=True)
    code = look(layout)
    assert code.state is None
    assert code.problems == (
        f"git: the repository {repository.root} belongs to another user: "
        f"`git config --global --add safe.directory {repository.root}` makes git read it",
    )


def test_a_locked_index_is_read_and_stays_as_it_is(repository: Repository, layout: Layout) -> None:
    index = repository.root / ".git" / "index"
    repository.write("train.py", "two\n")
    # Only its times differ.
    os.utime(repository.root / ".gitignore", (1, 1))
    (repository.root / ".git" / "index.lock").touch()
    before = index.read_bytes()
    assert state(layout).is_dirty
    (repository.root / ".git" / "index.lock").unlink()
    assert state(layout).is_dirty
    assert index.read_bytes() == before
    assert sorted(path.name for path in index.parent.iterdir() if "lock" in path.name) == []


def test_files_that_block_or_never_end_are_not_read(repository: Repository, layout: Layout) -> None:
    root = repository.root
    os.mkfifo(root / "pipe")
    repository.write("large.bin").open("wb").truncate(10 << 30)
    repository.write("just.bin").open("wb").truncate(LARGEST)
    Repository(root / "nested").commit()
    (root / "zero").symlink_to("/dev/zero")
    (root / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(root)
        server.bind("socket")
        code = look(layout)
    assert not any("no answer" in problem or "too slow" in problem for problem in code.problems)
    assert code.state is not None
    unread = {name for name, digest in code.state.untracked.items() if not digest}
    # git itself leaves out pipes and sockets.
    assert unread == {"large.bin", "nested/"}
    assert code.state.untracked.keys() - unread == {"just.bin", "zero", "loop"}
    assert not code.state.is_known
    assert any("too large" in problem and "large.bin" in problem for problem in code.problems)


def test_a_file_that_becomes_a_pipe_does_not_block(repository: Repository, layout: Layout, git_does: GitDoes) -> None:
    repository.write("notes.txt", "a")
    git_does("status", f"rm {repository.root}/notes.txt; mkfifo {repository.root}/notes.txt")
    code = look(layout)
    assert code.state is not None
    assert code.state.untracked == {"notes.txt": ""}


def test_an_untracked_file_that_changes_while_it_is_read_has_no_hash(
    repository: Repository, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = repository.write("notes.txt", "before"), os.read

    def changing(fd: int, size: int) -> bytes:
        data = read(fd, size)
        if data == b"before":
            path.write_text("after it")
        return data

    monkeypatch.setattr(os, "read", changing)
    code = look(layout)
    assert code.state is not None
    assert code.state.untracked == {"notes.txt": ""}
    assert any("it changed while it was read" in problem for problem in code.problems)


def test_a_file_that_changes_meanwhile_has_no_difference(
    repository: Repository, layout: Layout, git_does: GitDoes
) -> None:
    repository.write("train.py", "two\n")
    git_does("diff", f"echo three >>{repository.root}/train.py")
    code = look(layout)
    assert code.state is not None
    assert code.state.is_dirty
    assert code.state.diff is None
    assert not code.state.is_known
    assert code.problems == ("git: changed while this was recorded: train.py",)


def test_untracked_files_that_take_too_long_are_given_up_first(
    repository: Repository, layout: Layout, git_does: GitDoes
) -> None:
    commit = repository.commit()
    repository.write("train.py", "two\n")
    git_does("status", 'case "$*" in *files=all*) sleep 60 ;; esac', before=True)
    code = CodeReader(layout).read(3.0)
    assert code.state is not None
    assert (code.state.commit, code.state.is_dirty) == (commit, True)
    assert code.state.diff is not None
    assert code.problems == ("git: too slow to list the untracked files, which are not recorded",)
    assert not code.state.is_known


def test_a_difference_that_never_ends_costs_the_deadline(
    repository: Repository, layout: Layout, git_does: GitDoes
) -> None:
    """And no memory: it is counted, not kept."""
    commit = repository.commit()
    repository.write("train.py", "two\n")
    git_does("diff", "yes", before=True)
    code = CodeReader(layout).read(1.5)
    assert code.state is not None
    assert (code.state.commit, code.state.is_dirty, code.state.diff) == (commit, True, None)
    assert code.problems == ("git: no answer within 1.5 s",)


def test_a_status_that_never_ends_costs_the_deadline(layout: Layout, git_does: GitDoes) -> None:
    git_does("status", "yes | tr '\\n' '\\0'", before=True)
    with pytest.raises(TooSlowError):
        CodeReader(layout).read(1.5)
    git_does("status", "yes | tr -d '\\n'", before=True)
    assert look(layout).problems == ("git status: an item without an end",)


def test_more_untracked_files_than_there_is_room_for_are_counted(repository: Repository, layout: Layout) -> None:
    for number in range(700):
        repository.write(f"data/{number}.txt", str(number))
    found = state(layout)
    assert (len(found.untracked), found.untracked_more) == (500, 200)
    assert not found.is_known


def test_changed_files_of_a_filter_are_unchecked(repository: Repository, layout: Layout) -> None:
    """As those of Git LFS: what is in git is a pointer, and only the filter can tell whether the file differs."""
    repository.git("config", "filter.lfs.clean", "sed s/content/pointer/")
    repository.git("config", "filter.lfs.smudge", "sed s/pointer/content/")
    repository.git("config", "filter.lfs.required", "true")
    repository.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    for name in ("weights.bin", "odd [name].bin"):
        # Older than the index: git compares what may have changed since.
        os.utime(repository.write(name, "content\n"), (1_700_000_000, 1_700_000_000))
    repository.commit()
    assert state(layout).is_known
    for name in ("weights.bin", "odd [name].bin"):
        os.utime(repository.root / name, (1, 1))
    found = state(layout)
    assert found.unchecked == ("odd [name].bin", "weights.bin")
    assert not found.is_dirty
    assert not found.is_known
    repository.write("train.py", "two\n")
    found = state(layout)
    assert found.diff_stat == "1 file changed, 1 insertion(+), 1 deletion(-)"


def test_a_merge_with_conflicts_is_recorded(repository: Repository, layout: Layout) -> None:
    repository.git("checkout", "-q", "-b", "other")
    repository.write("train.py", "other\n")
    repository.commit()
    repository.git("checkout", "-q", "main")
    repository.write("train.py", "main\n")
    repository.commit()
    with pytest.raises(AssertionError, match="git merge"):
        repository.git("merge", "-q", "other")
    found = state(layout)
    assert found.is_dirty
    assert found.diff is not None


def test_variables_for_another_repository_do_not_count(
    repository: Repository, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository(tmp_path / "other")
    other.write("x", "1")
    other.commit(message="another")
    monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.root))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.root / ".git" / "index"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
    found = state(layout)
    monkeypatch.undo()
    assert found.commit == repository.git("rev-parse", "HEAD")


def test_no_secret_of_the_remote_or_the_environment_is_in_any_file(
    repository: Repository, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cretT0ken"
    monkeypatch.setenv("WANDB_API_KEY", secret)
    monkeypatch.setenv("XLA_SECRET", secret)
    repository.git("remote", "add", "origin", f"https://ada:{secret}@git.lab.org/lab.git?private_token={secret}")
    repository.write("train.py", "two\n")
    assert recorded(layout, env_names=("WANDB_API_KEY",)) is not None
    files = [path for path in layout.run_state.rglob("*") if path.is_file()]
    assert len(files) >= 2
    assert not [path for path in files if secret.encode() in path.read_bytes()]
