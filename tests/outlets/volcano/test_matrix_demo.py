"""A matrix with one method on Volcano and one in slots of this machine, in one status file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from beds.volcano import VolcanoBed
from distributed_training import PATIENCE_S, method
from fleet import Fleet, wait_until
from kept_programs import shared
from repositories import Repository
from tiny_runs import TESTS
from tiny_training import CONFIG

pytestmark = [pytest.mark.demo, pytest.mark.slow, pytest.mark.timeout(900)]

SWEEP = """
defaults: {job: tests/tiny, gpus: 0, config: CONFIG}
job_id: "{method}_s{seed}"
sweeps:
  - {defaults: {method: fft, outlet: k8s}, grid: {seed: [1]}}
  - {defaults: {method: lora, outlet: local}, grid: {seed: [1]}}
"""


def test_one_method_on_volcano_and_one_here(fleet: Fleet, volcano: VolcanoBed, jax_cache: Path) -> None:
    programs = Path(volcano.make_volume("data")) / "programs"
    words = f"namespace: {volcano.namespace}, kubeconfig: '{volcano.kubeconfig}', image: jax"
    words += ", pvc_name: data, pvc_mount_path: /data, cpu_cpu: 500m"
    fleet.write_config(
        f"hosts:\n  k8s: {{type: volcano, {words}}}\n"
        f"methods:\n  fft: {{{method(Path('/data/programs'))}}}\n  lora: {{{method(jax_cache)}}}\n"
    )
    repository = Repository(fleet.root)
    repository.write(".gitignore", "run_state/\nsaid/\nruns/\n")
    repository.write("jobs/tiny.py", (TESTS / "tiny_training.py").read_text())
    fleet.layout.matrix_dir.mkdir()
    (fleet.layout.matrix_dir / "sweep.yaml").write_text(SWEEP.replace("CONFIG", json.dumps(CONFIG)))
    fleet.run("matrix", "make", str(fleet.layout.matrix_dir / "sweep.yaml"))
    repository.commit()
    with shared(programs, jax_cache):
        pod = fleet.start("pod", "--until-empty", "--slots", "0", "--outlet", "k8s:1", "--outlet", "local:1", poll="2")
        wait_until(lambda: not pod.is_running(), "all jobs have ended", 2 * PATIENCE_S)
    records = fleet.records()
    assert {job: (record.state, record.outlet) for job, record in records.items()} == {
        "fft_s1": ("done", "k8s"),
        "lora_s1": ("done", "local"),
    }, pod.said
    assert sorted(fleet.status()) == ["fft_s1", "lora_s1"]
    rows = {row["job_id"]: row for row in json.loads(fleet.run("results", "--format", "json"))}
    assert {row["steps"] for row in rows.values()} == {CONFIG["training"]["steps"]} and len(rows) == 2
