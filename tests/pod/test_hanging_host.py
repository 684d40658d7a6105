"""A host that hangs or is slow, beside local slots in the same pod: nothing of the local ones is any later."""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import time
from contextlib import AbstractContextManager
from typing import Any

import pytest
from beds.sshd import SshBed, SshHost
from fleet import Dispatcher, Fleet, shell, wait_until

CONFIG = """\
code: none
kill_grace: 2s
heartbeat: 0.5s
hosts:
  h1: {type: plain, ssh: h1}
"""
ROUNDS = 2
LOCAL_JOBS = 8
# The shell's own clock: nothing is started to read it.
TIMED = "echo $EPOCHREALTIME; sleep 0.05; echo $EPOCHREALTIME"
GATED = "echo begun; until [ -e go ]; do sleep 0.05; done"
# A loop that waits for the host is late by seconds, and a busy machine by less than this.
LATE_S = 1.0


class Lab:
    """A pod with one local slot, and two jobs that run on h1."""

    def __init__(self, fleet: Fleet, ssh: SshBed) -> None:
        self.fleet, self.ssh = fleet, ssh
        fleet.write_config(CONFIG)
        fleet.variables = {"DISPATCHER_SSH_CONFIG": os.fspath(ssh.config)}
        self.remote = [shell(f"remote{number}", GATED, gpus=0, outlet="h1") for number in range(2)]
        fleet.write_manifest(self.remote)
        self.pod = self.start()
        for entry in self.remote:
            fleet.wait_for(entry["job_id"], "running")

    def start(self) -> Dispatcher:
        return self.fleet.start("pod", "--outlet", "local:1", "--outlet", "h1:2", poll="0.5").ready()

    def add(self, *entries: dict[str, Any]) -> None:
        self.remote += entries
        self.fleet.write_manifest(self.remote)

    def gaps_s(self, name: str) -> list[float]:
        """Run jobs one after the other on the local slot: seconds from each end to the next beginning."""
        jobs = [f"{name}{number}" for number in range(LOCAL_JOBS)]
        self.add(*(shell(job, TIMED, gpus=0, outlet="local") for job in jobs))
        wait_until(lambda: all(self.fleet.states().get(job) == "done" for job in jobs), "the local jobs end")
        times = sorted([float(word) for word in self.fleet.output(job).split()] for job in jobs)
        return [begun - ended for (_, ended), (begun, _) in itertools.pairwise(times)]

    def heartbeat(self) -> int:
        return int(json.loads(self.fleet.layout.pod_file("pod").read_text())["heartbeat"])

    def heartbeats_per_s(self) -> float:
        began_s, first = time.monotonic(), self.heartbeat()
        wait_until(lambda: self.heartbeat() >= first + 6, "the heart beats")
        return 6 / (time.monotonic() - began_s)

    def cancel_one(self) -> float:
        """Seconds from the wish to cancel a local job to its record."""
        self.add(shell("long", "echo on; sleep 600", gpus=0, outlet="local"))
        self.fleet.wait_running("long")
        asked_s = time.monotonic()
        self.fleet.run("cancel", "long")
        self.fleet.wait_for("long", "abandoned")
        return time.monotonic() - asked_s

    def end(self) -> float:
        """Seconds that the pod needs to exit at once, as three signals ask it to."""
        asked_s = time.monotonic()
        for _ in range(3):
            self.pod.send(signal.SIGTERM)
            time.sleep(0.2)
        self.pod.end()
        return time.monotonic() - asked_s

    def let_go(self) -> None:
        for root in self.ssh["h1"].path(".dispatcher").glob("*/run_state"):
            (root.parent / "go").touch()


def trouble_of(host: SshHost, trouble: str) -> AbstractContextManager[None]:
    return host.slow(3.0) if trouble == "slow" else getattr(host, trouble)()


@pytest.fixture
def lab(ssh: SshBed, fleet: Fleet) -> Lab:
    return Lab(fleet, ssh)


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize("trouble", ["hanging", "silent", "slow"])
def test_local_slots_are_not_held_up(lab: Lab, trouble: str) -> None:
    host = lab.ssh["h1"]
    alone: list[float] = []
    beside: list[float] = []
    # In turns, because the machine does other things too.
    for number in range(ROUNDS):
        alone += lab.gaps_s(f"alone{number}_")
        with trouble_of(host, trouble):
            beside += lab.gaps_s(f"beside{number}_")
    with trouble_of(host, trouble):
        beats = lab.heartbeats_per_s()
        cancelled_s = lab.cancel_one()
        states = lab.fleet.states()
        ended_s = lab.end()
    print(f"turnover alone {statistics.median(alone) * 1000:.1f} ms, beside a {trouble} host "
          f"{statistics.median(beside) * 1000:.1f} ms, at most {max(beside) * 1000:.0f} ms; {beats:.2f} heartbeats/s; "
          f"cancelled after {cancelled_s:.2f} s; ended after {ended_s:.2f} s")  # fmt: skip
    assert statistics.median(beside) < 3 * statistics.median(alone) + 0.05
    assert max(beside) < max(alone) + LATE_S
    assert beats > 1.0
    assert cancelled_s < 5
    assert ended_s < 20
    assert {states[f"remote{number}"] for number in range(2)} == {"running"}, "what does not answer has not failed"
    lab.let_go()
    second = lab.start()
    for number in range(2):
        lab.fleet.wait_for(f"remote{number}", "done")
    assert lab.fleet.record("remote0").attempt == 1
    second.stop()
