"""A cluster that is reached through its login node by ssh: neither that nor its nodes see the workspace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from beds.slurm import SlurmBed
from beds.sshd import SshBed
from fleet import Dispatcher, Fleet, printed, shell, wait_until

CONFIG = """\
code: none
kill_grace: 1s
lost_after: 10s
clusters:
  lab: {{root: {root}}}
hosts:
  hpc: {{type: slurm, ssh: login, cluster: lab}}
"""
ODD = "it's; $(touch pwned)\n\"'\\ ä * %j"
GATED = "echo begun; until [ -e go ]; do sleep 0.05; done; exit 3"


class Lab:
    """A workspace here, and a cluster whose filesystem is somewhere else."""

    def __init__(self, fleet: Fleet, slurm: SlurmBed, ssh: SshBed) -> None:
        self.fleet, self.slurm, self.ssh = fleet, slurm, ssh
        self.root = slurm.directory / "work" / "it's; %j"
        fleet.write_config(CONFIG.format(root=json.dumps(os.fspath(self.root))))
        fleet.variables = {"DISPATCHER_SSH_CONFIG": os.fspath(ssh.config)}

    def start(self, *words: str, pod: str = "pod") -> Dispatcher:
        return self.fleet.start(pod, "--outlet", "hpc", "--slots", "32", *words, poll="0.5")

    def working(self) -> Path:
        (found,) = self.root.iterdir()
        return found

    def begun(self, job: str, number: int = 1) -> None:
        """Until the job runs and has said so in its log, which is here by then."""
        self.fleet.wait_for(job, "running", attempt=number)
        log = self.fleet.attempt(job, number).log
        wait_until(lambda: log.exists() and printed(log), f"{job} has begun")

    def let_go(self) -> None:
        (self.working() / "go").touch()

    @contextmanager
    def shown(self, text: str) -> Iterator[None]:
        wait_until(lambda: text in self.fleet.run("pods"), f"it is shown: {text}", 30)
        yield

    def submitted(self) -> list[str]:
        """Every job that SLURM has had, by name and task."""
        shown = self.slurm.run("squeue", "--array", "-h", "--states=all", "--Format=Name:128,ArrayTaskID:20").stdout
        return [" ".join(line.split()) for line in shown.splitlines()]


@pytest.fixture
def start_lab(
    start_slurm: Callable[..., SlurmBed], start_ssh: Callable[..., SshBed], fleet: Fleet
) -> Callable[..., Lab]:
    def start(**settings: object) -> Lab:
        slurm = start_slurm(**settings)
        return Lab(fleet, slurm, start_ssh(["login"], shared=[slurm.directory], env=slurm.env))

    return start


def test_jobs_of_an_array(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab()
    script = """printf '%s' "$ODD" >&2; echo '{"loss": 0.5}' >"$DISPATCHER_ATTEMPT_DIR/result.json"; exit """
    entries = [shell(f"job{number}", f"{script}{number}", env={"ODD": ODD}, gpus=1) for number in range(4)]
    lab.fleet.write_manifest(entries)
    pod = lab.start("--until-empty")
    pod.end()
    assert lab.fleet.states() == {"job0": "done", **{f"job{number}": "failed" for number in (1, 2, 3)}}, pod.said
    for number in range(4):
        assert lab.fleet.output(f"job{number}") == ODD
        assert json.loads(lab.fleet.attempt(f"job{number}").result.read_text()) == {"loss": 0.5}
    assert lab.fleet.record("job3").host in lab.slurm.node_names
    assert lab.fleet.record("job3").reason == "exit 3"
    names = lab.submitted()
    assert len({name.split()[0] for name in names}) == 1, "one array"
    assert not list(lab.root.rglob("pwned"))


@pytest.mark.slow
def test_a_login_node_that_goes_away_and_a_dispatcher_that_dies_meanwhile(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab()
    lab.fleet.write_manifest([shell("a", GATED, gpus=0)])
    first = lab.start()
    lab.begun("a")
    with lab.ssh["login"].away():
        lab.let_go()
        with lab.shown("Connection refused"):
            assert lab.fleet.states() == {"a": "running"}
        first.kill()
        second = lab.start()
        second.ready()
        with lab.shown("Connection refused"):
            assert lab.fleet.states() == {"a": "running"}
    record = lab.fleet.wait_for("a", "failed")
    assert (record.exit_code, record.attempt) == (3, 1)
    assert len(lab.submitted()) == 1
    second.stop()


@pytest.mark.slow
def test_a_controller_that_goes_away_while_jobs_end(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab()
    lab.fleet.write_manifest([shell("a", GATED, gpus=0), shell("b", "echo begun; sleep 600", gpus=0)])
    pod = lab.start()
    lab.begun("a")
    lab.begun("b")
    with lab.slurm.without_controller():
        lab.let_go()
        exit_file = lab.working() / "run_state" / "jobs" / "a" / "1" / "exit.json"
        wait_until(exit_file.exists, "a has ended")
        with lab.shown("Unable to contact slurm controller"):
            assert lab.fleet.states() == {"a": "running", "b": "running"}
    assert lab.fleet.wait_for("a", "failed").exit_code == 3
    lab.fleet.run("cancel", "b")
    lab.fleet.wait_for("b", "abandoned")
    wait_until(lambda: not lab.slurm.processes("slurmstepd"), "nothing of it is left")
    assert len(lab.submitted()) == 2
    pod.stop()


def test_a_preempted_job_starts_again(start_lab: Callable[..., Lab]) -> None:
    lab = start_lab(nodes=1)
    lab.fleet.write_manifest([shell("a", GATED, gpus=4)])
    pod = lab.start()
    lab.begun("a")
    urgent = lab.slurm.submit("#!/bin/sh\nsleep 2", "--partition=high", "--gpus=4")
    lab.begun("a", 2)
    assert lab.slurm.show(urgent)["JobState"] == "COMPLETED"
    assert lab.fleet.record("a").retries in (None, 0)
    assert any(line.set.get("reason") == "preempted" for line in lab.fleet.history("a"))
    lab.let_go()
    assert lab.fleet.wait_for("a", "failed").exit_code == 3
    pod.stop()
