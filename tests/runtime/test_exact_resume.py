"""A training that is killed, preempted and requeued ends with the bits of one that nobody disturbed."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, wait_until
from interrupted_training import FILE, waiting
from tiny_runs import (
    arrays_of_checkpoints,
    assert_same_bits,
    environment,
    metric_lines,
    tiny_entry,
)
from tiny_training import made
from written_metrics import read_metrics

HERE = Path(__file__).parent
# Single steps and blocks of them have the same bits, but not with all of kept_programs.FLAGS.
EXACT = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
TINY = {"save_every": 8, "log_every": 2, "steps_per_call": 2, "eval_every": 40}


def train(module: str, root: Path, jax_cache: Path, kills: int, **words: Any) -> list[int]:
    """Train the job of a test module in processes of their own; at which steps they were killed."""
    command = [sys.executable, str(HERE / "kill_and_resume.py"), module, str(root), str(kills), "41", json.dumps(words)]
    done = subprocess.run(command, env=environment(jax_cache, **EXACT), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def outcome(job: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The arrays of the checkpoints, and every line of metrics but for its time."""
    return arrays_of_checkpoints(job), metric_lines(job.spec.result_path("metrics.jsonl"))


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("module", "kills", "words"),
    [
        pytest.param("tiny_training", 6, {"steps": 80, **TINY}, id="tiny"),
        pytest.param("tiny_training", 20, {"steps": 160, **TINY}, id="twenty", marks=pytest.mark.long),
        pytest.param(
            "demo_training",
            20,
            {"steps": 240, "save_every": 12, "log_every": 2, "eval_every": 40, "steps_per_call": 2},
            id="demo",
            marks=pytest.mark.long,
        ),
    ],
)
def test_kills_leave_no_trace(tmp_path: Path, jax_cache: Path, module: str, kills: int, words: dict[str, Any]) -> None:
    train(module, tmp_path / "undisturbed", jax_cache, 0, **{**words, "steps_per_call": 1})
    killed = train(module, tmp_path / "killed", jax_cache, kills, **words)
    assert len(killed) == kills
    # They came all over the training, and not only where a checkpoint had just been saved.
    assert max(killed) - min(killed) > 2 * kills
    assert len({step % words["save_every"] for step in killed}) > min(2, kills // 6)

    make = importlib.import_module(module).made
    undisturbed = make(tmp_path / "undisturbed", **words)
    expected, found = outcome(undisturbed), outcome(make(tmp_path / "killed", **words))
    for one, other in zip(expected[0], found[0], strict=True):
        assert_same_bits(one, other)
    log_every = undisturbed.training.log_every
    assert [line["step"] for line in expected[1]] == list(range(log_every, undisturbed.training.steps + 1, log_every))
    assert found[1] == expected[1]


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_preemption_through_the_dispatcher_leaves_no_trace(fleet: Fleet, jax_cache: Path) -> None:
    words = {"save_every": 20, "log_every": 5}
    told = fleet.root / "told"
    # One of the two makes five steps a call; it is preempted between two calls.
    blocks = tiny_entry(FILE, job="tests/interrupted", steps_per_call=5, **words)
    fleet.write_manifest(
        [
            {**blocks, "job_id": "preempted", "priority": 1, "gpus": 0, "env": waiting(25, told)},
            {**tiny_entry(**words), "job_id": "undisturbed", "gpus": 0},
        ]
    )
    dispatcher = fleet.start("pod", "--until-empty", **environment(jax_cache, **EXACT))

    first = fleet.attempt("preempted", 1).directory / "metrics.jsonl"
    wait_until(lambda: first.exists() and len(first.read_text().splitlines()) >= 4, "the training has begun", 240)
    record = fleet.record("preempted")
    assert record.pid is not None
    os.kill(record.pid, signal.SIGTERM)
    told.touch()
    dispatcher.end(600)

    said = fleet.output("preempted", 1)
    assert fleet.exit_file("preempted", 1)["exit_code"] == 75, said
    preempted = re.search(r"preempted at step (\d+) of 40, saved", said)
    assert preempted, said
    stopped = int(preempted[1])
    assert fleet.states() == {"preempted": "done", "undisturbed": "done"}, fleet.output("preempted", 2)
    assert fleet.record("preempted").attempt == 2
    assert 20 <= stopped < 40
    assert stopped % 5 == 0
    # Where an evaluation was cut off, the step is logged by the next attempt.
    assert read_metrics(first)[-1]["step"] in (stopped - 5, stopped)
    assert f"resuming from step {stopped} of 40" in fleet.output("preempted", 2)

    trees = {}
    lines = {}
    for job_id, number in (("undisturbed", 1), ("preempted", 2)):
        trees[job_id] = arrays_of_checkpoints(made(fleet.root / "runs", job_id))
        lines[job_id] = metric_lines(fleet.attempt(job_id, number).directory / "metrics.jsonl")
    for expected, found in zip(trees["undisturbed"], trees["preempted"], strict=True):
        assert_same_bits(expected, found)
    assert len(lines["undisturbed"]) == 8
    assert lines["preempted"] == lines["undisturbed"]
