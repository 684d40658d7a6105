"""Containers on one machine with one host name: each has its own PIDs, and none may judge another's by them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fleet import COMMAND, Dispatcher, Fleet, shell, wait_until

from dispatcher.base import files

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child"]
CONTAINER = [*UNSHARE, "--mount-proc"]
GATED = "echo begun; until [ -e go ]; do sleep 0.02; done"
# Proves that the attempt before it has ended, and is killed when it was given away.
ALONE = 'mkdir running || { touch twice; exit 9; }; trap "rmdir running; exit 143" TERM; echo begun; ' + (
    "until [ -e go ]; do sleep 0.02; done; rmdir running"
)

pytestmark = pytest.mark.skipif(
    subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode != 0,
    reason="PID namespaces need root (unshare --pid)",
)


def start(fleet: Fleet, pod: str, *words: str, poll: str = "0.2", around: list[str] | None = None) -> Dispatcher:
    """A dispatcher in a container of its own."""
    fleet.command = [*(around or CONTAINER), *COMMAND]
    return fleet.start(pod, *words, poll=poll)


def stop(fleet: Fleet, *pods: Dispatcher) -> None:
    for pod in pods:
        fleet.run("drain", pod.pod)
    for pod in pods:
        pod.end()


@pytest.mark.parametrize("lock", ["flock", "hardlink"])
def test_no_pod_judges_anothers_jobs_by_pids(fleet: Fleet, lock: str) -> None:
    fleet.write_config(f"lock: {lock}\nheartbeat: 0.2s\n")
    fleet.write_manifest([shell("a", GATED), shell("b", GATED)])
    pods = [start(fleet, pod).ready() for pod in ("one", "two")]
    for job in "ab":
        fleet.wait_running(job)
    # Each has looked around several times since it knows of the other's job.
    fleet.write_manifest([shell("a", GATED), shell("b", GATED), shell("c", "true")])
    for pod in pods:
        beats = pod_heartbeat(fleet, pod.pod)
        wait_until(lambda pod=pod, beats=beats: pod_heartbeat(fleet, pod.pod) > beats + 5, "it goes on looking")
    shown = fleet.run("pods", "--json")
    assert shown.count('"alive": true') == 2, shown
    assert fleet.states() == {"a": "running", "b": "running", "c": "queued"}
    (fleet.root / "go").touch()
    for job in "abc":
        assert fleet.wait_for(job, "done").attempt == 1
    stop(fleet, *pods)


def pod_heartbeat(fleet: Fleet, pod: str) -> int:
    from dispatcher.run_state import liveness

    info = liveness.read_pod(fleet.layout, pod)
    return info.heartbeat if info else 0


@pytest.mark.parametrize("lock", ["flock", "hardlink"])
def test_gpus_are_the_machines(fleet: Fleet, lock: str) -> None:
    fleet.write_config(f"lock: {lock}\nheartbeat: 0.2s\n")
    fleet.write_manifest([])
    first = start(fleet, "first", "--gpus", "0,1").ready()
    second = start(fleet, "second", "--gpus", "1,2")
    assert second.end() == 1
    assert "--gpus: 1 belong to pod 'first' in another container of this machine" in second.said
    third = start(fleet, "third", "--gpus", "2").ready()
    stop(fleet, first, third)
    start(fleet, "fourth", "--gpus", "0,1", "--until-empty").end()


def test_a_pod_that_was_killed_in_its_container_gives_its_gpus_back(fleet: Fleet) -> None:
    # It may have held the claims lock, too, which nobody in another container can tell.
    fleet.write_config("lock: hardlink\nheartbeat: 0.2s\nlost_after: 3s\n")
    fleet.write_manifest([shell("a", GATED)])
    first = start(fleet, "first", "--gpus", "0,1").ready()
    first.kill()
    wait_until(lambda: not fleet.pids(), "the kernel has ended the container")
    (fleet.root / "go").touch()
    again = start(fleet, "second", "--gpus", "1,2").ready()
    stop(fleet, again)


def test_an_attempt_that_lives_on_in_another_container_ends_before_the_next_begins(fleet: Fleet) -> None:
    """Its dispatcher is dead, one of the same name runs in another container, and no lock says that it lives."""
    fleet.write_config("lock: hardlink\nheartbeat: 0.2s\nlost_after: 4s\nkill_grace: 1s\n")
    fleet.write_manifest([shell("a", ALONE)])
    # Its first process is a shell, so that the container outlives the dispatcher.
    first = start(fleet, "pod", around=[*CONTAINER, "sh", "-c", '"$@" & wait $!; sleep 600', "sh"])
    fleet.wait_running("a")
    (dispatcher,) = (
        pid for pid, words in fleet.pids().items() if "main(" in words and not words.startswith(("sh ", "un"))
    )
    os.kill(dispatcher, signal.SIGKILL)
    second = start(fleet, "pod").ready()
    fleet.wait_running("a", 2)
    (fleet.root / "go").touch()
    fleet.wait_for("a", "done", attempt=2)
    assert not (fleet.root / "twice").exists(), "both attempts ran at the same time"
    stop(fleet, second)
    first.kill()
    wait_until(lambda: not fleet.pids(), "the kernel has ended the container")


def test_a_temporary_file_of_another_container_is_left_alone(tmp_path: Path) -> None:
    name = files.temporary_name(tmp_path / "pod.json")
    name.touch()
    code = "import sys, pathlib; from dispatcher.base import files; print(files.leftovers(pathlib.Path(sys.argv[1])))"
    words = [*CONTAINER, sys.executable, "-c", code, str(tmp_path)]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert found == "[]\n", "there is no such pid in the container, but the file's owner lives"
    dead = name.with_name(name.name.replace(f".{os.getpid()}.", ".4194304."))
    dead.touch()
    assert files.leftovers(tmp_path) == [dead]


def test_a_proc_of_another_namespace_is_refused(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    pod = start(fleet, "pod", around=UNSHARE)
    assert pod.end() == 1
    assert "no job can run on this host: /proc shows the processes of another PID namespace" in pod.said
    assert "--mount-proc" in pod.said
