"""The scheduler against a real SLURM: what it submits runs, and what it reads is what has happened."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.bed import wait_for
from beds.slurm import ORDINARY, SlurmBed
from slurm_jobs import Jobs

from dispatcher.errors import OutletError
from dispatcher.outlets.base import CANCELLED, PREEMPTED, TIME_LIMIT, Key, Request
from dispatcher.outlets.batch.scheduler import Phase

Start = Callable[..., SlurmBed]
NAME = "d-0123456789ab-0123456789abcdef"
# Waits for TERM and tells that it came; ends within the grace period.
PATIENT = "trap 'echo TERM >told; exit 143' TERM; echo >begun; while :; do sleep 0.05; done"
# A job that its node cannot be freed of but by KILL.
STUBBORN = "trap '' TERM; echo >begun; while :; do sleep 0.05; done"


@pytest.fixture
def root(slurm: SlurmBed) -> Path:
    """Where nodes and users see it, under a name that shells and SLURM's file patterns give a meaning."""
    return made(slurm)


def made(bed: SlurmBed, name: str = "a'; echo foo %j") -> Path:
    root = bed.directory / "work" / name
    root.mkdir(mode=0o777)
    return root


def begun(jobs: Jobs, job: str = "j0") -> None:
    wait_for((jobs.directory(job) / "begun").exists, lambda: f"{job} begins: {jobs.state(job)} {jobs.log(job)}")


@pytest.mark.parametrize("user", [None, ORDINARY])
def test_exit_statuses_of_an_array(slurm: SlurmBed, root: Path, user: str | None) -> None:
    jobs = Jobs(slurm, root, user=user)
    handle = jobs.submit(NAME, "exit 0", "exit 3", "kill -9 $$", "echo on the node >&2; exit 127")
    found = {job: jobs.wait(Phase.ENDED, job) for job in ("j0", "j1", "j2", "j3")}
    assert [state.exit_code for state in found.values()] == [0, 3, 137, 127]
    assert {state.reason for state in found.values()} == {""}
    assert [state.handle for state in found.values()] == [f"{handle}_{index}" for index in range(4)]
    assert {state.host for state in found.values()} <= {"n1", "n2"}
    # As seen by scontrol, the details agree.
    assert {key: state.exit_code for key, state in jobs.details().items()} == {
        Key(job, 1): state.exit_code for job, state in found.items()
    }
    assert jobs.log("j3") == "on the node\n"


def test_a_single_job(slurm: SlurmBed, root: Path) -> None:
    jobs = Jobs(slurm, root)
    handle = jobs.submit(
        NAME, 'test "$DISPATCHER_ATTEMPT_DIR" = "$PWD" || exit 4; ps -o pgid= -p $$ >pgid; echo $$ >pid'
    )
    state = jobs.wait(Phase.ENDED)
    assert (state.exit_code, state.handle) == (0, handle)
    assert (jobs.directory("j0") / "pgid").read_text().strip() == (jobs.directory("j0") / "pid").read_text().strip()


def test_names_of_others_and_ids_used_again(slurm: SlurmBed, root: Path) -> None:
    """Another job under the id that is remembered, and one whose name is made to look like an answer."""
    jobs = Jobs(slurm, root)
    jobs.submit(NAME, "exit 3")
    jobs.wait(Phase.ENDED)
    other = slurm.submit("#!/bin/sh\nsleep 100", f"--job-name=x\n1 {NAME} RUNNING", user=ORDINARY)
    wait_for(lambda: slurm.run("squeue", "-h", "-t", "R", "-o", "%i").stdout.strip() == other, "the other job runs")
    attempt = jobs.attempts[Key("j0", 1)]
    jobs.attempts[Key("j0", 1)] = type(attempt)(
        key=attempt.key, name="d-0123456789ab-other", index=0, directory=attempt.directory, handle=other
    )
    assert jobs.states() == {}
    assert jobs.details() == {}
    jobs.cancel("j0", force=True)
    assert slurm.run("squeue", "-h", "-t", "R", "-o", "%i").stdout.strip() == other


def test_cancelled_by_the_dispatcher(slurm: SlurmBed, root: Path) -> None:
    """One task that runs, one that waits; the others stay. KillWait is 1 s here, and the grace period counts."""
    jobs = Jobs(slurm, root)
    slow = "trap 'sleep 2.5; echo TERM >told; exit 143' TERM; echo >begun; while :; do sleep 0.05; done"
    jobs.submit(NAME, slow, PATIENT, PATIENT, request=Request(gpus=0, cpus=3))
    begun(jobs, "j0")
    begun(jobs, "j1")
    jobs.cancel("j0", "j2")
    assert jobs.wait(Phase.ENDED, "j0").exit_code == 143
    assert (jobs.directory("j0") / "told").exists()
    state = jobs.wait(Phase.ENDED, "j2")
    assert (state.reason, state.exit_code) == (CANCELLED, None)
    running = jobs.state("j1")
    assert running is not None and running.phase is Phase.RUNNING
    assert not (jobs.directory("j1") / "told").exists()
    # What is gone is no error.
    jobs.cancel("j0", "j2")


def test_killed_by_the_dispatcher(slurm: SlurmBed, root: Path) -> None:
    jobs = Jobs(slurm, root)
    jobs.submit(NAME, STUBBORN)
    begun(jobs)
    jobs.cancel("j0")
    jobs.cancel("j0", force=True)
    assert jobs.wait(Phase.ENDED).exit_code == 137


def test_cancelled_by_a_person(slurm: SlurmBed, root: Path) -> None:
    jobs = Jobs(slurm, root)
    handle = jobs.submit(NAME, PATIENT)
    begun(jobs)
    slurm.run("scancel", handle)
    state = jobs.wait(Phase.ENDED)
    assert state.reason == CANCELLED
    assert (jobs.directory("j0") / "told").exists()


def test_held(slurm: SlurmBed, root: Path) -> None:
    jobs = Jobs(slurm, root, sbatch_args=("--hold",))
    jobs.submit(NAME, "exit 0")
    assert jobs.wait(Phase.PENDING).why == "JobHeldUser (held: scontrol release)"


@pytest.mark.slow
def test_time_limits(slurm: SlurmBed, root: Path) -> None:
    """The batch script is told before the end and passes it on as the time limit; SLURM ends what ignores it."""
    jobs = Jobs(slurm, root, grace_s=5)
    patient = jobs.submit(NAME, PATIENT, time_limit_s=600)
    begun(jobs)
    assert slurm.show(patient)["TimeLimit"] == "00:12:00"
    others = Jobs(slurm, made(slurm, "other"))
    stubborn = others.submit(NAME.replace("0", "f"), STUBBORN)
    begun(others)
    # SLURM counts in minutes, and looks every 30 s.
    slurm.run("scontrol", "update", f"JobId={patient}", "TimeLimit=1")
    slurm.run("scontrol", "update", f"JobId={stubborn}", "EndTime=now+1")
    assert others.wait(Phase.ENDED, limit_s=150).reason == TIME_LIMIT
    state = jobs.wait(Phase.ENDED, limit_s=100)
    assert (jobs.directory("j0") / "stop").read_text() == "time limit\n"
    assert (jobs.directory("j0") / "told").exists()
    assert state.exit_code == 143


@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL"])
def test_preempted(start_slurm: Start, mode: str) -> None:
    """Whatever the partition's mode, SLURM does not start it again."""
    slurm = start_slurm(preempt_mode=mode)
    jobs = Jobs(slurm, made(slurm), partitions=())
    jobs.submit(NAME, PATIENT, request=Request(gpus=0, cpus=4, nodes=2))
    begun(jobs)
    slurm.submit("#!/bin/sh\nsleep 1000", "--partition=high", "--nodes=2", "--exclusive")
    state = jobs.wait(Phase.ENDED)
    assert (state.reason, state.was_preempted) == (PREEMPTED, True)
    assert (jobs.directory("j0") / "told").exists()
    assert not (jobs.directory("j0") / "stop").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", [PATIENT, STUBBORN])
def test_preempted_with_grace(start_slurm: Start, command: str) -> None:
    """While the grace period runs SLURM tells the batch script nothing, but squeue shows it."""
    slurm = start_slurm(grace_s=15)
    jobs = Jobs(slurm, made(slurm))
    jobs.submit(NAME, command, request=Request(gpus=0, cpus=4, nodes=2))
    begun(jobs)
    slurm.submit("#!/bin/sh\nsleep 1000", "--partition=high", "--nodes=2", "--exclusive")
    wait_for(lambda: (jobs.state() or pytest.fail("gone")).was_preempted, "it is to be preempted")
    state = jobs.wait(Phase.RUNNING)
    assert state.why == "preempted: its grace period runs"
    jobs.cancel("j0")
    state = jobs.wait(Phase.ENDED)
    assert (state.reason, state.was_preempted) == (PREEMPTED, True)
    assert (jobs.directory("j0") / "told").exists() == (command is PATIENT)


def test_requeued_by_an_administrator(start_slurm: Start) -> None:
    """--no-requeue forbids it; where it happens all the same the script runs nothing."""
    slurm = start_slurm()
    jobs = Jobs(slurm, made(slurm))
    handle = jobs.submit(NAME, "echo once >>times; " + PATIENT)
    begun(jobs)
    assert slurm.run("scontrol", "requeue", handle, check=False).returncode != 0
    slurm.run("scontrol", "update", f"JobId={handle}", "Requeue=1")
    slurm.run("scontrol", "requeue", handle)
    jobs.wait(Phase.PENDING)
    slurm.run("scontrol", "update", f"JobId={handle}", "StartTime=now")
    state = jobs.wait(Phase.ENDED, limit_s=60)
    assert (state.exit_code, state.reason) == (None, PREEMPTED)
    assert "started again by SLURM 1 times" in state.why
    assert (jobs.directory("j0") / "times").read_text() == "once\n"
    wait_for(
        lambda: "started again by SLURM (restart 1)" in jobs.log("j0"), "the second run says why it ends", limit_s=90
    )


@pytest.mark.slow
def test_a_node_that_dies(start_slurm: Start) -> None:
    slurm = start_slurm(nodes=1, slurmd_timeout_s=3)
    jobs = Jobs(slurm, made(slurm))
    jobs.submit(NAME, PATIENT)
    begun(jobs)
    slurm.stop_node("n1")
    state = jobs.wait(Phase.ENDED, limit_s=60)
    assert (state.may_still_run, state.exit_code, state.reason) == (True, None, "")
    assert state.why.startswith("NODE_FAIL")


def test_what_no_node_has(slurm: SlurmBed, root: Path) -> None:
    """Accepted, and never run: more time than the partition allows."""
    jobs = Jobs(slurm, root)
    jobs.submit(NAME, "exit 0", time_limit_s=5 * 86400)
    assert "than the partition allows)" in jobs.wait(Phase.PENDING).why
    jobs.cancel("j0")
    assert jobs.wait(Phase.ENDED).exit_code is None


# The answers are read in test_recorded.py, and what follows from them is in test_how_jobs_end.py.
@pytest.mark.long
@pytest.mark.parametrize("accounting", [True, False])
def test_purged_jobs(start_slurm: Start, accounting: bool) -> None:
    """The controller forgets; accounting does not, where there is one."""
    slurm = start_slurm(min_job_age_s=2, accounting=accounting)
    jobs = Jobs(slurm, made(slurm))
    jobs.submit(NAME, "exit 0", "exit 3", PATIENT)
    begun(jobs, "j2")
    jobs.cancel("j2", force=True)
    jobs.wait(Phase.ENDED, "j2")
    wait_for(lambda: not jobs.states(), "the jobs are to be forgotten", limit_s=90)
    # Accounting calls CANCELLED what the controller called FAILED, and has no status of it.
    expected = {Key("j0", 1): 0, Key("j1", 1): 3, Key("j2", 1): None} if accounting else {}
    wait_for(
        lambda: {key: state.exit_code for key, state in jobs.details().items()} == expected,
        lambda: f"accounting tells: {jobs.details()}",
    )


def test_a_failed_query_is_no_absence(slurm: SlurmBed, root: Path) -> None:
    jobs = Jobs(slurm, root)
    jobs.submit(NAME, PATIENT)
    with slurm.without_controller(), pytest.raises(OutletError, match=r"squeue: .*exit status 1"):
        jobs.states()
    assert jobs.wait(Phase.RUNNING).handle


def test_several_nodes(slurm: SlurmBed, root: Path) -> None:
    """srun starts one task on each, and one that fails ends all. Its status is the highest of all tasks."""
    jobs = Jobs(slurm, root, slot_type="cuda")
    request = Request(gpus=4, nodes=2, cpus=2)
    words = shlex.join(jobs.scheduler.launcher(request))
    told = 'echo "$SLURM_PROCID $CUDA_VISIBLE_DEVICES" >>nodes; [ $SLURM_PROCID = 0 ] && exec sleep 600'
    fails = f"{told}; while ! grep -q ^0 nodes; do sleep 0.05; done; exit 9"
    jobs.submit(NAME, f"{words} bash -c '{fails}' 2>errors", request=request)
    assert jobs.wait(Phase.ENDED).exit_code == 143
    assert "Exited with exit code 9" in (jobs.directory("j0") / "errors").read_text()
    lines = sorted((jobs.directory("j0") / "nodes").read_text().splitlines())
    assert [line.split()[:2] for line in lines] == [["0", "0,1"], ["1", "0,1"]]


def test_several_attempts_in_one_job(slurm: SlurmBed, root: Path) -> None:
    """One after the other; what has not begun when the job is told to end goes back."""
    jobs = Jobs(slurm, root)
    jobs.submit(NAME, "echo >begun", PATIENT, "echo >begun", groups=[(0, 1, 2)])
    begun(jobs, "j1")
    assert (jobs.directory("j0") / "begun").exists()
    jobs.cancel("j1")
    jobs.wait(Phase.ENDED, "j1")
    assert not (jobs.directory("j2") / "begun").exists()
    assert (jobs.directory("j2") / "taken").exists()
    told = json.loads((jobs.directory("j2") / "exit.json").read_text())
    assert (told["exit_code"], told["reason"]) == (143, "preempted")
    assert not (jobs.directory("j1") / "exit.json").exists()


@pytest.mark.parametrize(
    ("host", "request_", "why"),
    [
        ({"partitions": ("nowhere",)}, Request(gpus=0), "nvalid partition"),
        ({"slot_type": "cuda", "gpu_type": "a100"}, Request(gpus=1), "node configuration is not available"),
        ({"sbatch_args": ("--foo",)}, Request(gpus=0), "--foo"),
    ],
)
def test_refused(slurm: SlurmBed, root: Path, host: dict, request_: Request, why: str) -> None:
    from dispatcher.hosts.types import Partition

    if "partitions" in host:
        host = {"partitions": tuple(Partition(name) for name in host["partitions"])}
    jobs = Jobs(slurm, root, **host)
    with pytest.raises(AssertionError, match=rf"Refused\(why='sbatch: .*{why}.*is_transient=False"):
        jobs.submit(NAME, "exit 0", request=request_)


def test_limits_of_a_site(start_slurm: Start) -> None:
    slurm = start_slurm(max_array_size=50)
    jobs = Jobs(slurm, made(slurm))
    limits = jobs.scheduler.limits([jobs.carry_out(one) for one in jobs.scheduler.limits_query()])
    assert (limits.array_size, limits.in_flight) == (50, None)
    jobs.submit(NAME, *["exit 0"] * 50)
    with pytest.raises(AssertionError, match=r"Refused\(why='sbatch: .*Invalid job array"):
        Jobs(slurm, made(slurm, "other")).submit(NAME, *["exit 0"] * 51)
