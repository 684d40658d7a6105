"""What launchers say about the processes of a job, and two processes that train, die and go on together."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fleet import wait_until
from tiny_runs import TESTS, arrays_of_checkpoints, assert_same_bits, environment, metric_lines
from tiny_training import made

from dispatcher.errors import ConfigError
from dispatcher.runtime.distributed import PORT, Processes, detect, first_host, initialize

SLURM = {
    "SLURM_JOB_ID": "1012345",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NODELIST": "gpu[013-014,020],login1",
}
VOLCANO = {"VC_WORKER_HOSTS": "run-worker-0.run,run-worker-1.run", "VC_WORKER_NUM": "2"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4"}, None),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, None),
        (
            {"DISPATCHER_COORDINATOR": "a:1", "DISPATCHER_NUM_PROCESSES": "2", "DISPATCHER_PROCESS_ID": "1", **SLURM},
            Processes("a:1", 2, 1),
        ),
        (SLURM, Processes("gpu013:22345", 4, 3)),
        ({**VOLCANO, "VC_TASK_INDEX": "1"}, Processes(f"run-worker-0.run:{PORT}", 2, 1)),
        ({**VOLCANO, "VK_TASK_INDEX": "0"}, Processes(f"run-worker-0.run:{PORT}", 2, 0)),
        (
            {"TPU_WORKER_HOSTNAMES": "10.0.0.2,10.0.0.3", "TPU_WORKER_ID": "1"},
            Processes(f"10.0.0.2:{PORT}", 2, 1),
        ),
    ],
)
def test_what_launchers_say(said: dict[str, str], expected: Processes | None) -> None:
    assert detect(said, "elsewhere") == expected


def test_a_pod_of_several_tasks_finds_itself_by_its_name() -> None:
    said = {**VOLCANO, "VC_MASTER_HOSTS": "run-master-0.run", "VC_TASK_INDEX": "1"}
    assert detect(said, "run-worker-1") == Processes(f"run-master-0.run:{PORT}", 3, 2)
    with pytest.raises(ConfigError, match="'elsewhere' is not one of them"):
        detect(said, "elsewhere")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"DISPATCHER_COORDINATOR": "a:1"}, "DISPATCHER_NUM_PROCESSES, DISPATCHER_PROCESS_ID: not set"),
        (
            {"DISPATCHER_COORDINATOR": "a", "DISPATCHER_NUM_PROCESSES": "2", "DISPATCHER_PROCESS_ID": "1"},
            "the coordinator is 'a': expected host:port",
        ),
        (
            {"DISPATCHER_COORDINATOR": "a:1", "DISPATCHER_NUM_PROCESSES": "2", "DISPATCHER_PROCESS_ID": "2"},
            "this is process 2 of 2: expected 0 to 1",
        ),
        ({**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID = 'x': expected a whole number"),
        (VOLCANO, "VK_TASK_INDEX: not set"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU_WORKER_ID: not set"),
    ],
)
def test_what_is_said_in_part_or_wrongly_is_an_error(said: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        detect(said, "elsewhere")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu1", "gpu1"), ("gpu[003-007,9],login1", "gpu003"), ("a1,b2", "a1"), ("rack[1-2]-gpu,x", "rack1-gpu")],
)
def test_the_first_host_of_a_list_of_nodes(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_one_process_alone_initialises_nothing() -> None:
    assert initialize({}) is None
    alone = {"DISPATCHER_COORDINATOR": "a:1", "DISPATCHER_NUM_PROCESSES": "1", "DISPATCHER_PROCESS_ID": "0"}
    assert initialize(alone) is None


class Two:
    """Two processes of one training."""

    def __init__(self, root: Path, cache: Path, **words: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.metrics = root / "results/default/default/tiny/metrics.jsonl"
        self.logs = [root.with_name(f"{root.name}.{time.monotonic_ns()}.{number}.txt") for number in range(2)]
        self.processes = []
        for number, log in enumerate(self.logs):
            more = {
                "DISPATCHER_COORDINATOR": address,
                "DISPATCHER_NUM_PROCESSES": "2",
                "DISPATCHER_PROCESS_ID": str(number),
                "DISPATCHER_HEARTBEAT_S": "10",
            }
            with log.open("wb") as file:
                command = [sys.executable, str(TESTS / "tiny_training.py"), str(root), json.dumps(words)]
                self.processes.append(
                    subprocess.Popen(command, env=environment(cache, **more), stdout=file, stderr=file)
                )

    def wait_for(self, step: int) -> None:
        def reached() -> bool:
            assert self.processes[0].poll() is None, self.logs[0].read_text()
            return self.last_step() >= step

        wait_until(reached, f"step {step}", 120)

    def last_step(self) -> int:
        lines = metric_lines(self.metrics) if self.metrics.exists() else []
        return int(lines[-1]["step"]) if lines else 0

    def send(self, number: int, process: int) -> None:
        self.processes[process].send_signal(number)

    def end(self) -> list[int]:
        try:
            return [process.wait(120) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
            for log in self.logs:
                print(log.read_text())


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_are_preempted_and_killed_and_end_with_the_same_bits(tmp_path: Path, jax_cache: Path) -> None:
    words = {"steps": 400, "save_every": 20, "evaluate_every": 100}
    assert Two(tmp_path / "undisturbed", jax_cache, **words).end() == [0, 0]

    disturbed = tmp_path / "disturbed"
    preempted = Two(disturbed, jax_cache, **words)
    preempted.wait_for(10)
    # Only one of them is told; both have to stop after the same step.
    preempted.send(signal.SIGTERM, 1)
    assert preempted.end() == [75, 75]
    stopped = preempted.last_step()
    assert 10 <= stopped < 400

    killed = Two(disturbed, jax_cache, **words)
    killed.wait_for(stopped + 30)
    killed.send(signal.SIGKILL, 1)
    first, second = killed.end()
    assert second == -signal.SIGKILL
    assert first not in (0, 75), "the one that is left must not take itself for the whole job"

    assert Two(disturbed, jax_cache, **words).end() == [0, 0]
    expected, found = (arrays_of_checkpoints(made(tmp_path / name, **words)) for name in ("undisturbed", "disturbed"))
    for one, other in zip(expected, found, strict=True):
        assert_same_bits(one, other)
    lines = [
        metric_lines(tmp_path / name / "results/default/default/tiny/metrics.jsonl")
        for name in ("undisturbed", "disturbed")
    ]
    assert len(lines[0]) == 400
    assert lines[1] == lines[0]
