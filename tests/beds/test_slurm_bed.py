"""The SLURM bed does what tests of the outlet take for granted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ports import Ports

from .bed import wait_for
from .fixtures import skip_without
from .slurm import ORDINARY, SlurmBed

SLEEP = "#!/bin/sh\nexec sleep 300\n"
TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Prints where its bed is and what runs there, then waits to be killed.
HOLD = """
import signal
from beds.slurm import SlurmBed
slurm = SlurmBed()
job = slurm.submit("#!/bin/sh\\nsetsid sleep 300 &\\nexec sleep 300")
slurm.wait_for(job, "RUNNING")
print(slurm.directory, *slurm.processes(), flush=True)
signal.pause()
"""


def output_of(slurm: SlurmBed, job: str) -> str:
    """What it has printed until now."""
    path = slurm.directory / "work" / f"slurm-{job}.out"
    return path.read_text() if path.exists() else ""


def test_an_ordinary_user_submits_a_job_that_asks_for_gpus(slurm: SlurmBed) -> None:
    script = "#!/bin/sh\nid -un\necho $CUDA_VISIBLE_DEVICES\nexit 3\n"
    job = slurm.submit(script, "--gres=gpu:h100:2", user=ORDINARY)
    assert slurm.wait_for(job, "FAILED")["ExitCode"] == "3:0"
    assert output_of(slurm, job).split() == [ORDINARY, "0,1"]


@pytest.mark.parametrize(("mode", "state", "restarts"), [("REQUEUE", "PENDING", "1"), ("CANCEL", "PREEMPTED", "0")])
def test_a_job_of_high_preempts_one_of_low(start_slurm, mode: str, state: str, restarts: str) -> None:
    slurm = start_slurm(nodes=1, preempt_mode=mode)
    low = slurm.submit(SLEEP, "--exclusive")
    slurm.wait_for(low, "RUNNING")
    high = slurm.submit(SLEEP, "--exclusive", "--partition=high")
    assert slurm.wait_for(low, state)["Restarts"] == restarts
    slurm.wait_for(high, "RUNNING")


def test_the_grace_time_passes_between_term_and_kill(start_slurm) -> None:
    slurm = start_slurm(nodes=1, preempt_mode="CANCEL", grace_s=10)
    step = 'trap "echo asked; exit 0" TERM; echo up; while :; do sleep 0.1; done'
    low = slurm.submit(f"#!/bin/sh\nsrun sh -c '{step}'", "--exclusive")
    wait_for(lambda: "up" in output_of(slurm, low), lambda: f"the step runs: {slurm.show(low)}")
    slurm.submit(SLEEP, "--exclusive", "--partition=high")
    slurm.wait_for(low, "COMPLETED")
    assert "asked" in output_of(slurm, low)


def test_the_controller_goes_and_comes_back_while_jobs_run(slurm: SlurmBed) -> None:
    job = slurm.submit(SLEEP)
    slurm.wait_for(job, "RUNNING")
    with slurm.without_controller():
        assert slurm.run("timeout", "1", "squeue", check=False).returncode != 0
    assert slurm.show(job)["JobState"] == "RUNNING"
    slurm.restart_controller(signal.SIGKILL)
    assert slurm.show(job)["JobState"] == "RUNNING"


def test_a_controller_that_hangs_answers_later(slurm: SlurmBed) -> None:
    with slurm.hanging_controller():
        assert slurm.run("timeout", "1", "squeue", check=False).returncode == 124
    assert slurm.run("squeue", "-h").stdout == ""


def test_an_ended_job_is_forgotten_after_its_minimum_age(start_slurm) -> None:
    slurm = start_slurm(min_job_age_s=2)
    job = slurm.submit("#!/bin/sh\n")
    slurm.wait_for(job, "COMPLETED")
    # The controller looks for such jobs every 30 s.
    wait_for(lambda: not slurm.show(job), "the job is purged", every_s=0.2)


def test_accounting_remembers(start_slurm) -> None:
    slurm = start_slurm(accounting=True)
    job = slurm.submit("#!/bin/sh\nexit 3")

    def recorded() -> str:
        return slurm.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "State,ExitCode").stdout.strip()

    wait_for(lambda: recorded() == "FAILED|3:0", recorded, every_s=0.2)


def test_without_accounting_sacct_fails(slurm: SlurmBed) -> None:
    assert slurm.run("sacct", check=False).returncode != 0


def test_a_node_without_slurmd_keeps_its_processes(start_slurm) -> None:
    slurm = start_slurm(nodes=1, slurmd_timeout_s=3)
    job = slurm.submit(SLEEP, "--no-requeue")
    slurm.wait_for(job, "RUNNING")
    wait_for(lambda: slurm.processes("sleep"), "the job's process")
    slurm.stop_node("n1")
    slurm.wait_for(job, "NODE_FAIL")
    assert slurm.processes("sleep")


def test_a_power_cut_ends_what_ran_on_that_node_only(slurm: SlurmBed) -> None:
    jobs = [slurm.submit(SLEEP, f"--nodelist={name}") for name in slurm.node_names]
    for job in jobs:
        slurm.wait_for(job, "RUNNING")
    wait_for(lambda: len(slurm.processes("sleep")) == 2, "both run")
    slurm.power_cut("n1")
    assert len(slurm.processes("sleep")) == 1
    assert slurm.show(jobs[1])["JobState"] == "RUNNING"


def test_arrays_end_at_the_configured_index(start_slurm) -> None:
    slurm = start_slurm(max_array_size=11)
    assert slurm.submit("#!/bin/sh\n", "--array=0-10")
    refused = slurm.run("sbatch", "--array=0-11", input="#!/bin/sh\n", check=False)
    assert refused.returncode == 1
    assert "Invalid job array specification" in refused.stderr


def test_several_beds_are_up_at_once(start_slurm) -> None:
    a, b = start_slurm(nodes=1), start_slurm(nodes=1)
    job = a.submit(SLEEP)
    a.wait_for(job, "RUNNING")
    assert b.run("squeue", "-h").stdout == ""


def test_nothing_is_left_of_a_bed(tmp_path: Path) -> None:
    skip_without("slurm")
    with SlurmBed() as slurm:
        job = slurm.submit("#!/bin/sh\nsetsid sh -c 'trap \"\" TERM; sleep 300' &\nexec sleep 300")
        slurm.wait_for(job, "RUNNING")
        running = slurm.processes()
        assert running
    assert not [pid for pid in running if os.path.exists(f"/proc/{pid}")]
    assert not slurm.directory.exists()


def test_no_process_is_left_of_a_killed_test_run() -> None:
    skip_without("slurm")
    run = subprocess.Popen(
        [sys.executable, "-c", HOLD], env={**os.environ, "PYTHONPATH": TESTS}, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    directory, *pids = run.stdout.readline().split()
    run.kill()
    run.wait()
    run.stdout.close()
    try:
        assert len(pids) > 5
        wait_for(lambda: not [pid for pid in pids if os.path.exists(f"/proc/{pid}")], "all ended")
    finally:
        subprocess.run(["rm", "-r", "--", directory], check=True)


def test_no_port_is_given_twice() -> None:
    first, second = Ports(), Ports()
    try:
        ports = [owner.take() for owner in (first, second) for _ in range(200)]
        assert len(set(ports)) == 400
    finally:
        first.close()
        second.close()
