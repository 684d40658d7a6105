"""Real dispatchers with a host of type pbs, killed at random, on a server that takes jobs away from their nodes."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest
from beds.pbs import PbsBed
from fleet import COMMAND, MAIN, Dispatcher, Fleet, wait_until

from dispatcher.outlets.local import processes

JOBS = 16
STORM_S = 8.0
# It never runs twice at once, and each attempt begins once.
SCRIPT = (
    'exec 9>>"lock.$DISPATCHER_JOB_ID"; flock -n 9 || echo "$DISPATCHER_JOB_ID" >>overlaps;'
    ' echo "$DISPATCHER_JOB_ID/$DISPATCHER_ATTEMPT" >>begun; sleep 0.5'
)
DYING = """
import os, signal
from dispatcher.outlets.batch.outlet import BatchOutlet
BatchOutlet.submit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
CONFIG = """
kill_grace: 1s
lost_after: 10s
max_requeues: 1000
hosts:
  hpc: {type: pbs}
"""


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_runs_twice(fleet: Fleet, pbs: PbsBed) -> None:
    pbs.configure(kill_delay_s=1.0)
    fleet.variables = pbs.env
    fleet.write_config(CONFIG)
    fleet.write_manifest([{"job_id": f"job{number}", "command": ["bash", "-c", SCRIPT]} for number in range(JOBS)])
    chance = random.Random(1)
    pods = {name: start(fleet, name).ready() for name in ("a", "b")}
    end_s = time.monotonic() + STORM_S
    while time.monotonic() < end_s:
        name = chance.choice(list(pods))
        if chance.random() < 0.3:
            pods[name].kill()
            pods[name] = start(fleet, name)
        take_away(pbs, chance)
        # The storm has a rhythm: each blow meets jobs in another state.
        time.sleep(chance.uniform(0.05, 0.6))
    wait_until(lambda: set(fleet.states().values()) == {"done"}, "all jobs are done", timeout_s=120)
    begun = (fleet.root / "begun").read_text().split()
    assert {line.partition("/")[0] for line in begun} == {f"job{number}" for number in range(JOBS)}
    assert [attempt for attempt, times in Counter(begun).items() if times > 1] == []
    assert not (fleet.root / "overlaps").exists()
    names = [words[words.index("-N") + 1] for words in pbs.calls("qsub")]
    assert [name for name, times in Counter(names).items() if times > 1] == []
    wait_until(lambda: not jobs_in(pbs, "QHRES"), "PBS has none of its jobs any more")
    for directory in fleet.layout.jobs_dir.glob("*/*"):
        assert not processes.of_attempt(directory)


def test_a_pod_that_dies_before_it_submits_pauses_nothing(fleet: Fleet, pbs: PbsBed) -> None:
    """Its jobs end alike, and their method is not to blame."""
    fleet.variables = pbs.env
    fleet.write_config(CONFIG)
    fleet.write_manifest([{"job_id": f"job{number}", "command": ["true"]} for number in range(6)])
    fleet.command = [*COMMAND[:-1], DYING + MAIN]
    assert start(fleet, "a").end() == -signal.SIGKILL
    assert set(fleet.states().values()) == {"submitted"}
    fleet.command = COMMAND
    pod = start(fleet, "b")
    wait_until(lambda: set(fleet.states().values()) == {"done"}, f"all jobs are done: {pod.said}")
    assert "job5 (attempt 1): not reached: its dispatcher died before it was submitted" in pod.said
    assert "paused" not in pod.said


def start(fleet: Fleet, pod: str) -> Dispatcher:
    return fleet.start(pod, "--slots", "0", "--outlet", "hpc:6", poll="0.3")


def jobs_in(pbs: PbsBed, states: str) -> dict[str, dict[str, Any]]:
    return {job_id: job for job_id, job in pbs.jobs().items() if job["job_state"] in states}


def take_away(pbs: PbsBed, chance: random.Random) -> None:
    """One running job is preempted, in one of PBS's ways."""
    running = list(jobs_in(pbs, "R"))
    if running:
        # It may end at this very moment.
        with contextlib.suppress(ProcessLookupError, AssertionError, KeyError):
            pbs.preempt(chance.choice(running), by=chance.choice(["delete", "requeue"]))
