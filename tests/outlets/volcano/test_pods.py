"""What the Kubernetes pods of a Job run, as processes of this machine that share a directory: no cluster is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from beds.bed import wait_for
from clocks import UptimeClock
from fleet import kill_all_with
from volcano_jobs import NAME, make_host, make_submission

from dispatcher.config import CodeMode, Config, Method
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.assignment import Assignment
from dispatcher.outlets.base import Key, Request, Site, Slot
from dispatcher.outlets.batch.scheduler import Submission
from dispatcher.outlets.bundle import deliver, render
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.outlets.wrapper import DOES_NOT_KNOW
from dispatcher.templates.shell import quoted
from dispatcher.workspace import Layout

KEY = Key("j0", 1)
SUBMISSION = "DISPATCHER_SUBMISSION_DIR"
RANK = 'echo "$DISPATCHER_PROCESS_ID of $DISPATCHER_NUM_PROCESSES"'


class Pods:
    """The pods of one attempt with this command, each a process that leads a group as the first one of a pod does.

    With `clock_s` time passes for the wrapper only when the test says so (`clock`).
    """

    def __init__(
        self, root: Path, command: str, nodes: int = 1, grace_s: float = 20, clock_s: float | None = None, **words: Any
    ) -> None:
        root.mkdir()
        layout = Layout(root)
        if clock_s is not None:
            self.clock = UptimeClock(layout, now_s=clock_s)
        request = Request(gpus=0, nodes=nodes)
        self.directory = layout.attempt(*msgspec.structs.astuple(KEY)).directory
        self.directory.mkdir(parents=True)
        config = Config(
            layout=layout, matrix=root / "m.json", methods={"m": Method(name="m", template=root / "none.py")},
            kill_grace_s=grace_s, lost_after_s=4.0, code=CodeMode.NONE,
        )  # fmt: skip
        scheduler = VolcanoScheduler(make_host(), layout, grace_s)
        entry = Entry(job_id="j0", method="m", command=("bash", "-c", command), **words)
        assigned = Assignment(entry=entry, key=KEY, pod="pod", request=request, slot=Slot())
        launcher = f'#!/bin/bash\nexec {quoted(list(scheduler.launcher(request)))} "$@"\n'
        bundle = render(config, assigned, Site(layout=layout, group_may_write=False, launcher="launch.sh"))
        deliver(msgspec.structs.replace(bundle, files={**bundle.files, "launch.sh": launcher.encode()}), layout)
        given: Submission = msgspec.structs.replace(make_submission(request=request), layout=layout)
        self.script = layout.submission_script(NAME)
        self.script.parent.mkdir(parents=True)
        for path, content in scheduler.scripts(given).items():
            Path(path).write_bytes(content)
        hosts = ",".join(f"{NAME}-0-worker-{index}.{NAME}-0" for index in range(nodes))
        self.environment = {
            **os.environ, **{name: value for name, value in bundle.environment.items() if value is not None},
            SUBMISSION: os.fspath(self.script.parent), "VC_WORKER_HOSTS": hosts,
        }  # fmt: skip
        self.running: list[subprocess.Popen[str]] = []

    def start(self, index: int) -> subprocess.Popen[str]:
        words, environment = ["bash", os.fspath(self.script)], {**self.environment, "VC_TASK_INDEX": str(index)}
        pod = subprocess.Popen(
            words, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self.running.append(pod)
        return pod

    def end(self, pod: subprocess.Popen[str]) -> int:
        # Not the end of its output: what the end of a container takes along keeps that open.
        return pod.wait(40)

    def exit(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "exit.json").read_text())
        return found

    def log(self, index: int = 0) -> str:
        path = self.directory / (f"output.{index}.log" if index else "output.log")
        return path.read_text() if path.exists() else ""

    def wait_for_log(self, text: str, index: int = 0) -> None:
        wait_for(lambda: text in self.log(index), lambda: f"{text!r} in the log of {index}: {self.log(index)!r}")

    def close(self) -> None:
        # Also what leads a group of its own: the end of a container would take it along.
        kill_all_with(SUBMISSION, self.environment[SUBMISSION])
        for pod in self.running:
            pod.wait()
            assert pod.stdout is not None
            pod.stdout.close()


@pytest.fixture
def make_pods(tmp_path: Path) -> Iterator[Any]:
    made: list[Pods] = []

    def make(command: str, nodes: int = 1, **words: Any) -> Pods:
        made.append(Pods(tmp_path / "a'; echo foo", command, nodes, **words))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("status", [0, 3])
def test_one_pod_runs_the_wrapper(make_pods: Any, status: int) -> None:
    pods = make_pods(f"echo said; exit {status}")
    pod = pods.start(0)
    printed, _ = pod.communicate(timeout=60)
    assert (pod.returncode, pods.exit()["exit_code"], pods.log()) == (status, status, "said\n")
    assert printed == "said\n", "the pod's own log shows it, too"


def test_a_pod_that_is_told_to_end_waits_for_its_command(make_pods: Any) -> None:
    pods = make_pods("trap 'sleep 0.5; echo saved; exit 9' TERM; echo begun; while :; do sleep 0.1; done")
    pod = pods.start(0)
    pods.wait_for_log("begun")
    pod.send_signal(signal.SIGTERM)
    pod.send_signal(signal.SIGTERM)
    assert pods.end(pod) == 9
    assert pods.log().count("saved\n") == 1
    assert pods.exit() == {**pods.exit(), "exit_code": 9, "signal": "TERM"}


def test_a_second_pod_of_the_same_attempt_runs_nothing(make_pods: Any) -> None:
    pods = make_pods('echo begun; until [ -e "$DISPATCHER_ROOT/go" ]; do sleep 0.1; done')
    first = pods.start(0)
    pods.wait_for_log("begun")
    twin = pods.start(0)
    _, errors = twin.communicate(timeout=60)
    assert twin.returncode == DOES_NOT_KNOW
    assert "not started again" in errors
    (pods.script.parents[3] / "go").touch()
    assert pods.end(first) == 0
    assert pods.log() == "begun\n"


def test_every_pod_runs_the_command_under_its_index(make_pods: Any) -> None:
    pods = make_pods(f'{RANK}; echo $DISPATCHER_COORDINATOR "$X"; exit 0', nodes=3, env={"X": "a 'b\nc"})
    started = [pods.start(index) for index in (2, 1, 0)]
    assert [pods.end(pod) for pod in started] == [0, 0, 0]
    texts = [pods.log(index).splitlines() for index in range(3)]
    assert [text[0] for text in texts] == ["0 of 3", "1 of 3", "2 of 3"]
    assert len({text[1] for text in texts}) == 1
    assert texts[0][1].startswith(f"{NAME}-0-worker-0.{NAME}-0:")
    assert {text[2] for text in texts} == {"c"}
    assert not (pods.directory / "nodes.env").exists(), "it may have secrets"


def test_nothing_begins_before_all_are_there(make_pods: Any) -> None:
    pods = make_pods(RANK, nodes=2)
    first = pods.start(0)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(2)
    assert not (pods.directory / "taken").exists()
    second = pods.start(1)
    assert (pods.end(first), pods.end(second)) == (0, 0)


@pytest.mark.parametrize("failing", [0, 1])
def test_the_first_that_fails_ends_the_others(make_pods: Any, failing: int) -> None:
    script = (
        f"trap 'echo told; exit 0' TERM; {RANK}; other=$DISPATCHER_ATTEMPT_DIR/other;"
        f' [ $DISPATCHER_PROCESS_ID = {failing} ] && {{ until [ -e "$other" ]; do sleep 0.1; done; exit 9; }};'
        ' touch "$other"; while :; do sleep 0.1; done'
    )
    pods = make_pods(script, nodes=2)
    first, second = pods.start(0), pods.start(1)
    assert pods.end(first) == 9
    assert pods.end(second) == (9 if failing else 0)
    assert pods.exit()["exit_code"] == 9
    assert "told" in pods.log(1 - failing)
    assert f"dispatcher: error: pod {failing}: exit status 9" in pods.log()
    if failing:
        assert "the end of output.1.log:\n1 of 2" in pods.log()


def test_one_that_volcano_has_ended_does_not_hide_the_one_that_failed(make_pods: Any) -> None:
    """Both are seen in one turn."""
    ends = 'cd "$DISPATCHER_ATTEMPT_DIR"; echo 9 >x; echo 143 >y; mv x node.2.exit; mv y node.1.exit'
    pods = make_pods(f"{RANK}; [ $DISPATCHER_PROCESS_ID = 0 ] && {{ {ends}; }}; sleep 600", nodes=3)
    started = [pods.start(index) for index in range(3)]
    assert pods.end(started[0]) == 9
    for pod in started[1:]:
        pods.end(pod)
    assert "dispatcher: error: pod 2: exit status 9" in pods.log()


def test_a_time_limit_ends_all(make_pods: Any) -> None:
    script = f"trap 'echo told; exit 5' TERM; {RANK}; while :; do sleep 0.1; done"
    pods = make_pods(script, nodes=2, time_limit_s=60, clock_s=1000)
    first, second = pods.start(0), pods.start(1)
    for index in range(2):
        pods.wait_for_log(f"{index} of 2", index)
    pods.clock.passes(60)
    pods.end(first)
    assert pods.end(second) == 5
    assert pods.exit()["reason"] == "time limit"
    assert "told" in pods.log(0)
    assert "told" in pods.log(1)


def test_one_that_does_not_listen_is_killed_after_the_grace_period(make_pods: Any) -> None:
    wait = "until [ -e ready ]; do sleep 0.1; done; exit 4"
    stubborn = "trap '' TERM; touch ready; while :; do sleep 0.1; done"
    script = f'cd "$DISPATCHER_ROOT"; [ $DISPATCHER_PROCESS_ID = 0 ] && {{ {wait}; }}; {stubborn}'
    pods = make_pods(script, nodes=2, grace_s=2)
    first, second = pods.start(0), pods.start(1)
    assert pods.end(first) == 4
    assert pods.end(second) == 137
    assert (pods.directory / "node.1.exit").read_text() == "137\n"


def test_told_by_kubernetes_all_at_once(make_pods: Any) -> None:
    """As when a Job is deleted: each command is told once."""
    told = "trap 'echo told $DISPATCHER_PROCESS_ID' TERM"
    goes = 'until [ -e "$DISPATCHER_ATTEMPT_DIR/go" ]; do sleep 0.1; done'
    pods = make_pods(f"{told}; {RANK}; {goes}; exit 7", nodes=2)
    first, second = pods.start(0), pods.start(1)
    for index in (0, 1):
        pods.wait_for_log(f"{index} of 2", index)
    first.send_signal(signal.SIGTERM)
    second.send_signal(signal.SIGTERM)
    for index in (0, 1):
        pods.wait_for_log(f"told {index}", index)
    (pods.directory / "go").touch()
    assert (pods.end(first), pods.end(second)) == (7, 7)
    # The first log may show the end of the other one.
    assert [pods.log(index).count(f"told {index}") for index in (0, 1)] == [1, 1]


def test_a_superseded_attempt_ends_in_every_pod(make_pods: Any) -> None:
    pods = make_pods(f"{RANK}; while :; do sleep 0.1; done", nodes=2)
    first, second = pods.start(0), pods.start(1)
    pods.wait_for_log("1 of 2", 1)
    (pods.directory / "superseded").touch()
    assert (pods.end(first), pods.end(second)) == (143, 143)
    assert pods.exit()["reason"] == "superseded"


@pytest.mark.parametrize("index", [0, 1])
def test_one_that_is_told_while_it_waits_for_the_others(make_pods: Any, index: int) -> None:
    pods = make_pods(RANK, nodes=2)
    pod = pods.start(index)
    with pytest.raises(subprocess.TimeoutExpired):
        pod.wait(1)
    pod.send_signal(signal.SIGTERM)
    assert pods.end(pod) == 143
    assert pods.log(index) == ""


@pytest.mark.parametrize("names", [["node.1.taken"], ["node.1.exit.new", "node.1.exit"]], ids=["taken", "exit"])
def test_a_pod_that_cannot_write_on_a_full_volume_fails(make_pods: Any, names: list[str]) -> None:
    pods = make_pods("exit 0", nodes=2)
    for name in names:
        (pods.directory / name).symlink_to("/dev/full")
    pods.start(0)
    other = pods.start(1)
    _, said = other.communicate(timeout=40)
    assert other.returncode == 1
    assert f"{names[-1]} cannot be written: is the volume full?" in said


def test_a_pod_of_another_job_does_not_join(make_pods: Any) -> None:
    """Somebody has made the Job again: pod 1 was there before, and does not run a second time."""
    pods = make_pods(f'{RANK}; until [ -e "$DISPATCHER_ROOT/go" ]; do sleep 0.1; done', nodes=2)
    first, second = pods.start(0), pods.start(1)
    pods.wait_for_log("1 of 2", 1)
    twin = pods.start(1)
    _, errors = twin.communicate(timeout=60)
    assert twin.returncode == 1
    assert "pod 1 not started again" in errors
    (pods.script.parents[3] / "go").touch()
    assert (pods.end(first), pods.end(second)) == (0, 0)
    assert pods.log(1) == "1 of 2\n"
