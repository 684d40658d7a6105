"""Two Kubernetes pods of one Volcano Job run one training of the JAX runtime: real processes, real collectives."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds.volcano import VolcanoBed
from distributed_training import STEPS, check_checkpoints, method, run_training, write_training
from fleet import Fleet
from kept_programs import shared
from tiny_runs import metric_lines

pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.timeout(900)]


def test_two_pods_train_together(fleet: Fleet, volcano: VolcanoBed, jax_cache: Path) -> None:
    volume = Path(volcano.make_volume("data"))
    words = f"namespace: {volcano.namespace}, kubeconfig: '{volcano.kubeconfig}', image: jax"
    words += ", pvc_name: data, pvc_mount_path: /data"
    fleet.write_config(
        f"hosts:\n  k8s: {{type: volcano, {words}}}\nmethods:\n  m: {{{method(Path('/data/programs'))}}}\n"
    )
    write_training(fleet, gpus=0, resources={"nodes": 2, "cpus": 1})
    with shared(volume / "programs", jax_cache):
        run_training(fleet, "--outlet", "k8s:1")
    (metrics,) = volume.glob("**/metrics.jsonl")
    assert metric_lines(metrics)[-1]["step"] == STEPS
    assert "process 1 of 2: waiting for the others at " in metrics.with_name("output.1.log").read_text()
    check_checkpoints(metrics.parents[4] / "runs")
