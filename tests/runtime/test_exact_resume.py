"""A training that is killed, preempted and requeued ends with the bits of one that nobody disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny_training import made

from dispatcher.runtime.metrics import read_metrics

HERE = Path(__file__).parent
TESTS = HERE.parent


def environment(cache: Path, **more: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")},
        "PYTHONPATH": f"{TESTS}:{TESTS.parent}",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **more,
    }


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jax_cache")


def train(root: Path, cache: Path, kills: int, **words: Any) -> list[int]:
    """Train in processes of their own; at which steps they were killed."""
    command = [sys.executable, str(HERE / "kill_and_resume.py"), str(root), str(kills), "7", json.dumps(words)]
    done = subprocess.run(command, env=environment(cache), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def outcome(root: Path, **words: Any) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """All arrays of the last and the best checkpoint by name, and every line of metrics but for its time."""
    job = made(root, **words)
    job.prepare()
    trees = []
    with job.open_checkpoints() as checkpoints:
        for ref in (checkpoints.latest(), checkpoints.find("best")):
            tree = checkpoints.restore(job._tree(job.programs.target), ref)
            leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
            trees.append({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})
    lines = read_metrics(job.spec.result_path("metrics.jsonl"))
    return trees[0], trees[1], [{key: value for key, value in line.items() if key != "wall_s"} for line in lines]


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert len(one) > 10
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.demo
@pytest.mark.slow
def test_twenty_kills_leave_no_trace(tmp_path: Path, cache: Path) -> None:
    words = {"steps": 160, "save_every": 4}
    train(tmp_path / "undisturbed", cache, 0, **words)
    killed = train(tmp_path / "killed", cache, 20, **words)
    assert len(killed) == 20
    # They came all over the training, and not only where a checkpoint had just been saved.
    assert max(killed) - min(killed) > 40
    assert len({step % 4 for step in killed}) > 2

    expected, found = outcome(tmp_path / "undisturbed", **words), outcome(tmp_path / "killed", **words)
    assert_same_bits(expected[0], found[0])
    assert_same_bits(expected[1], found[1])
    assert [line["step"] for line in expected[2]] == list(range(1, 161))
    assert found[2] == expected[2]
