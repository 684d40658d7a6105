"""Temporary directories, also those of processes that were killed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from dispatcher.base import temporary


def test_a_directory_is_removed_at_its_end_and_old_ones_of_killed_processes_at_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    orphan, alive, young, other = (
        tmp_path / f"dispatcher-{purpose}-{pid}-abc_{age}"
        for purpose, pid, age in (("index", ended.pid, "old"), ("index", os.getpid(), "old"), ("index", ended.pid, ""),
                                  ("else", ended.pid, "old"))
    )  # fmt: skip
    for path in (orphan, alive, young, other):
        path.mkdir()
        (path / "index").touch()
        if path != young:
            os.utime(path, (0, 0))
    with temporary.directory("index") as made:
        assert made.is_dir()
        assert set(tmp_path.iterdir()) == {alive, young, other, made}
    assert not made.exists()
