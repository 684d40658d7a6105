"""The tiny training as two processes on a host that does not see the workspace, and what must come of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import kept_programs
import numpy as np
from fleet import Fleet, wait_until
from repositories import Repository
from tiny_runs import TESTS, arrays_of_checkpoints
from tiny_training import config, made

from dispatcher import contract

STEPS = 10
WORDS: dict[str, Any] = {"steps": STEPS, "save_every": 5, "eval_every": 5}
# Two processes that compile, on a machine that does much else.
PATIENCE_S = 400.0


def method(programs: Path) -> str:
    """A method whose processes have a device each, by the gloo collectives of JAX for CPUs.

    What they compile is in the directory `programs`, as they see it.
    """
    env = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **kept_programs.environment(programs)}
    return f"env: {json.dumps(env)}"


def write_training(fleet: Fleet, **entry: Any) -> None:
    """A project in a repository whose one job is the training."""
    repository = Repository(fleet.root)
    repository.write(".gitignore", "run_state/\nsaid/\n")
    (fleet.root / "jobs").mkdir()
    shutil.copy(TESTS / "tiny_training.py", fleet.root / "jobs" / "tiny.py")
    fleet.write_manifest([{"job_id": "tiny", "job": "tests/tiny", "config": config(**WORDS), **entry}])
    repository.commit()


def run_training(fleet: Fleet, *words: str) -> None:
    """Run it to its end, and look at what a training of two processes leaves in the workspace."""
    pod = fleet.start("pod", "--until-empty", "--slots", "0", *words, poll="2")
    try:
        wait_until(lambda: not pod.is_running(), "the training has ended", PATIENCE_S)
    except AssertionError:
        print(fleet.record("tiny"), fleet.output("tiny") if fleet.attempt("tiny").log.exists() else "")
        raise
    record, attempt = fleet.record("tiny"), fleet.attempt("tiny")
    assert record.state == "done", f"{pod.said}\n{fleet.output('tiny')}"
    assert json.loads(attempt.result.read_text())["steps"] == STEPS
    run = json.loads((attempt.directory / contract.RUN_FILE).read_text())
    assert (run["status"], run["processes"], run["devices"]) == ("completed", 2, 2)
    assert "process 0 of 2: waiting for the others at " in fleet.output("tiny")


def check_checkpoints(runs: Path) -> None:
    """The last checkpoint and the best one can be read by one process alone, and their numbers are numbers."""
    for arrays in arrays_of_checkpoints(made(runs, "tiny", **WORDS)):
        assert len(arrays) > 10
        assert all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")
