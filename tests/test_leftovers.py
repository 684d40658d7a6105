"""What tests leave on the machine is named."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import leftovers
import pytest
from leftovers import new, snapshot

# Detached as a daemon detaches itself.
DAEMON = "setsid sh -c 'sleep 987 & echo $! >{}; exit' & wait; exit {}"


@pytest.mark.parametrize(("ci", "status", "expected"), [("true", 0, 1), ("true", 3, 3), ("", 0, 0)])
def test_a_process_that_outlives_the_run_is_named_and_ended(
    tmp_path: Path, ci: str, status: int, expected: int
) -> None:
    words = [
        sys.executable,
        "-c",
        "import leftovers; leftovers.main(patience_s=0.2)",
        "sh",
        "-c",
        DAEMON.format(tmp_path / "pid", status),
    ]
    env = {**os.environ, "CI": ci, "PYTHONPATH": str(Path(leftovers.__file__).parent)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    pid = (tmp_path / "pid").read_text().strip()
    assert f"left by the tests: process {pid}: sleep 987\n" in done.stdout
    assert done.returncode == expected
    assert not Path("/proc", pid).exists()


def test_new_files_and_only_those_are_named() -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as old:
        before = snapshot()
        with tempfile.NamedTemporaryFile(dir="/tmp") as fresh:
            found = new(before, snapshot())
        assert f"file {fresh.name}" in found
        assert f"file {old.name}" not in found
    assert f"file {fresh.name}" not in new(before, snapshot())


def test_a_mount_is_named(small_disk: Path) -> None:
    now = snapshot()
    assert new({**now, "mount": now["mount"] - {str(small_disk)}}, now) == [f"mount {small_disk}"]
