"""What starts a command on several nodes, over stand-ins for srun and scancel."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.bed import wait_for

from dispatcher.outlets.slurm.steps import start_on_nodes

# Takes the place of a step: what srun was given runs as one task, in another process group as on another node.
SRUN = """#!/bin/bash
trap 'echo TERM >>srun-told; exit 137' TERM
printf '%s\\n' "$@" >words
while [[ $1 == --* ]]; do shift; done
setsid bash -c 'echo $$ >task; exec "$@"' task "$@" &
while kill -0 $! 2>/dev/null; do wait $!; status=$?; done
exit "$status"
"""
SCANCEL = """#!/bin/bash
echo "$*" >>told
[[ ! -e fails ]] && kill -TERM "$(<task)"
"""
TASK = "trap 'echo saved; exit 9' TERM; echo begun; while :; do sleep 0.01; done"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    for name, text in (("srun", SRUN), ("scancel", SCANCEL)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def begin(task: str, nodes: int = 2) -> subprocess.Popen[str]:
        words = [*start_on_nodes(nodes, 3), "bash", "-c", task]
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        environment = {"PATH": path, "SLURM_JOB_ID": "7", "DISPATCHER_ATTEMPT_DIR": os.fspath(tmp_path)}
        return subprocess.Popen(
            words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    return begin


def test_one_node_needs_none() -> None:
    assert start_on_nodes(1, 8) == ()


def test_the_words_of_srun(start: Start, tmp_path: Path) -> None:
    process = start("echo 'on it'; exit 4")
    assert process.communicate(timeout=20) == ("on it\n", None)
    assert process.returncode == 4
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:4] == ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=3"]
    assert {"--kill-on-bad-exit=1", "--wait=0"} <= set(words)


def test_what_signalled_tasks_leave_by_file(start: Start, tmp_path: Path) -> None:
    """srun itself hears 0 of them, for it would kill the others. Whatever else is in the way of a name is no status."""
    for name, text in (("0", "75\n"), ("1", "9\n"), ("2", ""), ("3", "a[$(touch pwned)]\n")):
        (tmp_path / f"node.{name}.status").write_text(text)
    (tmp_path / "node.4.status").mkdir()
    process = start('exit "$((DISPATCHER_STATUS_BY_FILE ? 0 : 4))"', nodes=6)
    process.communicate(timeout=20)
    assert process.returncode == 75
    assert not (tmp_path / "pwned").exists()


def test_a_task_that_was_killed_before_it_was_told(start: Start, tmp_path: Path) -> None:
    """srun told the others because of it: it has no file, and its status is srun's."""
    (tmp_path / "node.0.status").write_text("143\n")
    (tmp_path / "node.first").write_text("signal TERM\n")
    process = start("exit 137")
    process.communicate(timeout=20)
    assert process.returncode == 137
    assert (tmp_path / "node.first").read_text() == "status 137\n"


def test_tasks_have_time_to_save(start: Start, tmp_path: Path) -> None:
    """The wrapper signals its process group; srun must not hear of it."""
    for _ in range(10):
        process = start(TASK)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.communicate(timeout=20)[0] == "saved\n"
        assert process.returncode == 9
    assert set((tmp_path / "told").read_text().splitlines()) == {"--signal=TERM 7"}
    assert not (tmp_path / "srun-told").exists()


def test_where_slurm_cannot_be_asked(start: Start, tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    process = start(TASK)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.terminate()
    wait_for((tmp_path / "srun-told").exists, "srun itself is told")
    os.kill(int((tmp_path / "task").read_text()), signal.SIGKILL)
    process.communicate(timeout=20)
    assert process.returncode == 137
