"""`dispatcher outlets`: every configured host, asked at the same time, on real hosts and a real SLURM."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from beds.slurm import SlurmBed
from beds.sshd import SshBed
from fleet import Fleet, fleet_at, shell, wait_until


def rows(fleet: Fleet, *words: str, **environment: str) -> dict[str, dict[str, Any]]:
    return {row["outlet"]: row for row in json.loads(fleet.run("outlets", "--json", *words, **environment))}


def test_nothing_is_configured(tmp_path: Path) -> None:
    with fleet_at(tmp_path / "a'; echo foo") as fleet:
        fleet.layout.config_file.touch()
        assert fleet.run("outlets").startswith("no hosts are configured: describe them under `hosts` in ")
        assert json.loads(fleet.run("outlets", "--json")) == []


def test_hosts_behind_ssh_one_of_them_away(tmp_path: Path, ssh: SshBed) -> None:
    config = """
clusters: {lab: {}}
hosts:
  h1: {type: plain, ssh: h1, cluster: lab, max_in_flight: 8, submits_per_minute: 30}
  h2: {type: plain, ssh: h2}
  gone: {type: plain, ssh: no-such-host}
  pod: {type: volcano, image: i, pvc_name: c, pvc_mount_path: /m}
priority: [h2]
"""
    environment = {"DISPATCHER_SSH_CONFIG": os.fspath(ssh.config)}
    with fleet_at(tmp_path / "a'; echo foo") as fleet:
        fleet.write_config(config)
        with ssh["h2"].silent():
            found = rows(fleet, "--timeout", "4", **environment)
            shown = fleet.run("outlets", "--timeout", "4", **environment)
        assert list(found) == ["h2", "h1", "gone", "pod"]
        assert (found["h1"]["reachable"], found["h1"]["error"], found["h1"]["in_flight"]) == (True, "", 0)
        assert "CPU" in found["h1"]["free"][0]["free"]
        assert found["h2"]["reachable"] is False
        assert "no answer within 4 s" in found["h2"]["error"]
        assert "no-such-host" in found["gone"]["error"]
        # Nobody has logged in to Google here, if there is a gcloud at all.
        assert found["pod"]["reachable"] is False and found["pod"]["error"]
        line = next(line for line in shown.splitlines() if line.startswith("h1"))
        assert "plain" in line and "lab" in line and "8 in flight, 30/min" in line


def test_partitions_of_a_cluster_and_what_is_in_flight(
    tmp_path: Path, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet_at(tmp_path / "a'; echo foo") as fleet:
        fleet.write_config("hosts:\n  hpc: {type: slurm}\npoll_interval: 1s\n")
        fleet.write_manifest([shell("a", "sleep 600", gpus=1)])
        before = rows(fleet, **slurm.env)["hpc"]
        assert before["reachable"], before
        assert {one["queue"] for one in before["free"]} >= {"low", "high"}
        fleet.run("submit", "a", "--outlet", "hpc", **slurm.env)
        after = rows(fleet, **slurm.env)["hpc"]
        assert after["in_flight"] == 1
        fleet.run("cancel", "a")
        fleet.run("poll", **slurm.env)
        # Also one that was just beginning.
        wait_until(lambda: not slurm.run("squeue", "--noheader").stdout, "the job is gone")
        with slurm.without_controller():
            down = rows(fleet, "--timeout", "20", **slurm.env)["hpc"]
            assert down["reachable"] is False
            assert down["error"]
