"""What a dispatcher leaves of its calls when it is killed is removed by the next one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.tpu.workers import WorkersTransport


def test_directories_of_killed_dispatchers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    orphan, alive, young, other = (
        tmp_path / f"dispatcher-tpu-{pid}-{name}"
        for pid, name in ((ended.pid, "abc"), (os.getpid(), "abc"), (ended.pid, "young"), ("x", "y"))
    )
    for path in (orphan, alive, young, other):
        path.mkdir()
        (path / "request").touch()
        if path != young:
            os.utime(path, (0, 0))
    WorkersTransport(TpuHost(name="pod", cluster="pod", zone="z", accelerator_type="v4-16"))
    assert sorted(tmp_path.iterdir()) == sorted([alive, young, other])
