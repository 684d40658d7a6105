"""What a snapshot of committed code has in it, and that it is the same everywhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from repositories import Repository, members, unpacked

from dispatcher.errors import CodeError
from dispatcher.outlets.code.ship import ship
from dispatcher.workspace import Layout


def test_tracked_files_of_head_and_nothing_else(repository: Repository, tmp_path: Path) -> None:
    repository.write("sub/module.py", "x = 1\n")
    commit = repository.commit()
    repository.write("train.py", "changed since\n")
    repository.write("untracked.py")
    repository.write("weights.pt")
    snapshot = ship(Layout(repository.root))
    assert unpacked(snapshot.path, tmp_path / "out") == {
        ".gitignore": "run_state/\n*.pt\n",
        "train.py": "print(1)\n",
        "sub/module.py": "x = 1\n",
    }
    assert (snapshot.commit, snapshot.is_dirty) == (commit, False)


def test_the_digest_is_that_of_the_archive(repository: Repository) -> None:
    snapshot = ship(Layout(repository.root))
    content = Path(snapshot.path).read_bytes()
    assert snapshot.digest == hashlib.sha256(content).hexdigest()
    assert snapshot.size == len(content)
    assert Path(snapshot.path) == Layout(repository.root).code_archive(snapshot.digest)


def test_two_clones_and_other_settings_give_the_same_digest(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ship(Layout(repository.root))
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", repository.root, clone], check=True)
    attributes, settings = tmp_path / "attributes", tmp_path / "gitconfig"
    attributes.write_text("train.py export-ignore\n")
    settings.write_text(f"[core]\nautocrlf = true\nattributesFile = {attributes}\n[tar]\numask = 0777\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.fspath(settings))
    os.umask(os.umask(0o077))
    assert ship(Layout(clone)).digest == first.digest


def test_time_owner_and_mode_come_from_the_commit_alone(repository: Repository) -> None:
    repository.write("run.sh", "#!/bin/sh\n", mode=0o775)
    repository.write("secret", mode=0o600)
    repository.commit(date="2023-01-02T03:04:05Z")
    found = {member.name: member for member in members(ship(Layout(repository.root)).path)}
    assert {member.mtime for member in found.values()} == {1672628645}
    assert {(member.uname, member.uid, member.gid) for member in found.values()} == {("root", 0, 0)}
    assert found["run.sh"].mode == 0o755
    assert found["secret"].mode == 0o644
    assert list(found) == sorted(found)


def test_names_with_newlines_quotes_and_bytes_that_are_no_text(repository: Repository, tmp_path: Path) -> None:
    names = [
        "a\nb.py",
        "quote\"'$(x).py",
        " leading",
        "-rf",
        "deep/" * 40 + "x" * 90,
        "caf\udce9",
        "\u00e9\u00e8.py",
        "t\tab",
    ]
    for name in names:
        repository.write(name, "1\n")
    repository.commit()
    found = unpacked(ship(Layout(repository.root)).path, tmp_path / "out")
    assert set(names) <= set(found)


def test_symbolic_links_stay_links(repository: Repository, tmp_path: Path) -> None:
    (repository.root / "link").symlink_to("train.py")
    (repository.root / "to dir\n").symlink_to("../elsewhere")
    (repository.root / "long").symlink_to("x" * 300)
    repository.commit()
    found = unpacked(ship(Layout(repository.root)).path, tmp_path / "out")
    assert (found["link"], found["to dir\n"], found["long"]) == ("-> train.py", "-> ../elsewhere", f"-> {'x' * 300}")


def test_a_workspace_below_the_top_is_archived_alone(repository: Repository, tmp_path: Path) -> None:
    repository.write("lab/project/train.py", "lab\n")
    repository.write("lab/.gitattributes", "*.md export-ignore\n")
    repository.write("lab/project/notes.md")
    repository.commit()
    snapshot = ship(Layout(repository.root / "lab/project"))
    assert unpacked(snapshot.path, tmp_path / "out") == {"train.py": "lab\n"}


def test_attributes_of_directories_above_make_another_archive(repository: Repository, tmp_path: Path) -> None:
    repository.write("lab/notes.md")
    repository.commit()
    before = ship(Layout(repository.root / "lab"))
    repository.write(".gitattributes", "*.txt export-ignore\n*.md -export-ignore\n")
    repository.write("lab/a.txt")
    repository.commit()
    after = ship(Layout(repository.root / "lab"))
    assert unpacked(before.path, tmp_path / "before").keys() == {"notes.md"}
    assert unpacked(after.path, tmp_path / "after").keys() == {"notes.md"}
    (repository.root / ".git/info/attributes").write_text("*.txt -export-ignore\n")
    assert unpacked(ship(Layout(repository.root / "lab")).path, tmp_path / "local").keys() == {"notes.md", "a.txt"}


def test_export_ignore_and_export_subst_are_obeyed(repository: Repository, tmp_path: Path) -> None:
    repository.write(".gitattributes", "version.txt export-subst\ndocs export-ignore\n")
    repository.write("version.txt", "$Format:%H$\n")
    repository.write("docs/page.md")
    first = repository.commit()
    found = unpacked(ship(Layout(repository.root)).path, tmp_path / "first")
    assert found["version.txt"] == f"{first}\n"
    assert "docs/page.md" not in found
    # The same files under another commit have another text there.
    second = repository.commit(message="nothing changed")
    assert unpacked(ship(Layout(repository.root)).path, tmp_path / "second")["version.txt"] == f"{second}\n"


def test_what_dispatchers_write_is_left_out_even_if_it_is_tracked(repository: Repository, tmp_path: Path) -> None:
    repository.write("run_state/journal/000001.jsonl", "{}\n")
    repository.write("matrix/state.json", "{}\n")
    repository.git("add", "-f", "run_state")
    repository.commit()
    layout = Layout(repository.root, repository.root / "matrix/state.json")
    assert unpacked(ship(layout).path, tmp_path / "out").keys() == {".gitignore", "train.py"}


@pytest.fixture
def with_submodule(repository: Repository, tmp_path: Path) -> Repository:
    library = Repository(tmp_path / "library")
    library.write("library.py", "y = 2\n")
    library.write("tools/x.sh", mode=0o755)
    library.commit()
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", os.fspath(library.root), "lib/sub")
    repository.write("zz.py")
    repository.commit()
    return repository


def test_submodules_are_archived_at_the_commit_that_head_names(with_submodule: Repository, tmp_path: Path) -> None:
    named = with_submodule.git("rev-parse", "HEAD:lib/sub")
    inner = Repository(with_submodule.root / "lib/sub")
    inner.write("library.py", "later\n")
    inner.commit()
    snapshot = ship(Layout(with_submodule.root))
    found = unpacked(snapshot.path, tmp_path / "out")
    assert found["lib/sub/library.py"] == "y = 2\n"
    assert {"lib/sub/tools/x.sh", "train.py", "zz.py", ".gitmodules"} <= found.keys()
    assert inner.git("rev-parse", "HEAD") != named


def test_a_submodule_that_is_not_checked_out_is_an_error(with_submodule: Repository) -> None:
    with_submodule.git("submodule", "deinit", "-q", "-f", "lib/sub")
    with pytest.raises(CodeError, match=r"lib/sub: the submodule is not checked out .* `git submodule update --init`"):
        ship(Layout(with_submodule.root))
    with_submodule.write(".gitattributes", "lib/sub export-ignore\n")
    with_submodule.commit()
    assert ship(Layout(with_submodule.root)).size


def test_a_git_lfs_pointer_is_an_error_that_names_it(repository: Repository) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n"
    repository.write("data/vocabulary.bin", pointer)
    repository.commit()
    with pytest.raises(CodeError, match=r"data/vocabulary\.bin\. Install git-lfs and run `git lfs pull`"):
        ship(Layout(repository.root))
    assert not list(Layout(repository.root).code_dir.iterdir())


def test_files_of_git_lfs_that_were_fetched_are_archived_in_full(repository: Repository, tmp_path: Path) -> None:
    # As git-lfs does it: a filter that gives the file for the pointer.
    repository.git("config", "filter.lfs.smudge", "sed s/.*/content/")
    repository.git("config", "filter.lfs.clean", "cat")
    repository.write(".gitattributes", "*.bin filter=lfs\n")
    repository.write("data.bin", "version https://git-lfs.github.com/spec/v1\n")
    repository.commit()
    assert unpacked(ship(Layout(repository.root)).path, tmp_path / "out")["data.bin"] == "content\n"


def test_git_lfs_attributes_at_the_top_count_for_a_workspace_below(repository: Repository, tmp_path: Path) -> None:
    repository.git("config", "filter.lfs.smudge", "sed s/.*/content/")
    repository.git("config", "filter.lfs.clean", "cat")
    repository.write(".gitattributes", "*.bin filter=lfs\n")
    repository.write("lab *[x]/data.bin", "version https://git-lfs.github.com/spec/v1\n")
    repository.write("lab xx/data.bin", "not this one\n")
    repository.commit()
    found = unpacked(ship(Layout(repository.root / "lab *[x]")).path, tmp_path / "out")
    assert found == {"data.bin": "content\n"}


def test_a_directory_outside_any_repository(tmp_path: Path) -> None:
    with pytest.raises(CodeError, match=r"not in a git repository: `git init` and commit .* `code: none`"):
        ship(Layout(tmp_path))


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    Repository(tmp_path / "new")
    with pytest.raises(CodeError, match="no commit yet: commit the code first"):
        ship(Layout(tmp_path / "new"))


def test_a_workspace_of_which_nothing_is_tracked(repository: Repository) -> None:
    inner = repository.root / "run_state/scratch"
    inner.mkdir(parents=True)
    with pytest.raises(CodeError, match="has no file of this directory: `git add` and commit"):
        ship(Layout(inner))


def test_a_host_without_git(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(CodeError, match=r"git is not installed on .*: install it, or set `code: none`"):
        ship(Layout(repository.root))


def test_a_damaged_repository_is_an_error_with_the_words_of_git(repository: Repository) -> None:
    blob = repository.git("rev-parse", "HEAD:train.py")
    (repository.root / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(CodeError, match=r"`git archive` failed: .*" + blob):
        ship(Layout(repository.root))
    assert not list(Layout(repository.root).code_dir.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a repository of somebody else")
def test_a_repository_of_somebody_else_says_what_to_do(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.delenv("SUDO_UID", raising=False)
    for path in (repository.root, repository.root / ".git"):
        os.chown(path, 65534, -1)
    with pytest.raises(CodeError, match=r"dubious ownership[\s\S]*safe\.directory"):
        ship(Layout(repository.root))


def test_variables_of_another_repository_are_ignored(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.git("rev-parse", "HEAD")
    other = Repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", os.fspath(other.root / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", os.fspath(other.root / ".git/index"))
    assert ship(Layout(repository.root)).commit == commit
