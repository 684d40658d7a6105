"""What launchers say about the processes of a job, and two processes that train, die and go on together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interrupted_training import FILE, signalled
from tiny_runs import (
    Attempt,
    arrays_of_checkpoints,
    assert_same_bits,
    environment,
    free_port,
    metric_lines,
    one_of_two,
    tiny_entry,
)
from tiny_training import made

from dispatcher.errors import ConfigError
from dispatcher.runtime.distributed import PORT, ProcessGroup, detect, first_host, initialize

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
            ProcessGroup("a:1", 2, 1),
        ),
        (SLURM, ProcessGroup("gpu013:22345", 4, 3)),
        ({**SLURM, "SLURM_STEP_ID": "2"}, ProcessGroup("gpu013:24363", 4, 3)),
        ({**VOLCANO, "VC_TASK_INDEX": "1"}, ProcessGroup("run-worker-0.run:21407", 2, 1)),
        ({**VOLCANO, "VK_TASK_INDEX": "0"}, ProcessGroup("run-worker-0.run:21407", 2, 0)),
        (
            {"TPU_WORKER_HOSTNAMES": "10.0.0.2,10.0.0.3", "TPU_WORKER_ID": "1"},
            ProcessGroup(f"10.0.0.2:{PORT}", 2, 1),
        ),
    ],
)
def test_what_launchers_say(said: dict[str, str], expected: ProcessGroup | None) -> None:
    assert detect(said, "elsewhere") == expected


@pytest.mark.parametrize(
    ("said", "devices"),
    [
        # One task on each host, which has all of it.
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, None),
        # Four tasks that share what the host has.
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_LOCALID": "3"}, (3,)),
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_LOCALID": "3"}, (3,)),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURM_LOCALID": "1"}, (2, 3)),
        # Tasks that see only what is theirs.
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "2", "SLURM_LOCALID": "3"}, None),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_LOCALID": "1",
             "SLURM_GPUS_PER_TASK": "2"},
            None,
        ),
        # The second host of three has one task.
        ({"SLURM_STEP_TASKS_PER_NODE": "2,1(x2)", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}, None),
    ],
)  # fmt: skip
def test_which_devices_a_task_of_slurm_takes(said: dict[str, str], devices: tuple[int, ...] | None) -> None:
    found = detect({**SLURM, **said}, "elsewhere")
    assert found is not None
    assert found.local_device_ids == devices


def test_a_pod_of_several_tasks_finds_itself_by_its_name() -> None:
    said = {**VOLCANO, "VC_MASTER_HOSTS": "run-master-0.run", "VC_TASK_INDEX": "1"}
    assert detect(said, "run-worker-1") == ProcessGroup("run-master-0.run:27786", 3, 2)
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
            "process id 2: expected 0 to 1",
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
    """One attempt of one entry as two processes, with no script: the command that every launcher starts."""

    def __init__(self, root: Path, cache: Path, number: int, entry: dict[str, Any], **second: str) -> None:
        """`second` is what the environment of the second process says besides."""
        address = f"127.0.0.1:{free_port()}"
        self.processes = [
            Attempt(root, cache, number, entry, **one_of_two(address, place), DISPATCHER_HEARTBEAT_S="10", **more)
            for place, more in enumerate(({}, second))
        ]
        self.first = self.processes[0]

    def end(self) -> list[int]:
        try:
            return [process.end() for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_are_preempted_and_killed_and_end_with_the_same_bits(tmp_path: Path, jax_cache: Path) -> None:
    words = {"steps": 40, "save_every": 10, "eval_every": 20}
    entry = tiny_entry(FILE, job="tests/interrupted", **words)
    undisturbed = Two(tmp_path / "undisturbed", jax_cache, 1, entry)
    assert undisturbed.end() == [0, 0]

    root = tmp_path / "disturbed"
    # Only one of them is told; both have to stop after the same step.
    preempted = Two(root, jax_cache, 1, entry, **signalled(12, signal.SIGTERM))
    assert preempted.end() == [75, 75]
    stopped = preempted.first.last_step()
    assert 12 <= stopped < 20

    killed = Two(root, jax_cache, 2, entry, **signalled(35, signal.SIGKILL))
    first, second = killed.end()
    assert second == -signal.SIGKILL
    assert first not in (0, 75), "the one that is left must not take itself for the whole job"
    assert not (killed.first.directory / "result.json").exists()

    last = Two(root, jax_cache, 3, entry)
    assert last.end() == [0, 0]
    assert json.loads((last.first.directory / "result.json").read_text())["steps"] == 40
    expected, found = (
        arrays_of_checkpoints(made(tmp_path / name / "runs", **words)) for name in ("undisturbed", "disturbed")
    )
    for one, other in zip(expected, found, strict=True):
        assert_same_bits(one, other)
    lines = [metric_lines(each.first.metrics) for each in (undisturbed, last)]
    assert len(lines[0]) == 40
    assert lines[1] == lines[0]


COUNTED = """
import json

from dispatcher.runtime.registry import job
from tiny_training import Tiny

class Noted:
    def __init__(self, source):
        self.source, self.rows = source, []
    def __len__(self):
        return len(self.source)
    def identity(self):
        # Else rows are read to compare them.
        return "noted"
    def __getitem__(self, index):
        self.rows.append(index)
        return self.source[index]

@job("tests/counted")
class Counted(Tiny):
    def data(self):
        self.noted = Noted(super().data())
        return self.noted
    def run(self):
        row = super().run()
        with self.spec.result("rows.json", main_process_only=False) as file:
            json.dump(self.noted.rows, file)
        return row
"""


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_of_one_process_goes_on_as_two_that_read_half_the_rows_each(tmp_path: Path, jax_cache: Path) -> None:
    """With a device each instead of both, and with the same bits."""
    (tmp_path / "counted.py").write_text(COUNTED)
    words = {"steps": 12, "save_every": 6, "prefetch": 1}
    entry = tiny_entry(tmp_path / "counted.py", job="tests/counted", **words)
    root = tmp_path / "root"
    assert Attempt(root, jax_cache, 1, entry, JAX_NUM_CPU_DEVICES="2").end() == 0
    job = made(root / "runs", **words)
    expected = arrays_of_checkpoints(job)
    results = job.spec.result_path("rows.json")
    whole = json.loads(results.read_text())
    assert len(whole) == 12 * 8

    # As if it had been killed in its tenth step.
    series = tmp_path / "root" / "runs" / "checkpoints" / str(job.spec.relative_path)
    assert {path.name for path in series.iterdir()} >= {"step-00000006", "step-00000010", "step-00000012", "best"}
    for name in ("step-00000010", "step-00000012", "best"):
        shutil.rmtree(series / name)
    two = Two(root, jax_cache, 2, entry)
    assert two.end() == [0, 0]
    for one, other in zip(expected, arrays_of_checkpoints(job), strict=True):
        assert_same_bits(one, other)
    first, second = (json.loads(results.with_name(name).read_text()) for name in ("rows.json", "rows.1.json"))
    assert len(first) == len(second) == 6 * 4
    steps = [whole[start : start + 8] for start in range(6 * 8, 12 * 8, 8)]
    assert [row for step in steps for row in step[:4]] == first
    assert [row for step in steps for row in step[4:]] == second


# A port for each, because ports of Volcano follow from the names of the hosts.
ADDRESS = f"127.0.0.1:{free_port()}"
HOSTS = ",".join([f"127.{os.getpid() % 250}.{time.time_ns() % 250}.1"] * 2)
COUNTING = """
import jax
# Before the others are known this would keep them from being found.
THREE = jax.numpy.arange(3)

from dispatcher.runtime.jobs.basic import BasicJob
from dispatcher.runtime.registry import job
from tiny_training import Text

@job("tests/both")
class Both(BasicJob[Text]):
    @classmethod
    def config(cls):
        return Text

    def run(self):
        return {"devices": jax.device_count(), "sum": int(THREE.sum())}
"""


def by_hand(number: int) -> dict[str, str]:
    return one_of_two(ADDRESS, number)


def by_volcano(number: int) -> dict[str, str]:
    """As the plugins svc and env of a Job with two Kubernetes pods say it."""
    return {
        "DISPATCHER_VOLCANO_MODE": "1",
        "VC_WORKER_HOSTS": HOSTS,
        "VC_WORKER_NUM": "2",
        "VK_TASK_INDEX": f"{number}",
    }


@pytest.mark.parametrize("said", [by_hand, by_volcano])
def test_one_of_them_reports_the_row(tmp_path: Path, said: Callable[[int], dict[str, str]]) -> None:
    """`dispatcher job run`, of a job in a file that uses JAX when it is imported."""
    (tmp_path / "both.py").write_text(COUNTING)
    (tmp_path / "c.yaml").write_text("job: tests/both\n")
    command = [sys.executable, "-P", "-m", "dispatcher.runtime", "run", "x", "c.yaml", "out", "--import", "both.py"]
    started = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment(tmp_path / "cache", **said(number)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], printed
    # Gloo has something to say there too.
    rows = [[line for line in out.splitlines() if line.startswith("{")] for out, _ in printed]
    assert rows == [['{"devices": 2, "sum": 3}'], []]


def test_a_name_that_cannot_be_resolved_is_told_at_once(tmp_path: Path) -> None:
    code = "from dispatcher.runtime import distributed; distributed.initialize()"
    env = environment(tmp_path, **one_of_two("nowhere.invalid:20001", 1))
    with subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = next((line for line in process.stderr if "cannot be resolved" in line), "")
        process.kill()
    expected = (
        "process 1 of 2 cannot join the others at nowhere.invalid:20001: the name nowhere.invalid cannot be resolved"
    )
    assert expected in told


def test_one_that_is_told_to_stop_while_it_joins_exits_at_once(tmp_path: Path) -> None:
    """There is nothing to save; it would wait for the others until it is killed."""
    code = (
        "import logging; logging.basicConfig(level='INFO')\n"
        "from dispatcher.runtime import distributed\n"
        "from dispatcher.runtime.preemption import Preemption\n"
        "with Preemption(): distributed.initialize()"
    )
    env = environment(tmp_path, **one_of_two(f"127.0.0.1:{free_port()}", 1))
    with subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "waiting for the others" in line)
        process.terminate()
        told = process.stderr.read()
    assert process.returncode == 75
    # Where it hears of it before JAX begins to wait, it is interrupted as anywhere.
    assert "preempted: " in told


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            "distributed.NAME_WAIT_S = 0; import os; os.environ['DISPATCHER_COORDINATOR'] = 'nowhere.invalid:1'",
            "process 0 of 2 cannot join the others at nowhere.invalid:1: the name nowhere.invalid cannot be resolved",
        ),
        ("distributed.WAIT_S = 2", "process 0 of 2 cannot join the others at {address}: not all processes have joined"),
        ("import jax; jax.devices()", "process 0 of 2 cannot join the others at {address}: JAX was initialized before"),
        (
            "taken = socket.create_server(('', {port}), family=socket.AF_INET6, dualstack_ipv6=True)",
            "process 0 of 2 cannot join the others at {address}: this host's port cannot be used: Address already",
        ),
    ],
    ids=["no such name", "the others do not come", "too late", "the port is taken"],
)
def test_a_process_that_cannot_join_says_why(tmp_path: Path, before: str, message: str) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    code = (
        "import socket; from dispatcher.errors import ConfigError; from dispatcher.runtime import distributed\n"
        f"{before.format(port=port)}\n"
        "try: distributed.initialize()\n"
        "except ConfigError as error: raise SystemExit(str(error))"
    )
    env = environment(tmp_path, **one_of_two(address, 0))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message.format(address=address) in done.stderr
    assert "Traceback" not in done.stderr
