"""What jobs leave behind in a workspace of several people."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from fleet import Fleet, shell


@pytest.mark.parametrize(
    ("mode", "umask", "expected"), [(0o2775, 0o077, 0o660), (0o2775, 0o027, 0o660), (0o755, 0o077, 0o600)]
)
def test_the_group_reads_what_a_job_wrote(fleet: Fleet, mode: int, umask: int, expected: int) -> None:
    fleet.root.chmod(mode)
    fleet.write_manifest([shell("a", "echo said; touch left")])
    before = os.umask(umask)
    try:
        pod = fleet.start("pod", "--slots", "1", "--until-empty")
    finally:
        os.umask(before)
    assert pod.end() == 0
    paths = fleet.layout.attempt("a", 1)
    for path in (paths.log, paths.exit, fleet.root / "left"):
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_init_leaves_a_workspace_that_the_group_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatcher.cli.main import main

    new = tmp_path / "new"
    new.mkdir()
    new.chmod(0o2775)
    before = os.umask(0o077)
    try:
        assert main(["init", str(new)]) == 0
    finally:
        os.umask(before)
    for path in new.rglob("*"):
        wanted = stat.S_IRGRP | stat.S_IWGRP
        assert path.stat().st_mode & wanted == wanted, path
        assert not path.stat().st_mode & stat.S_IWOTH, path
