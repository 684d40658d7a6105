"""What a node tells of an attempt beside its command: of itself, and of what is known only there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fleet import wait_until
from node_trials import WORK_ID
from trials import KEY, Trial

from dispatcher.base.variables import RECORDED_VARIABLES, recorded
from dispatcher.outlets.assignment import Assignment
from dispatcher.outlets.base import Request, Slot
from dispatcher.outlets.bundle import render
from dispatcher.outlets.node.setup import NodeSetup
from dispatcher.provenance.read import package_lines
from dispatcher.provenance.record import GpuName, HostFacts

SMI = """#!/bin/bash
echo "0, NVIDIA H200, GPU-aaa, 580.1"
echo "1, NVIDIA H200, GPU-bbb, 580.1"
"""


def on_a_node(
    one: Trial, tmp_path: Path, *, is_shared: bool = True, visible: str | None = "1", gpus: int = 1, **words: object
) -> Trial:
    """The attempt as a host has it that is not its pod's."""
    (tmp_path / "locks").mkdir(exist_ok=True)
    node = NodeSetup(work_id=WORK_ID, work=f"{tmp_path}/work", local_dir=f"{tmp_path}/locks")
    site = one.outlet.site(Slot(), Request(gpus))
    seen = {"CUDA_VISIBLE_DEVICES": visible}
    site = msgspec.structs.replace(site, node=node, is_shared=is_shared, host=None, environment=seen, gpus=gpus)
    assigned = Assignment(entry=one.entry, key=KEY, pod="pod", request=Request(gpus=gpus), slot=Slot())
    config = msgspec.structs.replace(one.config, **words)
    one.bundle = render(config, assigned, site)
    return one


def facts(one: Trial) -> HostFacts:
    path = one.paths.provenance_host
    wait_until(path.exists, "the node has told")
    return msgspec.json.decode(path.read_bytes(), type=HostFacts)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def put(script: str) -> None:
        folder = tmp_path / "driver"
        folder.mkdir()
        (folder / "nvidia-smi").write_text(script)
        (folder / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return put


def waiting(one: Trial) -> str:
    return f"import os, time\nwhile not os.path.exists({str(one)!r}): time.sleep(0.02)"


def test_a_node_tells_host_driver_gpus_and_python(trial, tmp_path, nvidia_smi, monkeypatch):
    nvidia_smi(SMI)
    # Whoever runs the tests may have set some.
    for name in recorded(os.environ, RECORDED_VARIABLES):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    monkeypatch.setenv("NCCL_TOKEN", "s3cret")
    go = tmp_path / "go"
    command = (sys.executable, "-c", waiting(go))
    env = {"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "s3cret"}
    one = on_a_node(trial("", command=command, env=env), tmp_path)
    one.outlet.submit([one.bundle])
    one.is_started = True
    found = facts(one)
    go.touch()
    assert one.end().exit_code == 0
    assert found.host == os.uname().nodename
    assert (found.driver, found.gpus) == ("580.1", (GpuName(index=1, name="NVIDIA H200", uuid="GPU-bbb"),))
    assert found.python is not None
    assert found.python.version == sys.version.split()[0]
    # Of the variables of the entry only the names are recorded, by the pod.
    assert found.environment == {"CUDA_VISIBLE_DEVICES": "1", "XLA_FLAGS": "--xla_dump_to=x"}
    assert found.problems == ()
    assert found.packages is not None
    assert found.package_lines is None
    assert one.config.layout.provenance_packages(found.packages).exists()
    assert b"s3cret" not in one.paths.provenance_host.read_bytes()


@pytest.mark.parametrize(
    ("gpus", "variables", "uuids"),
    [
        pytest.param(1, {}, [], id="one of two, nobody knows which"),
        pytest.param(2, {}, ["GPU-aaa", "GPU-bbb"], id="all of the node"),
        pytest.param(2, {"DISPATCHER_NUM_PROCESSES": "2"}, [], id="one of two on each of two nodes"),
        pytest.param(4, {"DISPATCHER_NUM_PROCESSES": "2"}, ["GPU-aaa", "GPU-bbb"], id="all of two nodes"),
    ],
)
def test_gpus_that_nobody_has_named(trial, tmp_path, nvidia_smi, monkeypatch, gpus, variables, uuids):
    """PBS tells a job the number of its GPUs alone; where nothing keeps jobs apart, it sees those of others too."""
    nvidia_smi(SMI)
    for name in ("SLURM_NNODES", "DISPATCHER_NUM_PROCESSES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    go = tmp_path / "go"
    one = on_a_node(trial("", command=(sys.executable, "-c", waiting(go))), tmp_path, visible=None, gpus=gpus)
    one.outlet.submit([one.bundle])
    one.is_started = True
    found = facts(one)
    go.touch()
    assert one.end().exit_code == 0
    assert (found.driver, [gpu.uuid for gpu in found.gpus]) == ("580.1", uuids)
    assert found.problems == (() if uuids else ("which of the 2 GPUs of its host it was given",))


def test_where_the_workspace_is_not_seen_the_list_goes_with_the_rest(trial, tmp_path):
    go = tmp_path / "go"
    one = on_a_node(trial("", command=("python", "-c", waiting(go))), tmp_path, is_shared=False)
    one.outlet.submit([one.bundle])
    one.is_started = True
    found = facts(one)
    go.touch()
    one.end()
    assert found.packages is None
    assert found.package_lines
    assert not one.config.layout.provenance_dir.exists()
    assert package_lines(one.config.layout, "job", 1) == list(found.package_lines)


def test_a_driver_that_hangs_delays_no_start_and_no_end(trial, tmp_path, nvidia_smi):
    nvidia_smi(f"#!/bin/bash\necho $$ >{tmp_path}/smi\nsleep 987\n")
    command = (sys.executable, "-c", f"import os, time\nwhile not os.path.exists('{tmp_path}/smi'): time.sleep(0.02)")
    one = on_a_node(trial("", command=command), tmp_path)
    one.outlet.submit([one.bundle])
    one.is_started = True
    # `end` finds no process of it and its lock free.
    assert one.end().exit_code == 0
    assert not one.paths.provenance_host.exists()
    assert not os.path.exists(f"/proc/{(tmp_path / 'smi').read_text().strip()}")


def test_the_command_has_no_child_that_it_has_not_started(trial, tmp_path, nvidia_smi):
    nvidia_smi(f"#!/bin/bash\ntouch {tmp_path}/smi\nsleep 987\n")
    script = f"""
import os, time
while not os.path.exists('{tmp_path}/smi'): time.sleep(0.02)
try: print("child", os.waitpid(-1, os.WNOHANG))
except ChildProcessError: print("none")
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:4])
"""
    one = on_a_node(trial("", command=(sys.executable, "-c", script)), tmp_path)
    one.outlet.submit([one.bundle])
    one.is_started = True
    assert one.end().exit_code == 0
    assert one.output.splitlines()[0] == "none"


def test_an_ifs_of_a_file_of_secrets_does_not_join_the_names_that_are_left_out(trial, tmp_path):
    secret = tmp_path / "secret.env"
    secret.write_text("IFS=:\nTOKEN_A=1\nXLA_FLAGS=hunter2\nNCCL_DEBUG=hunter3\n")
    secret.chmod(0o600)
    go = tmp_path / "go"
    one = trial("", command=(sys.executable, "-c", waiting(go)))
    one.entry = msgspec.structs.replace(one.entry, env_file=str(secret))
    one = on_a_node(one, tmp_path)
    one.outlet.submit([one.bundle])
    one.is_started = True
    told = facts(one)
    go.touch()
    assert one.end().exit_code == 0
    assert not {"XLA_FLAGS", "NCCL_DEBUG"} & told.environment.keys(), told.environment


def test_provenance_can_be_switched_off(trial, tmp_path):
    one = on_a_node(trial("sleep 0.5"), tmp_path, provenance=False)
    assert one.bundle.origin is None
    assert b"tell_facts" not in one.bundle.files["node.sh"]


def test_a_command_that_is_no_python_has_none(trial, tmp_path):
    go = tmp_path / "go"
    one = on_a_node(trial(f"until [ -e '{go}' ]; do sleep 0.02; done"), tmp_path)
    one.outlet.submit([one.bundle])
    one.is_started = True
    found = facts(one)
    go.touch()
    one.end()
    assert (found.python, found.packages, found.package_lines) == (None, None, None)
    assert found.host == os.uname().nodename
