"""Packs, and jobs that wait too long in a queue: a pod with a real SLURM cluster and slots of its own."""

from __future__ import annotations

import pytest
from beds.slurm import SlurmBed
from fleet import Dispatcher, Fleet, shell, wait_until

CONFIG = """
hosts:
  hpc: {type: slurm}
methods:
  small: {pack: 3}
"""


@pytest.fixture
def slurm_fleet(fleet: Fleet, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    fleet.write_config(CONFIG)
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    return fleet


def start(fleet: Fleet, *words: str) -> Dispatcher:
    return fleet.start("pod", "--until-empty", *words, "--outlet", "hpc:10", poll="0.5")


def test_small_jobs_share_a_submission(slurm_fleet: Fleet) -> None:
    script = "echo {} $SLURM_JOB_ID $SLURM_ARRAY_TASK_ID >>order; exit {}"
    jobs = [shell(f"j{n}", script.format(f"j{n}", 3 * (n == 1)), method="small", gpus=0) for n in range(5)]
    slurm_fleet.write_manifest(jobs)
    pod = start(slurm_fleet)
    assert pod.end() == 1, pod.said
    assert slurm_fleet.states() == {"j0": "done", "j1": "failed", "j2": "done", "j3": "done", "j4": "done"}
    assert slurm_fleet.record("j1").reason == "exit 3"
    by_submission: dict[str, list[str]] = {}
    for line in (slurm_fleet.root / "order").read_text().splitlines():
        job, submission = line.split(" ", 1)
        by_submission.setdefault(submission, []).append(job)
    assert sorted(by_submission.values()) == [["j0", "j1", "j2"], ["j3", "j4"]]


def test_what_slurm_does_not_start_in_time_runs_here(slurm_fleet: Fleet, slurm: SlurmBed) -> None:
    slurm.run("scontrol", "update", "PartitionName=low", "State=DOWN")
    slurm_fleet.write_manifest(
        [
            # Until the cluster is known to be there.
            shell("busy", "until [ -e go ]; do sleep 0.02; done", outlet="local", priority=1, gpus=0),
            shell("a", "true", outlet=["hpc", "local"], queue_limit="3s", gpus=0),
        ]
    )
    pod = start(slurm_fleet, "--outlet", "local:1")
    slurm_fleet.wait_for("a", "submitted")
    (slurm_fleet.root / "go").touch()
    assert pod.end() == 0, pod.said
    record = slurm_fleet.record("a")
    assert (record.state, record.outlet, record.attempt) == ("done", "local", 2)
    assert "waits too long in the queue of hpc: taken back" in pod.said
    in_queue = ("squeue", "--noheader", "--states=PENDING,RUNNING")
    wait_until(lambda: not slurm.run(*in_queue).stdout, "nothing is left in the queue")
