"""A host on which every attempt dies at once takes five jobs, not the matrix."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from beds.pbs import PbsBed
from fleet import COMMAND, MAIN, Fleet, shell, wait_until

from dispatcher import templates
from dispatcher.base.host import host_name
from dispatcher.outlets.base import Ended
from dispatcher.pod.outcome import classify, is_suspicious

SCOPE = f"host:{host_name()}"
# Where all that cannot run are of one method, the host may be well.
OF_METHOD = f"{SCOPE}:m"

DYING = """
import os, signal
from dispatcher.outlets.batch.outlet import BatchOutlet
BatchOutlet.submit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def broken(fleet: Fleet) -> Fleet:
    """A workspace whose wrappers are killed before they run anything, unless `repaired` is there."""
    fleet.layout.templates_dir.mkdir()
    head, _, rest = (Path(templates.__file__).parent / "wrapper.sh.j2").read_text().partition("\n")
    override = f"{head}\n[[ -e repaired ]] || kill -9 $$\n{rest}"
    (fleet.layout.templates_dir / "wrapper.sh.j2").write_text(override)
    return fleet


def test_a_broken_host_stops_claiming_and_says_so(broken: Fleet) -> None:
    jobs = [f"job_{n:03d}" for n in range(100)]
    broken.write_config("methods: {m: {backoff: 0.1s}, n: {backoff: 0.1s}}\n")
    broken.write_manifest([shell(job, "true", method="mn"[n % 2]) for n, job in enumerate(jobs)])
    pod = broken.start("pod", "--slots", "2", poll="0.2")
    pod.says(f"no claims: {SCOPE} is paused")
    wait_until(lambda: "running" not in broken.states().values(), "what was claimed before has ended")
    records = broken.records()
    tried = [job for job in jobs if records[job].attempt]
    assert len(tried) <= 7, f"the broken host has gone through {len(tried)} jobs"
    assert {record.state for record in records.values()} == {"queued"}
    known = records[tried[0]].error or ""
    for part in ("no exit status after 0", "signal 9 killed its wrapper", "its log is empty"):
        assert part in known, f"the record does not say what is known: {known}"
    status = broken.try_("status")
    for said in (pod.says(f"{SCOPE} is paused"), status.stdout + status.stderr, pods_say(broken, "paused")):
        assert f"{SCOPE} is paused" in said
        assert "signal 9 killed its wrapper" in said
    waiting = json.loads(broken.run("status", "--json"))
    assert f"host {host_name()} is paused" in json.dumps(waiting)
    # Another pod of the same host does not begin either.
    other = broken.start("other", "--until-empty", poll="0.2")
    assert other.end() == 1
    assert f"{SCOPE} is paused" in other.said
    assert f"dispatcher unpause {SCOPE}" in other.said
    assert other.said.count("could not run here") == 2, "the same is said of every job"
    assert [job for job, record in broken.records().items() if record.attempt] == tried
    (broken.root / "repaired").touch()
    broken.run("unpause", SCOPE)
    for job in jobs:
        broken.wait_for(job, "done")
    status = broken.try_("status")
    assert "paused" not in status.stdout + status.stderr
    assert pod.stop() == 0


def pods_say(fleet: Fleet, word: str) -> str:
    """What `pods` prints once it says `word`."""

    def said() -> str:
        text = fleet.run("pods")
        return text if word in text else ""

    return str(wait_until(said, f"`pods` says {word}"))


def test_jobs_that_somebody_kills_pause_no_host(fleet: Fleet) -> None:
    """Between those that are killed outright, others tell how they ended."""
    fleet.write_config("methods: {m: {backoff: 0.1s, on_lost: fail}}\n")
    killed, well = "kill -9 $PPID", "exit 1"
    jobs = [shell(f"job_{n}", well if n % 4 == 3 else killed) for n in range(12)]
    fleet.write_manifest(jobs)
    pod = fleet.run_all()
    assert set(fleet.states().values()) == {"failed"}
    assert "paused host" not in pod.said
    assert "is paused" not in pod.said


def test_a_program_that_kills_its_own_process_group_keeps_no_other_method_waiting(fleet: Fleet) -> None:
    fleet.write_config("methods: {m: {backoff: 0.1s}}\n")
    jobs = [shell(f"bad_{n}", "kill -9 0") for n in range(7)]
    fleet.write_manifest([*jobs, *(shell(f"good_{n}", "true", method="good") for n in range(3))])
    pod = fleet.start("pod", "--until-empty", poll="0.2")
    assert pod.end() == 1
    states = fleet.states()
    assert {states[f"good_{n}"] for n in range(3)} == {"done"}
    assert f"paused {SCOPE}:" not in pod.said.replace(OF_METHOD, "")


def test_the_same_job_again_and_again_pauses_no_host(fleet: Fleet) -> None:
    fleet.write_config("max_requeues: 8\nmethods: {m: {backoff: 0.01s}}\n")
    fleet.write_manifest([shell("a", "kill -9 $PPID"), shell("b", "kill -9 $PPID")])
    pod = fleet.run_all()
    assert {record.reason for record in fleet.records().values()} == {"lost 9 times"}
    assert "is paused" not in pod.said


def test_attempts_that_were_lost_after_a_while_are_not_the_hosts_fault() -> None:
    assert is_suspicious(classify(Ended(None, ran_s=0.2), ""))
    assert not is_suspicious(classify(Ended(None, ran_s=3600.0), ""))
    # Nobody knows how long an attempt of a dead dispatcher ran.
    assert not is_suspicious(classify(Ended(None), ""))
    assert not is_suspicious(classify(Ended(143, "superseded", ran_s=0.2), ""))


def test_what_is_known_of_a_lost_attempt() -> None:
    log = "loading\nValueError: bad shape\nstep 3/10 loss 2.1\n"
    text = classify(Ended(None, error="signal 9 killed its wrapper", oom_killed=True, ran_s=3700.0), log).error
    assert text == (
        "no exit status after 1:01:40, signal 9 killed its wrapper, the kernel killed a process of this host for lack "
        "of memory meanwhile, its log ends: ValueError: bad shape"
    )
    assert classify(Ended(None), "step 3/10 loss 2.1\n").error == "no exit status, its log ends: step 3/10 loss 2.1"


def test_a_host_that_cannot_start_anything_is_paused_too(fleet: Fleet) -> None:
    """It is not the jobs' fault: they wait for a host that can."""
    fleet.layout.templates_dir.mkdir()
    fleet.layout.training_template("m").write_text("PARAMS = {}\n")
    fleet.layout.run_state.mkdir()
    # Where the folder of the scripts should be.
    obstacle = fleet.layout.method_scripts("m")
    obstacle.touch()
    fleet.write_config("methods: {m: {backoff: 0.1s}}\n")
    fleet.write_manifest([{"job_id": f"job_{n:02d}"} for n in range(20)])
    pod = fleet.start("pod", poll="0.2")
    pod.says(f"paused {OF_METHOD}")
    assert set(fleet.states().values()) == {"queued"}
    tried = [record for record in fleet.records().values() if record.attempt]
    assert len(tried) == 5
    assert {record.reason for record in tried} == {"cannot start"}
    obstacle.unlink()
    fleet.run("unpause", OF_METHOD)
    for job in fleet.records():
        fleet.wait_for(job, "done")


def test_a_pod_that_dies_before_it_submits_pauses_nothing(fleet: Fleet, pbs: PbsBed) -> None:
    """Its jobs end alike, and their method is not to blame."""
    fleet.variables = pbs.env
    fleet.write_config("lost_after: 10s\nhosts:\n  hpc: {type: pbs}\n")
    fleet.write_manifest([{"job_id": f"job{number}", "command": ["true"]} for number in range(6)])
    words = ["--slots", "0", "--outlet", "hpc:6"]
    fleet.command = [*COMMAND[:-1], DYING + MAIN]
    assert fleet.start("a", *words, poll="0.3").end() == -signal.SIGKILL
    assert set(fleet.states().values()) == {"submitted"}
    fleet.command = COMMAND
    pod = fleet.start("b", *words, poll="0.3")
    wait_until(lambda: set(fleet.states().values()) == {"done"}, f"all jobs are done: {pod.said}")
    assert "job5 (attempt 1): not reached: its dispatcher died before it was submitted" in pod.said
    assert "paused" not in pod.said
