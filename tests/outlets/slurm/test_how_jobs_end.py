"""What a dispatcher records of everything that can become of a job in SLURM: state, reason, and what is next."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.bed import wait_for
from beds.slurm import SlurmBed
from fleet import Dispatcher, Fleet, shell, wait_until

CONFIG = """\
kill_grace: 1s
heartbeat: 0.5s
lost_after: 4s
hosts:
  hpc: {type: slurm}
methods:
  m: {backoff: 0.1s}
"""
GATED = "echo begun; until [ -e go ]; do sleep 0.05; done; exit 3"
LONG = "echo begun; sleep 600"
# Only KILL ends it.
STUBBORN = "trap '' TERM; echo begun; while :; do sleep 0.05; done"


class Lab:
    """A workspace on the cluster's filesystem."""

    def __init__(self, fleet: Fleet, slurm: SlurmBed) -> None:
        self.fleet, self.slurm = fleet, slurm
        fleet.write_config(CONFIG)
        fleet.variables = slurm.env

    def start(self, *words: str) -> Dispatcher:
        return self.fleet.start("pod", "--outlet", "hpc", "--slots", "32", *words, poll="0.5").ready()

    def begun(self, job: str, number: int = 1) -> str:
        """SLURM's id of the job, once the job has said that it runs."""
        self.fleet.wait_for(job, "running", attempt=number)
        log = self.fleet.attempt(job, number).log
        wait_until(lambda: log.exists() and "begun" in log.read_text(), f"{job} has begun")
        return str(self.fleet.record(job).handle)

    def reasons(self, job: str) -> list[str]:
        """Why the job's attempts ended, one after the other."""
        return [str(line.set["reason"]) for line in self.fleet.history(job) if line.set.get("reason")]

    def ended(self, job: str) -> tuple[str, int | None, str | None, int]:
        record = self.fleet.wait_for(job, "done", "failed")
        return str(record.state), record.exit_code, record.reason, record.attempt

    def processes(self, job: str, number: int) -> list[int]:
        """Those of an attempt that live."""
        directory = os.fsencode(self.fleet.attempt(job, number).directory)
        return [pid for pid in self.slurm.processes() if b"DISPATCHER_ATTEMPT_DIR=" + directory in environment(pid)]

    def submitted(self) -> list[str]:
        """Every job that SLURM has had, by name and task."""
        shown = self.slurm.run("squeue", "--array", "-h", "--states=all", "--Format=Name:128,ArrayTaskID:20").stdout
        return [" ".join(line.split()) for line in shown.splitlines()]


def environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.fixture
def start_lab(start_slurm: Callable[..., SlurmBed], fleet: Fleet) -> Callable[..., Lab]:
    return lambda **settings: Lab(fleet, start_slurm(**settings))


@pytest.mark.slow
def test_what_jobs_do_and_people_do_to_them(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab()
    scripts = {"good": "exit 0", "bad": "exit 3", "segv": "kill -SEGV $$", "cancelled": LONG, "requeued": GATED}
    lab.fleet.write_manifest([shell(job, script, gpus=0) for job, script in scripts.items()])
    pod = lab.start()
    ids = {job: lab.begun(job) for job in ("cancelled", "requeued")}
    lab.slurm.run("scancel", ids["cancelled"])
    lab.slurm.run("scontrol", "update", f"JobId={ids['requeued']}", "Requeue=1")
    lab.slurm.run("scontrol", "requeue", ids["requeued"])
    assert lab.ended("good") == ("done", 0, None, 1)
    assert lab.ended("bad") == ("failed", 3, "exit 3", 1)
    assert lab.ended("segv") == ("failed", 139, "signal 11", 1)
    assert lab.ended("cancelled")[::2] == ("failed", "cancelled")
    # What SLURM begins again is refused, and the dispatcher starts an attempt of its own.
    lab.begun("requeued", 2)
    assert lab.reasons("requeued") == ["preempted"]
    (lab.fleet.root / "go").touch()
    assert lab.ended("requeued") == ("failed", 3, "exit 3", 2)
    pod.stop()


def test_what_waits(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab()
    lab.slurm.run("scontrol", "update", "PartitionName=low", "State=DOWN")
    lab.fleet.write_manifest([shell(job, "exit 0", gpus=0) for job in ("held", "cancelled")])
    pod = lab.start()
    ids = {job: lab.fleet.wait_for(job, "submitted") for job in ("held", "cancelled")}

    def handles() -> list[str]:
        return [str(record.handle) for job, record in lab.fleet.records().items() if record.handle and job in ids]

    held, cancelled = wait_until(lambda: handles() if len(handles()) == 2 else None, "both are accepted")

    def whys() -> set[object]:
        return {row["waits_for"] for row in json.loads(lab.fleet.run("status", "--json"))["jobs"]}

    wait_until(lambda: whys() == {"PartitionDown"}, "status says it")
    assert "PartitionDown" in lab.fleet.run("status")
    if lab.fleet.record("held").handle != held:
        held, cancelled = cancelled, held
    lab.slurm.run("scontrol", "hold", held)
    lab.slurm.run("scancel", cancelled)
    assert lab.ended("cancelled")[::2] == ("failed", "cancelled")
    lab.slurm.run("scontrol", "update", "PartitionName=low", "State=UP")
    lab.slurm.run("scontrol", "release", held)
    assert lab.ended("held") == ("done", 0, None, 1)
    assert whys() == {None}
    pod.stop()


@pytest.mark.slow
def test_a_node_that_is_lost_while_its_job_runs_on(start_lab: Callable[..., Lab]) -> None:
    """The job is marked as superseded and stops by itself before another attempt of it begins."""
    lab = start_lab(slurmd_timeout_s=3)
    lab.fleet.write_manifest([shell("a", GATED, gpus=0)])
    pod = lab.start()
    lab.begun("a")
    assert lab.processes("a", 1)
    lab.slurm.stop_node(str(lab.fleet.record("a").host))
    lab.fleet.wait_for("a", "queued", "submitted", "running", attempt=2, timeout_s=90)
    assert not lab.processes("a", 1)
    assert lab.reasons("a") == ["lost"]
    lab.begun("a", 2)
    (lab.fleet.root / "go").touch()
    assert lab.ended("a") == ("failed", 3, "exit 3", 2)
    pod.stop()


@pytest.mark.slow
@pytest.mark.parametrize("accounting", [True, False])
def test_jobs_that_slurm_has_forgotten(start_lab: Callable[..., Lab], accounting: bool) -> None:
    """Their dispatcher was dead when they ended, and the controller had purged them when it came back."""
    lab = start_lab(min_job_age_s=2, accounting=accounting)
    lab.fleet.write_manifest([shell("ended", GATED, gpus=0), shell("killed", GATED, gpus=0)])
    pod = lab.start()
    ids = {job: lab.begun(job) for job in ("ended", "killed")}
    pod.kill()
    lab.slurm.run("scancel", "--full", "--signal=KILL", ids["killed"])
    (lab.fleet.root / "go").touch()
    wait_for(
        lambda: not any(lab.slurm.show(job) for job in ids.values()), "both are forgotten", limit_s=90, every_s=0.5
    )
    again = lab.start("--until-empty")
    assert lab.ended("ended") == ("failed", 3, "exit 3", 1)
    end = lab.fleet.wait_for("killed", "done", "failed", timeout_s=120)
    if accounting:
        assert (end.state, end.attempt) == ("failed", 1)
    else:
        # SLURM told what was left of it to end.
        assert lab.reasons("killed")[0] == "preempted"
        assert (end.state, end.exit_code, end.attempt) == ("failed", 3, 2)
    again.end()


@pytest.mark.slow
@pytest.mark.parametrize("script", ["trap 'exit 0' TERM; echo begun; while :; do sleep 0.05; done", STUBBORN])
def test_preempted_jobs_that_slurm_has_forgotten(start_lab: Callable[..., Lab], script: str) -> None:
    """No scheduler tells why they ended: their wrappers were told to stop, and by no dispatcher."""
    lab = start_lab(nodes=1, min_job_age_s=2, preempt_mode="CANCEL")
    lab.fleet.write_config(CONFIG.replace("kill_grace: 1s", "kill_grace: 30s"))
    lab.fleet.write_manifest([shell("a", f"[ -e again ] && exit 3; touch again; {script}", gpus=4)])
    pod = lab.start()
    handle = lab.begun("a")
    pod.kill()
    urgent = lab.slurm.submit("#!/bin/sh\nexit 0", "--partition=high", "--gpus=4")
    wait_for(lambda: not lab.slurm.show(handle), "it is forgotten", limit_s=90, every_s=0.5)
    if script is not STUBBORN:
        assert lab.fleet.attempt("a").exit.exists()
    again = lab.start("--until-empty")
    assert lab.ended("a") == ("failed", 3, "exit 3", 2)
    assert lab.reasons("a") == ["preempted", "exit 3"]
    again.end()
    assert lab.slurm.show(urgent).get("JobState", "COMPLETED") == "COMPLETED"


@pytest.mark.slow
@pytest.mark.parametrize("for_s", [10, pytest.param(30, marks=pytest.mark.long)])
def test_a_controller_that_is_down(start_lab: Callable[..., Lab], for_s: int) -> None:
    """Jobs that end and jobs that are claimed meanwhile are neither lost nor submitted twice."""
    lab = start_lab(message_timeout_s=2)
    entries = [shell("a", GATED, gpus=0), shell("b", LONG, gpus=0)]
    lab.fleet.write_manifest(entries)
    pod = lab.start()
    for job in ("a", "b"):
        lab.begun(job)
    with lab.slurm.without_controller():
        down_s = time.monotonic()
        (lab.fleet.root / "go").touch()
        entries += [shell(f"c{number}", "exit 0", gpus=0) for number in range(3)]
        lab.fleet.write_manifest(entries)
        lab.fleet.wait_for("c0", "queued", "submitted")
        wait_until(lambda: "Unable to contact slurm controller" in lab.fleet.run("pods"), "pods shows it")
        # An attempt of which nothing is known is given up after lost_after.
        wait_until(lambda: time.monotonic() - down_s > for_s, f"{for_s} s", 60)
        assert lab.fleet.states()["b"] == "running"
    assert lab.ended("a") == ("failed", 3, "exit 3", 1)
    for number in range(3):
        assert lab.ended(f"c{number}") == ("done", 0, None, 1)
    lab.fleet.run("cancel", "b")
    lab.fleet.wait_for("b", "abandoned")
    wait_until(lambda: not lab.slurm.processes("slurmstepd"), "nothing of it is left")
    names = lab.submitted()
    assert len(names) == len(set(names)) == 5
    pod.stop()
