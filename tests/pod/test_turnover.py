"""From the end of a job to the start of the next on its slot, from a change to its effect: not a poll interval."""

from __future__ import annotations

import os
import statistics
import time

import pytest
from fleet import Fleet, shell, wait_until

pytestmark = pytest.mark.quiet
# The poll interval in these tests is ten minutes; a slow machine may need this long for what takes milliseconds.
GENEROUS_S = 10.0


def test_the_next_job_starts_at_once(fleet: Fleet) -> None:
    stamp = "date +%s.%N >>begun; sleep 0.05; date +%s.%N >>ended"
    fleet.write_manifest([shell(f"j{n:02d}", stamp) for n in range(12)])
    pod = fleet.start("pod", "--until-empty", poll="600")
    assert pod.end() == 0
    begun, ended = ([float(line) for line in (fleet.root / name).read_text().split()] for name in ("begun", "ended"))
    turnovers = [begin - end for begin, end in zip(begun[1:], ended, strict=False)]
    assert statistics.median(turnovers) < 2.0
    assert max(turnovers) < GENEROUS_S


def test_what_an_entry_needs_frees_it_on_another_pod_at_once(fleet: Fleet) -> None:
    fleet.write_manifest(
        [
            shell("base", "echo begun; until [ -e go ]; do sleep 0.02; done", gpus=0),
            shell("tuned", "true", gpus=1, needs=["base"]),
        ]
    )
    fleet.start("one", poll="600")
    fleet.start("two", "--gpus", "0", poll="600").ready()
    fleet.wait_running("base")
    begun = time.monotonic()
    (fleet.root / "go").touch()
    fleet.wait_for("tuned", "done")
    assert time.monotonic() - begun < GENEROUS_S


def test_a_command_is_noticed_at_once(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "exit 1")])
    fleet.start("pod", poll="600")
    fleet.wait_for("a", "failed")
    fleet.run("requeue", "a")
    begun = time.monotonic()
    fleet.wait_for("a", "failed", attempt=2)
    assert time.monotonic() - begun < GENEROUS_S


def test_the_status_file_follows(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "echo begun; until [ -e go ]; do sleep 0.02; done")])
    fleet.start("pod", poll="600")
    pid = fleet.wait_running("a")
    wait_until(lambda: fleet.status()["a"].get("pid") == pid, "the status file shows the pid", GENEROUS_S)
    (fleet.root / "go").touch()
    wait_until(lambda: fleet.status()["a"]["state"] == "done", "the status file shows the end", GENEROUS_S)


def test_an_idle_dispatcher_does_next_to_nothing(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    pod = fleet.start("pod", poll="600")
    fleet.wait_for("a", "done")
    wait_until(lambda: fleet.status()["a"]["state"] == "done", "the status file shows the end")
    # What was replaced last is looked at for some seconds more.
    time.sleep(1)
    before = cpu_s(pod.pid)
    time.sleep(4)
    assert cpu_s(pod.pid) - before < 0.4


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
