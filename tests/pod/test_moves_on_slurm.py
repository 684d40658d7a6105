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
    slurm_fleet.write_manifest([shell("a", "true", outlet=["hpc", "local"], queue_limit="3s", gpus=0)])
    pod = start(slurm_fleet, "--outlet", "local:1")
    assert pod.end() == 0, pod.said
    record = slurm_fleet.record("a")
    assert (record.state, record.outlet, record.attempt) == ("done", "local", 2)
    assert "waits too long in the queue of hpc: withdrawn" in pod.said
    in_queue = ("squeue", "--noheader", "--states=PENDING,RUNNING")
    wait_until(lambda: not slurm.run(*in_queue).stdout, "nothing is left in the queue")


def test_a_member_that_cannot_be_claimed_keeps_no_slot(slurm_fleet: Fleet) -> None:
    """There is one submission at a time, so the slot must be free when the others of its pack have ended."""
    in_the_way = slurm_fleet.layout.job_dir("j1")
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    slurm_fleet.write_manifest([shell(f"j{n}", "true", method="small", gpus=0) for n in range(5)])
    pod = slurm_fleet.start("pod", "--until-empty", "--outlet", "hpc:1", poll="0.5")
    for job in ("j0", "j2", "j3", "j4"):
        slurm_fleet.wait_for(job, "done")
    assert slurm_fleet.record("j1").state == "queued"
    in_the_way.unlink()
    assert pod.end() == 0, pod.said
    assert slurm_fleet.states()["j1"] == "done"


def test_a_dispatcher_that_is_restarted_finds_a_pack_again(slurm_fleet: Fleet) -> None:
    gated = "echo begun >>begun; until [ -e go ]; do sleep 0.02; done"
    slurm_fleet.write_manifest([shell(f"j{n}", gated, method="small", gpus=0) for n in range(3)])
    first = start(slurm_fleet)
    slurm_fleet.wait_for("j0", "running")
    wait_until((slurm_fleet.root / "begun").exists, "the first of the pack has begun")
    first.kill()
    again = start(slurm_fleet)
    for number in range(3):
        again.says(f"found j{number} (attempt 1) again")
    (slurm_fleet.root / "go").touch()
    assert again.end() == 0, again.said
    assert {job: (record.state, record.attempt) for job, record in slurm_fleet.records().items()} == {
        f"j{number}": ("done", 1) for number in range(3)
    }
    assert (slurm_fleet.root / "begun").read_text() == "begun\n" * 3


def test_any_pod_with_the_hosts_configured_recovers_what_runs_there(slurm_fleet: Fleet) -> None:
    gated = "echo begun >>begun; until [ -e go ]; do sleep 0.02; done"
    slurm_fleet.write_manifest([shell("there", gated, outlet="hpc", gpus=0)])
    first = start(slurm_fleet)
    slurm_fleet.wait_for("there", "submitted", "running")
    wait_until((slurm_fleet.root / "begun").exists, "it has begun")
    first.kill()
    second = slurm_fleet.start("second", "--slots", "1", poll="0.5").ready()
    (slurm_fleet.root / "go").touch()
    record = slurm_fleet.wait_for("there", "done")
    assert (record.pod, record.outlet, record.attempt) == ("pod", "hpc", 1)
    second.says("of pod pod, which is gone")
    assert second.stop() == 0


def test_what_prefers_a_cluster_that_does_not_answer_goes_on_here(slurm_fleet: Fleet, slurm: SlurmBed) -> None:
    slurm_fleet.write_manifest(
        [shell("a", "true", outlet=["hpc", "local"], gpus=0), shell("b", "true", outlet="local", gpus=0)]
    )
    with slurm.hanging_controller():
        pod = start(slurm_fleet, "--outlet", "local:1")
        # What does not prefer it is not held up.
        assert pod.end() == 0, pod.said
    assert slurm_fleet.claimed() == ["b", "a"]
    assert slurm_fleet.record("a").outlet == "local"
