"""Runs that are started by hand: one of a name at a time, in real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from portalocker.portalocker import FlockLocker
from tiny_runs import free_port

from dispatcher import contract
from dispatcher.errors import UsageError
from dispatcher.runtime.configuration import configuration, field
from dispatcher.runtime.jobs.basic import BasicJob

HELD = """
import os, signal, sys
import jax
jax.config.update("jax_platforms", "cpu")
root, name, address, number = sys.argv[1:3] + (sys.argv[3:] or ["", "0"])
if address:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=2, process_id=int(number))
from dataclasses import dataclass
from dispatcher.runtime.configuration import configuration, field
from dispatcher.runtime.jobs.basic import BasicJob

@dataclass
class Nothing:
    x: int = field("x", default=1)

class Waits(BasicJob[Nothing]):
    @classmethod
    def config(cls):
        return Nothing

    def run(self):
        # A worker that outlives its parent.
        if not os.fork():
            sys.stdin.close()
            signal.pause()
        print("runs", flush=True)
        sys.stdin.read()

with configuration({}):
    job = Waits.local(root, name)
try:
    job()
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""


@dataclass(frozen=True)
class Nothing:
    x: int = field("x", default=1)


class Inner(BasicJob[Nothing]):
    @classmethod
    def config(cls) -> type[Any]:
        return Nothing

    def run(self) -> dict[str, float]:
        return {"x": 1.0}


class Outer(Inner):
    """Runs other jobs while it runs, of its own name too."""

    def run(self) -> dict[str, float]:
        root = self.spec.hardware.cluster.root
        rows = [Inner.local(root, name)() for name in ("other", self.spec.name, "other")]
        return {"x": sum(float(row["x"]) for row in rows if row is not None)}


def run(cls: type[BasicJob[Any]], root: Path, name: str) -> Any:
    with configuration({}):
        return cls.local(root, name)()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process that runs a job of this name until its standard input ends."""
    running = []

    def start(name: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HELD, str(tmp_path), name, *words]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True))
        return running[-1]

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return next(line.strip() for line in process.stdout if not line.startswith("[Gloo]"))


def test_a_second_run_of_a_name_is_refused_until_the_first_is_gone(tmp_path: Path, started: Any) -> None:
    first = started("run")
    assert said(first) == "runs"
    folder = tmp_path / "results/default/default/run"
    with pytest.raises(UsageError) as caught:
        run(Inner, tmp_path, "run")
    assert str(caught.value) == (
        f"default/default/run is already running: process {first.pid} on {socket.gethostname()} holds "
        f"{folder}/.lock: two at once would replace each other's checkpoints and results in {folder}. Wait until it "
        "has ended, or choose another name"
    )
    assert not (folder / "result.json").exists()
    assert run(Inner, tmp_path, "another") == {"x": 1.0}
    # Its worker lives on, and does not hold the lock.
    first.kill()
    first.wait()
    assert run(Inner, tmp_path, "run") == {"x": 1.0}


def test_all_processes_of_a_job_hear_that_it_is_refused(started: Any) -> None:
    first = started("run")
    assert said(first) == "runs"
    address = f"127.0.0.1:{free_port()}"
    two = [started("run", address, str(number)) for number in range(2)]
    refused = f"default/default/run is already running: process {first.pid} on "
    assert said(two[0]).startswith(f"UsageError {refused}")
    assert said(two[1]).startswith(f"UsageError process 0 of this job: {refused}")


def test_jobs_after_one_another_and_inside_of_one_another(tmp_path: Path) -> None:
    for _ in range(2):
        assert run(Outer, tmp_path, "outer") == {"x": 3.0}
    fd = os.open(tmp_path / "results/default/default/outer/.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_an_attempt_does_not_wait_for_the_one_before_it(tmp_path: Path, started: Any, monkeypatch: Any) -> None:
    assert said(started("run")) == "runs"
    monkeypatch.setenv(contract.ATTEMPT_DIR, str(tmp_path))
    assert run(Inner, tmp_path, "run") == {"x": 1.0}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_filesystem_that_cannot_lock_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: Any, caplog: Any, number: int
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FlockLocker, "_locker", staticmethod(flock))
    assert run(Inner, tmp_path, "run") == {"x": 1.0}
    assert "a second run of this name cannot be detected" in caplog.text
