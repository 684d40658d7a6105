"""Runs of the tiny training in processes of their own, and what is compared of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dispatcher.runtime.jobs.checkpointed import manager_at
from dispatcher.runtime.metrics import read_metrics

TESTS = Path(__file__).parent


def environment(cache: Path, **more: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")},
        "PYTHONPATH": f"{TESTS}:{TESTS.parent}",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **more,
    }


def metric_lines(path: Path) -> list[dict[str, Any]]:
    """Every line of a metrics file but for its time."""
    return [{key: value for key, value in line.items() if key != "wall_s"} for line in read_metrics(path)]


def arrays_of_checkpoints(job: Any) -> list[dict[str, Any]]:
    """All arrays of the last and of the best checkpoint, by name."""
    job.prepare()
    trees = []
    with manager_at(str(job.spec.relative_path), job.spec) as checkpoints:
        for ref in (checkpoints.latest(), checkpoints.find("best")):
            tree = checkpoints.restore(job.tree(job.programs.target), ref)
            leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
            trees.append({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})
    return trees


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert len(one) > 10
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name
