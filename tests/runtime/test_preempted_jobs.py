"""A CheckpointedJob that is preempted by a real SIGTERM to the attempt of a dispatcher."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from fleet import Fleet, wait_until
from tiny_runs import environment

from dispatcher import contract

pytestmark = pytest.mark.demo

JOBS = '''
import time
from dataclasses import dataclass

import jax.numpy as jnp

from dispatcher.runtime import CheckpointedJob, field, job


@dataclass(frozen=True)
class Counting:
    steps: int = field("count/steps", default=10)


@job("tests/asks")
class Asks(CheckpointedJob[Counting]):
    """Saves only when it is preempted."""

    @classmethod
    def config(cls):
        return Counting

    def begin(self):
        state, step = {"sum": jnp.zeros(())}, 0
        resumed = self.resume(state)
        if resumed is not None:
            state, step = resumed.tree, resumed.ref.step
        print(f"begins at {step}", flush=True)
        return state, step

    def run(self):
        state, step = self.begin()
        while step < self.args.steps:
            state, step = {"sum": state["sum"] + step}, step + 1
            preempted = self.preempted
            if step == 7:
                # As an update that takes long; the next one is not begun.
                print("at step 7", flush=True)
                while not preempted:
                    time.sleep(0.01)
                    preempted = self.preempted
            if preempted:
                self.save(f"step-{step}", state, step=step, resumable=True)
                self.exit_preempted()
        return {"sum": state["sum"], "steps": step}


@job("tests/never-asks")
class NeverAsks(Asks):
    """Saves, and takes long."""

    def run(self):
        state, step = self.begin()
        if step:
            return {"steps": step}
        self.save("step-3", state, step=3, resumable=True)
        print("saved", flush=True)
        time.sleep(600)
'''


def run_and_tell(fleet: Fleet, cache: Path, job: str, moment: str) -> None:
    """Run the job until it says `moment`, send a SIGTERM to its wrapper, and wait until its next attempt is done."""
    (fleet.root / "jobs").mkdir()
    (fleet.root / "jobs" / "leaving.py").write_text(JOBS)
    fleet.write_manifest([{"job_id": "a", "job": job, "gpus": 0}])
    dispatcher = fleet.start("pod", "--until-empty", **environment(cache))
    wait_until(lambda: fleet.attempt("a", 1).log.exists() and moment in fleet.output("a", 1), moment, 120)
    record = fleet.record("a")
    assert record.pid is not None
    os.kill(record.pid, signal.SIGTERM)
    dispatcher.end(240)
    assert fleet.exit_file("a", 1)["exit_code"] == 75, fleet.output("a", 1)
    assert fleet.states() == {"a": "done"}, fleet.output("a", 2)
    assert fleet.record("a").attempt == 2


def test_a_job_that_asks_saves_and_leaves(fleet: Fleet, jax_cache: Path) -> None:
    run_and_tell(fleet, jax_cache, "tests/asks", "at step 7")
    assert "SIGTERM: finishing the step, saving, exiting within" in fleet.output("a", 1)
    # Nothing was saved but what it saved when it was told.
    assert "begins at 7" in fleet.output("a", 2)
    # The dispatcher knows it too: only a newer one will start the pauses over.
    assert [line.set["furthest_checkpoint"] for line in fleet.history("a") if line.event == "auto_requeued"] == [7]
    row = json.loads((fleet.attempt("a", 2).directory / contract.RESULT_FILE).read_text())
    assert row == {"sum": 45.0, "steps": 10}


def test_a_job_that_never_asks_leaves_at_once_with_what_it_has_saved(fleet: Fleet, jax_cache: Path) -> None:
    run_and_tell(fleet, jax_cache, "tests/never-asks", "saved")
    assert "SIGTERM: nothing to save, exiting" in fleet.output("a", 1)
    assert "begins at 3" in fleet.output("a", 2)
