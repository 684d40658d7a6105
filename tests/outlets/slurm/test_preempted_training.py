"""A training of the JAX runtime that SLURM preempts for a job of a higher partition: it ends as if undisturbed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from beds.slurm import SlurmBed
from fleet import Fleet, wait_until
from jax_on_cpu import compilation_cache  # noqa: F401 - a fixture
from tiny_runs import TESTS, arrays_of_checkpoints, assert_same_bits, metric_lines, on_cpu
from tiny_training import config, made

pytestmark = [pytest.mark.demo, pytest.mark.slow]

CONFIG = """
hosts:
  hpc: {type: slurm, partitions: [low]}
methods:
  m: {backoff: 1s, env: %s}
kill_grace: 30s
"""
WORDS: dict[str, Any] = {"steps": 200, "save_every": 20, "eval_every": 100}
OTHERS = "#!/bin/sh\nsleep 2"


def steps(metrics: Path) -> int:
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


# Without a grace period SLURM gives KillWait between TERM and KILL; with one, the dispatcher stops the attempt in it,
# as test_end_to_end.py proves with a training of a few lines.
GRACE = pytest.param({"grace_s": 30}, id="grace", marks=pytest.mark.long)


@pytest.mark.parametrize("settings", [pytest.param({"kill_wait_s": 30}, id="kill wait"), GRACE])
def test_a_preempted_training(
    fleet: Fleet, start_slurm: Callable[..., SlurmBed], jax_cache: Path, settings: dict[str, int]
) -> None:
    slurm = start_slurm(nodes=1, **settings)
    fleet.write_config(CONFIG % json.dumps(on_cpu(jax_cache)))
    jobs = fleet.root / "jobs"
    jobs.mkdir()
    shutil.copy(TESTS / "tiny_training.py", jobs / "tiny.py")
    fleet.write_manifest([{"job_id": "a", "method": "m", "job": "tests/tiny", "gpus": 0, "config": config(**WORDS)}])
    pod = fleet.start("pod", "--until-empty", "--slots", "0", "--outlet", "hpc:1", poll="0.5", **slurm.env)
    wait_until(lambda: steps(fleet.attempt("a").directory / "metrics.jsonl") >= 20, "step 20", 180)
    slurm.submit(OTHERS, "--partition=high", "--exclusive")
    wait_until(lambda: fleet.record("a").attempt == 2, "its second attempt", 120)
    assert pod.end(240) == 0, pod.said

    record = fleet.record("a")
    assert (record.state, record.outlet, record.attempt, record.retries) == ("done", "hpc", 2, 0)
    back = next(line for line in fleet.history("a") if line.event == "auto_requeued")
    assert back.set["reason"] == "preempted"
    assert "resuming from step" in fleet.output("a", 2)
    undisturbed = made(fleet.root / "undisturbed", "a", **WORDS)
    undisturbed()
    found = arrays_of_checkpoints(made(fleet.root / "runs", "a", **WORDS))
    for one, other in zip(arrays_of_checkpoints(undisturbed), found, strict=True):
        assert_same_bits(one, other)
    metrics = fleet.attempt("a", 2).directory / "metrics.jsonl"
    assert metric_lines(metrics) == metric_lines(undisturbed.spec.result_path("metrics.jsonl"))
