"""Runs of the tiny training in processes of their own, and what is compared of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax_on_cpu  # noqa: F401 - what this process trains has the bits of the runs
import kept_programs
import numpy as np
from fleet import wait_until
from ports import free_port  # noqa: F401 - tests of several processes find it here
from tiny_training import config
from written_metrics import read_metrics

from dispatcher import contract
from dispatcher.runtime.jobs.checkpointed import manager_at

TESTS = Path(__file__).parent
PATIENCE_S = 400.0


def environment(cache: Path, **more: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")},
        # As pytest has it, by pyproject.toml.
        "PYTHONPATH": f"{TESTS}:{TESTS.parent}:{TESTS.parent}/examples/names",
        **on_cpu(cache),
        **more,
    }


def on_cpu(cache: Path) -> dict[str, str]:
    """The variables of a training that compiles nothing anew which is in JAX's cache."""
    return {
        "JAX_PLATFORMS": "cpu",
        **kept_programs.environment(cache),
    }


def metric_lines(path: Path) -> list[dict[str, Any]]:
    """Every line of a metrics file but for its times."""
    return [
        {key: value for key, value in line.items() if key != "wall_s" and not key.startswith("speed/")}
        for line in read_metrics(path)
    ]


def arrays_of_checkpoints(job: Any) -> list[dict[str, Any]]:
    """All arrays of the last and of the best checkpoint, by name."""
    job.prepare()
    trees = []
    with manager_at(str(job.spec.relative_path), job.spec) as checkpoints:
        for ref in (checkpoints.latest(), checkpoints.find("best")):
            tree = checkpoints.restore(job.setup.layout.abstract.tree, ref)
            leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
            trees.append({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})
    return trees


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert len(one) > 10
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


class Attempt:
    """`python -m dispatcher.runtime attempt` in a directory of its own, as a dispatcher starts it.

    Of the entry `tiny` in the workspace `root`; `entry` is what it says beside `job_id`.
    """

    def __init__(self, root: Path, cache: Path, number: int, entry: dict[str, Any], **more: str) -> None:
        self.directory = root / "run_state" / "jobs" / "tiny" / str(number)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / contract.ENTRY_FILE).write_text(json.dumps({"job_id": "tiny", **entry}))
        said = {
            contract.ROOT: str(root),
            contract.JOB_ID: "tiny",
            contract.ATTEMPT: str(number),
            contract.ATTEMPT_DIR: str(self.directory),
        }
        command = [sys.executable, "-P", "-m", "dispatcher.runtime", "attempt"]
        # Of several processes of one attempt each has a log of its own.
        self.log = self.directory / f"output.{more.get('DISPATCHER_PROCESS_ID', '0')}.log"
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=environment(cache, **{**said, **more}),
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def metrics(self) -> Path:
        return self.directory / "metrics.jsonl"

    def last_step(self) -> int:
        lines = metric_lines(self.metrics) if self.metrics.exists() else []
        return int(lines[-1]["step"]) if lines else 0

    def wait_for(self, reached: Callable[[], object], what: str) -> None:
        def looked() -> object:
            found = reached()
            assert found or self.process.poll() is None, f"{what}: ended with {self.process.poll()}\n{self.said}"
            return found

        wait_until(looked, what, PATIENCE_S)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; the exit status. What it has said is shown when the test fails."""
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.kill()
            print(self.said)

    def kill(self) -> None:
        """Nothing of its group is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def tiny_entry(*imports: Path, job: str = "tests/tiny", **training: Any) -> dict[str, Any]:
    """What an entry says that runs the tiny training, or a job of the files `imports`."""
    files = [str(path) for path in (TESTS / "tiny_training.py", *imports)]
    return {"job": job, "import": files, "config": config(**training)}


def one_of_two(address: str, number: int) -> dict[str, str]:
    """What the environment of process `number` of two says."""
    return {
        "DISPATCHER_COORDINATOR": address,
        "DISPATCHER_NUM_PROCESSES": "2",
        "DISPATCHER_PROCESS_ID": str(number),
    }
