"""`dispatcher solve` over real sshd hosts and a real SLURM."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import commands
import pytest
from beds.pbs import PbsBed
from beds.slurm import SlurmBed
from beds.sshd import SshBed, SshHost
from outlets.remote.nvidia_smi import SCRIPT, gpus

HOSTS = """
hosts:
  ws1: {ssh: ws1, cluster: lab, chips: {h100: 2}}
  ws2: {ssh: ws2, cluster: lab, chips: {h100: 4}}
  login1: {type: slurm, ssh: login1, cluster: hpc, partitions: [high]}
  away: {ssh: away, cluster: lab, chips: {h100: 4}}
  silent: {ssh: silent, cluster: lab, chips: {h100: 4}}
clusters: {lab: {work: /tmp}, hpc: {work: /tmp}}
priority: [silent, ws1, away, ws2, login1]
"""


def solve(
    root: Path, *words: str, ssh: SshBed | None = None, path: str = "/usr/sbin:/usr/bin:/sbin:/bin"
) -> subprocess.CompletedProcess[str]:
    variables = {} if ssh is None else {"DISPATCHER_SSH_CONFIG": str(ssh.config)}
    return commands.run(
        [*commands.COMMAND, "--root", str(root), "solve", *words],
        env={"PATH": path, "HOME": str(root), **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def verdicts(table: str) -> dict[str, tuple[str, str]]:
    """The verdict and the reason for each host, of the table that --explain prints."""
    _, _, rows = table.partition("---\n")
    cells = [re.split(r" {2,}", row, maxsplit=4) for row in rows.splitlines()]
    return {host: (verdict, why) for host, _, _, verdict, why in cells}


def give_gpus(host: SshHost, count: int, apps: str = "") -> None:
    host.install("nvidia-smi", SCRIPT)
    (host.bin / "gpus").write_text(gpus(count))
    (host.bin / "apps").write_text(apps)


@pytest.fixture
def lab(tmp_path: Path, start_slurm: Callable[..., SlurmBed], start_ssh: Callable[..., SshBed]) -> SshBed:
    """Two hosts with GPUs, one of which is busy, a login node of SLURM, and two hosts that can be cut off."""
    slurm = start_slurm()
    names = ["ws1", "ws2", "login1", "away", "silent"]
    ssh = start_ssh(names, shared=[slurm.directory], env=slurm.env)
    give_gpus(ssh["ws1"], 2, "GPU-0, 1, 20000\n")
    give_gpus(ssh["ws2"], 4)
    (tmp_path / "dispatcher.yaml").write_text(HOSTS)
    return ssh


def test_every_host_is_asked_and_explained(tmp_path: Path, lab: SshBed) -> None:
    def solved_in() -> tuple[subprocess.CompletedProcess[str], float]:
        began_s = time.monotonic()
        solved = solve(tmp_path, "--chip", "h100", "-n", "2", "--explain", "--timeout", "10", ssh=lab)
        return solved, time.monotonic() - began_s

    _, alone_s = solved_in()
    with lab["away"].away(), lab["silent"].silent():
        solved, took_s = solved_in()
    assert solved.returncode == 0, solved.stderr
    assert solved.stdout.startswith("ws2: 4 of 4 h100 free\n")
    assert took_s < 2 * alone_s + 17, "the two hosts that do not answer are asked at the same time"
    found = verdicts(solved.stdout)
    assert list(found) == ["ws2", "login1", "silent", "ws1", "away"]
    assert found["ws2"] == ("chosen", "4 of 4 h100 free")
    assert found["login1"] == ("possible", "partition high: 8 of 8 h100 free")
    assert found["silent"][0] == "unreachable" and "10 s" in found["silent"][1]
    assert found["away"][0] == "unreachable" and found["away"][1].startswith("ssh away: ")
    verdict, why = found["ws1"]
    assert verdict == "no" and why.startswith("1 of 2 h100 free, 2 needed: GPU 0: 20000 MiB used by pid 1 (root: ")


def test_slurm_queues_what_nobody_can_start(
    tmp_path: Path, start_slurm: Callable[..., SlurmBed], start_ssh: Callable[..., SshBed]
) -> None:
    slurm = start_slurm()
    ssh = start_ssh(["login1"], shared=[slurm.directory], env=slurm.env)
    (tmp_path / "dispatcher.yaml").write_text(
        "hosts: {login1: {type: slurm, ssh: login1, partitions: [low, high], cpu_partitions: [low]}}"
    )
    running = [slurm.submit("#!/bin/sh\nsleep 600\n", "-p", "low", "-w", node, "--gres=gpu:1") for node in ("n1", "n2")]
    for job in running:
        slurm.wait_for(job, "RUNNING")
    slurm.submit("#!/bin/sh\n", "-p", "low", "--gres=gpu:4")

    def chosen(*words: str) -> tuple[int, str]:
        solved = solve(tmp_path, *words, ssh=ssh)
        assert not solved.stderr
        return solved.returncode, solved.stdout.splitlines()[0]

    assert chosen("-n", "3") == (0, "login1 low: partition low: 6 of 8 GPUs free")
    assert chosen("-n", "6", "--nodes", "2") == (0, "login1 low: partition low: 6 of 8 GPUs free")
    waits = "login1 low (queued): partition low: no room now (6 of 8 h100 free, 1 job waiting)"
    assert chosen("--chip", "h100", "-n", "4") == (0, waits)
    assert chosen("-n", "0", "--cpu", "3") == (0, "login1 low: partition low: 6 of 8 CPUs free")
    assert chosen("-n", "5") == (1, "no host can run it (5 GPUs)")
    assert chosen("--chip", "a100") == (1, "no host can run it (1 a100)")

    slurm.run("scontrol", "update", "NodeName=n1,n2", "State=DRAIN", "Reason=test")
    code, _ = chosen("-n", "1")
    assert code == 1
    slurm.stop_controller()
    solved = solve(tmp_path, "--json", "--timeout", "6", ssh=ssh)
    (refusal,) = json.loads(solved.stdout)["refusals"]
    assert solved.returncode == 1 and refusal["is_unreachable"]
    assert refusal["why"] == "sinfo did not answer in time"


def test_pbs_here(tmp_path: Path, pbs: PbsBed) -> None:
    """Without `ssh` the scheduler is this machine's own."""
    (tmp_path / "dispatcher.yaml").write_text("hosts: {hpc2: {type: pbs, chips: {h100: 8}}}")
    sleeping = tmp_path / "sleeping"
    sleeping.write_text("sleep 600\n")

    def submit(number: int) -> str:
        return pbs.run("qsub", "-l", f"select=1:ncpus={number}:ngpus={number}", str(sleeping)).strip()

    def chosen(*words: str) -> str:
        return solve(tmp_path, "--chip", "h100", *words, path=pbs.env["PATH"]).stdout.splitlines()[0]

    assert chosen("-n", "4") == "hpc2: queue workq: 8 of 8 h100 free"
    for number in (3, 2):
        pbs.wait_for(submit(number), "R")
    pbs.wait_for(submit(4), "Q")
    assert chosen("-n", "4") == "hpc2 (queued): queue workq: no room now (3 of 8 h100 free, 1 job waiting)"
    assert chosen("-n", "3", "--nodes", "2") == "hpc2: queue workq: 3 of 8 h100 free"
    assert chosen("-n", "9") == "no host can run it (9 h100)"
    pbs.stop_queue()
    stopped = solve(tmp_path, path=pbs.env["PATH"])
    assert "queue workq: it starts no jobs (started = False)" in stopped.stdout and stopped.returncode == 1
    with pbs.without_server():
        away = solve(tmp_path, "--json", path=pbs.env["PATH"])
    (refusal,) = json.loads(away.stdout)["refusals"]
    assert refusal["is_unreachable"] and refusal["why"].startswith("pbsnodes -a failed with exit status")


def test_json(tmp_path: Path) -> None:
    (tmp_path / "dispatcher.yaml").write_text(
        "hosts: {t: {type: tpu, cluster: gcp, zone: z, accelerator_type: v4-8},"
        " ws1: {ssh: nobody.invalid, chips: {h100: 1}}}\nclusters: {gcp: {}}\n"
    )
    solved = solve(tmp_path, "--chip", "h100", "--mem", "64G", "--exclude-cluster", "gcp", "--json")
    answer: dict[str, Any] = json.loads(solved.stdout)
    assert answer["request"] == {
        "chip": "h100",
        "min_chips": 1,
        "cpus": None,
        "memory_mib": 65536,
        "nodes": 1,
        "preferred_clusters": [],
        "excluded_clusters": ["gcp"],
        "slurm": None,
        "pbs": None,
    }
    assert answer["choices"] == []
    assert [(each["host"], each["is_unreachable"]) for each in answer["refusals"]] == [("t", False), ("ws1", True)]
    assert solved.returncode == 1


@pytest.mark.parametrize(
    ("text", "words", "code", "expected"),
    [
        ("", [], 2, "dispatcher.yaml, or use --hosts FILE"),
        (
            "hosts: {a: {ssh: nobody.invalid}}",
            ["--cluster", "b"],
            2,
            "--cluster b: there is no such cluster (known: a)",
        ),
        (
            "hosts: {a: {ssh: nobody.invalid}}",
            ["--exclude-cluster", "b"],
            2,
            "--exclude-cluster b: there is no such cluster",
        ),
        ("hosts: {a: {ssh: nobody.invalid}}", ["--mem", "64"], 2, 'expected an amount with its unit, such as "64G"'),
        ("hosts: {a: {}}", [], 1, "hosts.a.ssh: is missing"),
        ("", ["--hosts", "nowhere.yaml"], 1, "nowhere.yaml: there is no such file"),
    ],
)
def test_what_cannot_be_solved(tmp_path: Path, text: str, words: Sequence[str], code: int, expected: str) -> None:
    (tmp_path / "dispatcher.yaml").write_text(text)
    solved = solve(tmp_path, *words)
    assert (solved.returncode, expected in solved.stderr) == (code, True), solved.stderr


def test_keys_that_mean_nothing_are_noted(tmp_path: Path) -> None:
    (tmp_path / "dispatcher.yaml").touch()
    (tmp_path / "lab.yaml").write_text(
        "clusters: {c: {hf_token: hf_42}}\nhosts: {t: {type: tpu, cluster: c, zone: z, accelerator_type: v4-8}}\n"
    )
    solved = solve(tmp_path, "--hosts", str(tmp_path / "lab.yaml"))
    assert solved.stderr.startswith("note: clusters.c.hf_token: it is not passed on") and "hf_42" not in solved.stderr
