"""GPUs that jobs of SLURM leave idle: told where they run, brought home by the polls, recorded and acted on as here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from beds.slurm import SlurmBed
from fleet import Fleet, shell, wait_until
from outlets.remote.nvidia_smi import SCRIPT

from dispatcher.provenance.read import read_provenance

CONFIG = """
gpu_idle: {after: 2s}
methods: {m: {}, stops: {gpu_idle: {stop: true}}}
hosts:
  hpc:
    type: slurm
    env: {PATH: "%s"}
"""


def test_idle_gpus_of_jobs(slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    driver = Path(slurm.directory, "driver")
    driver.mkdir()
    (driver / "nvidia-smi").write_text(SCRIPT)
    (driver / "nvidia-smi").chmod(0o755)

    def busy(percent: str) -> None:
        (driver / "use.new").write_text("".join(f"{index}, GPU-{index}, {percent}\n" for index in range(4)))
        (driver / "use.new").rename(driver / "use")

    (driver / "facts").write_text("".join(f"{index}, NVIDIA H100, GPU-{index}, 580.1\n" for index in range(4)))
    busy("[N/A]")
    fleet = Fleet(slurm.directory / "work" / "lab")
    fleet.write_config(CONFIG % f"{driver}:{os.environ['PATH']}")
    waits = "echo $CUDA_VISIBLE_DEVICES; exec sleep 600"
    # One that does not say gets a GPU of such a host, too.
    fleet.write_manifest([shell("a", waits), shell("c", waits, gpus=2, method="stops"), shell("cpu", waits, gpus=0)])
    pod = fleet.start("pod", "--outlet", "hpc", "--slots", "8", poll="0.5")
    try:
        for job in ("a", "c", "cpu"):
            fleet.wait_for(job, "running")
        wait_until(fleet.attempt("c").log.exists, "it has begun")
        wait_until(fleet.attempt("c").provenance_host.exists, "it has told what it runs on")
        ran_from = read_provenance(fleet.layout, "c", 1)
        assert ran_from is not None
        assert ran_from.driver == "580.1"
        # Those that SLURM gave it, and not all of the node.
        visible = fleet.output("c").splitlines()[0].split(",")
        assert [gpu.uuid for gpu in ran_from.gpus] == [f"GPU-{index}" for index in visible]
        assert len(visible) == 2
        busy("0")
        record = fleet.wait_for("c", "failed")
        assert (record.reason, fleet.history("c")[-1].event) == ("GPU idle for 2 s", "failed")
        wait_until(lambda: "gpu_idle" in fleet.events("a"), "it is idle")
        rows = {row["job"]: row for row in json.loads(fleet.run("status", "--json"))["jobs"]}
        assert rows["a"]["gpu_idle_s"] >= 2
        assert rows["cpu"]["gpu_idle_s"] is None
        assert "a (attempt 1): its GPU idle since" in pod.said
        busy("7")
        wait_until(lambda: "gpu_busy" in fleet.events("a"), "it is in use again")
        assert {"gpu_idle", "gpu_busy"}.isdisjoint(fleet.events("cpu"))
        (idle,) = (line.data or {} for line in fleet.history("c") if line.event == "gpu_idle")
        assert (idle["attempt"], idle["gpus"]) == (1, 2)
        fleet.run("cancel", "a", "cpu")
        for job in ("a", "cpu"):
            fleet.wait_for(job, "abandoned")
        pod.stop()
    finally:
        fleet.close()
