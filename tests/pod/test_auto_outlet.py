"""`--outlet auto`: each job goes where the hardware that it asks for is free, over real sshd hosts and a real SLURM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from beds.slurm import SlurmBed
from beds.sshd import SshBed, SshHost
from fleet import Fleet, shell, wait_until
from outlets.remote.nvidia_smi import SCRIPT, gpus

CONFIG = """
code: none
hosts:
  tpu1: {type: tpu, zone: z, accelerator_type: v4-8}
  ws1: {ssh: ws1, chips: {h100: 2}}
  ws2: {ssh: ws2, chips: {h100: 4}}
  login1: {type: slurm, ssh: login1, partitions: [low], cluster: hpc}
clusters: {hpc: {work: WORK}}
priority: [ws1, ws2, login1]
"""
AUTO = ("--outlet", "auto", "--slots", "8")


def give_gpus(host: SshHost, count: int, apps: str = "") -> None:
    host.install("nvidia-smi", SCRIPT)
    (host.bin / "gpus").write_text(gpus(count))
    (host.bin / "apps").write_text(apps)


@pytest.fixture
def slurm(start_slurm: Callable[..., SlurmBed]) -> SlurmBed:
    return start_slurm(nodes=2, gpus=4)


@pytest.fixture
def ssh(fleet: Fleet, slurm: SlurmBed, start_ssh: Callable[..., SshBed]) -> SshBed:
    """Two hosts, of which one has a GPU that somebody uses, and a login node of SLURM."""
    hosts = start_ssh(["ws1", "ws2", "login1"], shared=[slurm.directory], env=slurm.env)
    give_gpus(hosts["ws1"], 2, "GPU-0, 1, 20000\n")
    give_gpus(hosts["ws2"], 4)
    fleet.write_config(CONFIG.replace("WORK", str(slurm.directory / "work")))
    return hosts


def ask(job: str, number: int, script: str = "true", **words: object) -> dict[str, object]:
    return shell(job, script, resources={"chip": "h100", "min_chips": number}, **words)


def run_all(fleet: Fleet, ssh: SshBed, *words: str) -> dict[str, str | None]:
    """Where each job has run, when all are done."""
    said = fleet.run_all(*AUTO, *words, poll="1", DISPATCHER_SSH_CONFIG=str(ssh.config)).said
    assert set(fleet.states().values()) == {"done"}, said
    return {job: record.outlet for job, record in fleet.records().items()}


def test_each_job_goes_where_its_hardware_is_free(fleet: Fleet, ssh: SshBed) -> None:
    """What was given to a job is not free for the next one."""
    asked = {"two": 2, "one": 1, "three": 3, "two_more": 2}
    long = [ask(job, number, "sleep 600") for job, number in asked.items()]
    fleet.write_manifest([*long, shell("cpu", "true", gpus=0)])
    pod = fleet.start("pod", *AUTO, "--until-empty", poll="1", DISPATCHER_SSH_CONFIG=str(ssh.config))
    for job in asked:
        fleet.wait_for(job, "running")
    outlets = {job: record.outlet for job, record in fleet.records().items()}
    fleet.run("cancel", *asked)
    pod.end()
    assert outlets == {"two": "ws2", "one": "ws1", "three": "login1", "two_more": "ws2", "cpu": "ws1"}


def test_an_entry_that_names_outlets_has_them_in_its_order(fleet: Fleet, ssh: SshBed) -> None:
    fleet.write_manifest(
        [
            ask("slurm_first", 1, outlet=["login1", "ws2"]),
            ask("busy_first", 2, outlet=["ws1", "ws2"]),
        ]
    )
    assert run_all(fleet, ssh) == {"slurm_first": "login1", "busy_first": "ws2"}


def test_what_nobody_can_start_waits_in_the_queue_of_a_cluster(fleet: Fleet, ssh: SshBed, slurm: SlurmBed) -> None:
    running = [slurm.submit("#!/bin/sh\nsleep 600\n", "-w", node, "--gres=gpu:2") for node in ("n1", "n2")]
    for job in running:
        slurm.wait_for(job, "RUNNING")
    give_gpus(ssh["ws2"], 4, "GPU-0, 1, 20000\n")
    fleet.write_manifest([ask("four", 4)])
    pod = fleet.start("pod", *AUTO, "--until-empty", poll="1", DISPATCHER_SSH_CONFIG=str(ssh.config))
    fleet.wait_for("four", "submitted")
    slurm.run("scancel", running[0])
    assert fleet.wait_for("four", "done").outlet == "login1"
    pod.end()


def test_a_job_waits_while_no_host_has_room_and_none_has_a_queue(
    fleet: Fleet, start_ssh: Callable[..., SshBed]
) -> None:
    ssh = start_ssh(["ws1"])
    give_gpus(ssh["ws1"], 2, "GPU-0, 1, 20000\n")
    fleet.write_config("code: none\nhosts: {ws1: {ssh: ws1, chips: {h100: 2}}}\n")
    fleet.write_manifest([ask("two", 2), ask("one", 1)])
    pod = fleet.start("pod", *AUTO, poll="1", DISPATCHER_SSH_CONFIG=str(ssh.config))
    fleet.wait_for("one", "done")
    assert fleet.record("two").attempt == 0, pod.said
    why = "1 of 2 h100 free, 2 needed: GPU 0: 20000 MiB used by pid 1"
    wait_until(lambda: why in fleet.run("show", "two"), "the reason is shown", timeout_s=30)
    assert why in fleet.run("status")


def test_a_host_that_cannot_be_reached_holds_up_nobody(fleet: Fleet, ssh: SshBed) -> None:
    fleet.write_manifest([ask("one", 1)])
    with ssh["ws1"].away():
        assert run_all(fleet, ssh) == {"one": "ws2"}


def test_without_hosts_that_can_run_jobs(fleet: Fleet, tmp_path: Path) -> None:
    fleet.write_config("hosts: {}\n")
    fleet.write_manifest([ask("one", 1)])
    tried = fleet.try_("--pod", "pod", *AUTO)
    assert (tried.returncode, "--outlet auto: no hosts are configured" in tried.stderr) == (2, True)
