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


# The inner shell leaves its child to the process that runs all.
ORPHAN = (
    "sh -c 'sleep 0.1 & echo $!' >{0}; for i in $(seq 300); do kill -0 $(cat {0}) || exit 0; sleep 0.02; done; exit 9"
)


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", "import leftovers; leftovers.main(patience_s=0.2)", "sh", "-c", script]
    env = {**os.environ, "PYTHONPATH": str(Path(leftovers.__file__).parent), **environment}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("ci", "status", "expected"), [("true", 0, leftovers.LEFT), ("true", 3, 3), ("", 0, 0)])
def test_a_process_that_outlives_the_run_is_named_and_ended(
    tmp_path: Path, ci: str, status: int, expected: int
) -> None:
    done = run(DAEMON.format(tmp_path / "pid", status), CI=ci)
    pid = (tmp_path / "pid").read_text().strip()
    assert f"left by the tests: process {pid}: sleep 987\n" in done.stdout
    assert done.returncode == expected
    assert not Path("/proc", pid).exists()


def test_a_process_that_has_ended_is_gone_at_once(tmp_path: Path) -> None:
    done = run(ORPHAN.format(tmp_path / "pid"), CI="")
    assert done.returncode == 0, done.stderr


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
