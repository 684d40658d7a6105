"""Other numbers of devices, and two processes that save and restore together."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ports import free_port

from dispatcher import contract
from dispatcher.runtime.checkpoint import CheckpointManager

HERE = Path(__file__).parent


def devices(count: int) -> dict[str, str]:
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}


def test_any_number_of_devices_restores_what_another_saved(tmp_path, child):
    assert jax.device_count() == 1
    here = runpy.run_path(str(HERE / "children" / "topology.py"))
    by_one, by_four = tmp_path / "one", tmp_path / "four"
    here["save"](by_one)
    here["restore"](by_one)
    words = ["restore", by_one, "save", by_four, "restore", by_four]
    assert child("topology.py", *words, **devices(4)) == "4 devices\n"
    here["restore"](by_four)
    assert child("topology.py", "restore", by_one, "restore", by_four, **devices(2)) == "2 devices\n"


def run_pair(folder: Path, *scenarios: str) -> list[subprocess.CompletedProcess[str]]:
    """Two processes, attempts of one entry; how each ended."""
    attempt = folder / "attempt"
    attempt.mkdir(parents=True)
    said = {contract.ATTEMPT_DIR: str(attempt), contract.JOB_ID: "job", contract.ATTEMPT: "1"}
    env = {**os.environ, "JAX_PLATFORMS": "cpu", **said}
    script, port = HERE / "children" / "pair.py", str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, script, str(number), port, folder, *scenarios],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    ended = []
    try:
        for process in started:
            out, err = process.communicate(timeout=120)
            ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    finally:
        for process in started:
            process.kill()
    return ended


def test_two_processes(tmp_path):
    for number, ended in enumerate(run_pair(tmp_path, "both", "damaged", "superseded")):
        assert ended.returncode == 0, ended.stderr[-5000:]
        assert f"process {number} done" in ended.stdout
    assert not list(tmp_path.glob("*/ckpt.tmp"))

    with CheckpointManager(tmp_path / "both") as checkpoints:
        target = {"split": jnp.zeros(8), "copied": jnp.zeros(8), "step": 0}
        found = checkpoints.load(target, checkpoints.find("step-00000002"))
        assert np.array_equal(found.tree["split"], 2 * np.arange(8.0)), "one process restores what two saved"
        assert found.tree["step"] == 2
        assert found.contents.position == {"at": 0}


def test_one_of_two_dies_while_saving(tmp_path):
    ended = run_pair(tmp_path, "killed")
    assert ended[1].returncode == -9
    with CheckpointManager(tmp_path / "killed") as checkpoints:
        assert [each.step for each in checkpoints.checkpoints()] == [1]
        # The survivor went without tidying up, as a killed process does: the next save does it.
        checkpoints.save({"x": 1}, 2)
    assert not (tmp_path / "killed" / "ckpt.tmp").exists()
