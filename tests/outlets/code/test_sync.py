"""Directories copied by rsync: on this machine and to a host behind ssh; never a part that looks like the whole."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from beds.sshd import SshBed

from dispatcher.errors import CodeError
from dispatcher.outlets.code.sync import sync

ODD = 'it\'s a\n"$(dir)" *'


def files_in(directory: Path) -> dict[str, str]:
    return {
        os.path.relpath(os.path.join(path, name), directory): Path(path, name).read_text()
        for path, _, names in os.walk(directory)
        for name in names
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "a'; echo foo"
    for name in ("train.py", f"sub/{ODD}.py", "sub/run_state/kept.txt", "data.bin"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    for name in (".git/HEAD", ".venv/bin/python", "run_state/matrix_status.json", "sub/__pycache__/x.pyc", "wandb/log"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    return made


def test_a_copy_without_what_is_made_from_code(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / ODD
    sync(source, os.fspath(target), exclude=["wandb", "*.bin"])
    assert files_in(target) == {name: name for name in ("train.py", f"sub/{ODD}.py", "sub/run_state/kept.txt")}
    assert os.listdir(tmp_path / "out") == [ODD]


def test_what_is_gone_here_goes_there(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    sync(source, os.fspath(target))
    (source / "train.py").unlink()
    (source / "data.bin").write_text("changed")
    sync(source, os.fspath(target))
    assert files_in(target) == {
        "data.bin": "changed",
        f"sub/{ODD}.py": f"sub/{ODD}.py",
        "sub/run_state/kept.txt": "sub/run_state/kept.txt",
        "wandb/log": "wandb/log",
    }
    assert sorted(os.listdir(tmp_path)) == ["a'; echo foo", "target"]


def test_a_transfer_that_breaks_off_leaves_the_old_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    sync(source, os.fspath(target))
    before = files_in(target)
    (source / "train.py").write_text("changed")
    # Ends in the middle: what it was to send comes after what it has sent.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "rsync").write_text('#!/bin/sh\n/usr/bin/rsync --exclude="*.bin" "$@"; echo broke off >&2; exit 12\n')
    (programs / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(CodeError, match=r"copying to .*: broke off"):
        sync(source, os.fspath(target))
    assert files_in(target) == before
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_leftovers_of_killed_transfers_are_removed_after_a_day(source: Path, tmp_path: Path) -> None:
    target = tmp_path / ODD
    old, new = (tmp_path / f".{ODD}.{token}.partial" for token in ("old", "new"))
    for directory in (old, new):
        directory.mkdir()
    os.utime(old, (1, 1))
    sync(source, os.fspath(target))
    assert new.exists()
    assert not old.exists()


def test_a_host_behind_ssh(source: Path, ssh: SshBed) -> None:
    command = ["ssh", "-F", os.fspath(ssh.config), "h1"]
    target = f"/tmp/code/{ODD}"
    sync(source, target, ssh=command)
    there = ssh["h1"].path(target)
    assert files_in(there)["train.py"] == "train.py"
    (source / "train.py").write_text("changed")
    sync(source, target, ssh=command)
    assert files_in(there)["train.py"] == "changed"
    with ssh["h1"].away(), pytest.raises(CodeError, match="copying to h1: "):
        sync(source, target, ssh=command)
    assert files_in(there)["train.py"] == "changed"


def test_what_cannot_be_copied(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CodeError, match="no such directory to copy"):
        sync(tmp_path / "missing", "/tmp/target")
    for target in ("relative/path", "/"):
        with pytest.raises(CodeError, match=re.escape(f"{target!r}: expected an absolute path")):
            sync(source, target)
    (tmp_path / "bin").mkdir()
    for program in ("sh", "mkdir", "find", "rm"):
        (tmp_path / "bin" / program).symlink_to(f"/bin/{program}")
    monkeypatch.setenv("PATH", os.fspath(tmp_path / "bin"))
    with pytest.raises(CodeError, match=r"rsync is not installed on .*: it copies directories"):
        sync(source, os.fspath(tmp_path / "target"))
