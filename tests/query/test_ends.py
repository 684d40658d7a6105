"""`Workspace.wait`: the records of jobs that have ended, and no endless wait for those that cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from fleet import PATIENCE_S, Fleet, shell, wait_until

from dispatcher.api import Workspace
from dispatcher.errors import StateError, UsageError

WAITS = """
import sys
from dispatcher import Workspace
print("waits", flush=True)
try:
    print({job: record.state.value for job, record in Workspace(sys.argv[1]).wait(sys.argv[2:]).items()})
except KeyboardInterrupt:
    print("interrupted")
"""


def waiting(fleet: Fleet, *jobs: str, program: str = WAITS) -> subprocess.Popen[str]:
    """A script that waits for these jobs."""
    command = [sys.executable, "-c", program, str(fleet.root), *jobs]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    return process


def test_jobs_of_a_manifest_that_no_pod_has_seen_yet(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true"), shell("b", "exit 3"), shell("c", "true")])
    workspace = Workspace(fleet.root)
    waits = waiting(fleet, "a", "b")
    fleet.run_all()
    assert waits.communicate(timeout=PATIENCE_S)[0] == "{'a': 'done', 'b': 'failed'}\n"
    assert list(workspace.wait("*")) == ["a", "b", "c"]
    assert workspace.wait([]) == {}
    with pytest.raises(UsageError, match="unknown job 'd'"):
        workspace.wait("d")


def test_a_deleted_job_has_no_record(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    workspace = Workspace(fleet.root)
    workspace.hold("a")
    waits = waiting(fleet, "a", program=WAITS.replace("record.state.value", "record"))
    wait_until(lambda: is_asleep(waits.pid), "it waits")
    workspace.delete("a")
    assert waits.communicate(timeout=PATIENCE_S)[0] == "{'a': None}\n"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda workspace: workspace.hold("a"), "a (held: not claimed until it is requeued)"),
        (lambda workspace: workspace.cancel("base"), "a (needs base (abandoned))"),
        (
            lambda workspace: workspace.pause("m", "later"),
            "a (needs base (queued); root cause: method m is paused: later (by test))",
        ),
    ],
)
def test_what_cannot_end_without_a_person_is_not_waited_for(fleet: Fleet, change, why) -> None:
    fleet.write_manifest([shell("base", "true"), shell("a", "true", needs=["base"])])
    workspace = Workspace(fleet.root, by="test")
    workspace.hold("base")
    workspace.requeue("base")
    change(workspace)
    with pytest.raises(StateError) as raised:
        workspace.wait("a", timeout_s=PATIENCE_S)
    assert str(raised.value) == f"{why} cannot end without help: see `dispatcher status`, or `dispatcher cancel`"


def test_a_timeout_says_which_jobs_are_left(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true"), shell("b", "true")])
    with pytest.raises(StateError, match=r"^a, b did not end within 0\.5 s$"):
        Workspace(fleet.root).wait(["a", "b"], timeout_s=0.5)


def test_a_job_whose_pod_has_died_is_not_waited_for(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "sleep 600")])
    pod = fleet.start("pod", "--slots", "1")
    fleet.wait_for("a", "running")
    pod.kill()
    with pytest.raises(StateError, match="a \\(running, and no pod is alive"):
        Workspace(fleet.root).wait("a", timeout_s=PATIENCE_S)
    # The next one of its name stops the job when it ends.
    fleet.start("pod", "--slots", "1").ready()


def test_an_interrupt_ends_the_waiting(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    waits = waiting(fleet, "a")
    wait_until(lambda: is_asleep(waits.pid), "it waits")
    os.kill(waits.pid, signal.SIGINT)
    assert waits.communicate(timeout=PATIENCE_S)[0] == "interrupted\n"


def is_asleep(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"
