"""Two workers of one TPU VM run one training of the JAX runtime, on their CPUs: real processes, real collectives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.tpu import TpuBed
from distributed_training import check_checkpoints, method, run_training, write_training
from fleet import Fleet

pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.timeout(900)]


def test_two_workers_train_together(
    fleet: Fleet, start_tpu: Callable[..., TpuBed], tmp_path: Path, jax_cache: Path
) -> None:
    # What workers mount to keep checkpoints: a bucket, or a filesystem over the network.
    mounted = tmp_path / "mounted"
    mounted.mkdir(mode=0o777)
    bed = start_tpu(shared=(mounted, jax_cache, Path(sys.base_prefix)))
    first, other = bed.create("pod", "v4-16")
    fleet.variables = bed.env
    words = f"zone: {bed.zone}, project: {bed.project}, accelerator_type: v4-16"
    fleet.write_config(
        f"clusters:\n  lab: {{root: '{mounted}', work: ~/work}}\nhosts:\n  pod: {{type: tpu, cluster: lab, {words}}}\n"
        # The environment that is installed on the workers.
        f"methods:\n  m: {{python: '{sys.prefix}', {method(jax_cache)}}}\n"
    )
    write_training(fleet, gpus=0)
    run_training(fleet, "--outlet", "pod:1")
    (log,) = other.path(".").glob("**/output.log")
    assert "process 1 of 2: waiting for the others at " in log.read_text()
    assert not list(other.path(".").glob("**/metrics.jsonl")) and list(first.path(".").glob("**/metrics.jsonl"))
    (runs,) = mounted.glob("*/runs")
    check_checkpoints(runs)
