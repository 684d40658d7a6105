"""All workers of a TPU VM answer as one host: real gcloud, real sshd, two workers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from beds.tpu import TpuBed
from fleet import wait_until
from outlets.remote.calls import ask

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.connection import Connection
from dispatcher.outlets.remote.operations import (
    Check,
    Checked,
    Deliver,
    Delivered,
    Hello,
    Launch,
    Launched,
    Look,
    Operation,
    Read,
    Seen,
)
from dispatcher.outlets.tpu.workers import EXCLUSIVE, WorkersRoad

# Without `take`, which the real wrapper has: this one tells what it was given, and ends when the file `go` appears.
WRAPPER = b"""\
cd "$DISPATCHER_ATTEMPT_DIR"
set -o noclobber
{ echo "$(hostname) $$" >taken; } || exit 1
env >environment
echo "$(hostname) has begun" >output.log
trap 'echo "{\\"exit_code\\": 143, \\"ended_at\\": \\"$(date +%T.%N)\\"}" >exit.json; exit 143' TERM
until [ -e go ]; do sleep 0.02; done
echo "{\\"exit_code\\": $(cat go), \\"ended_at\\": \\"$(date +%T.%N)\\"}" >exit.json
"""


class Pod:
    """A VM of two workers, and attempts there."""

    def __init__(self, bed: TpuBed) -> None:
        self.bed = bed
        self.workers = bed.create("pod", "v4-16")
        self.connection = self.connect()
        self.base = f"{ask(self.connection, Hello(directories={'base': '~'})).directories['base']}/it's; $(x)"

    def connect(self) -> Connection:
        host = TpuHost(name="pod", cluster="pod", zone=self.bed.zone, accelerator_type="v4-16")
        return Connection("pod", WorkersRoad(host))

    def ask(self, *operations: Operation) -> object:
        wait_until(lambda: self.connection.free_in_s() == 0, "a call is allowed")
        return ask(self.connection, *operations, timeout_s=120)

    def directory(self, name: str) -> str:
        return f"{self.base}/{name}"

    def deliver(self, name: str, script: bytes = WRAPPER) -> Deliver:
        return Deliver(directory=self.directory(name), files={"job.sh": script}, executable=["job.sh"])

    def launch(self, name: str) -> Launch:
        return Launch(directory=self.directory(name), root="/", environment={"SECRET": "x y"}, exclusive=EXCLUSIVE)

    def begin(self, name: str) -> Launched:
        delivered, launched = self.ask(self.deliver(name), self.launch(name))
        assert delivered == Delivered()
        assert isinstance(launched, Launched), launched
        assert launched.outcome == "started", launched
        for worker in self.workers:
            wait_until(lambda worker=worker: self.file(worker, name, "output.log"), "it has begun")
        return launched

    def file(self, worker: object, name: str, file: str) -> str:
        path = worker.path(f"it's; $(x)/{name}/{file}")
        return path.read_text() if path.exists() else ""

    def end(self, worker: object, name: str, code: int) -> None:
        worker.path(f"it's; $(x)/{name}/go").write_text(f"{code}\n")

    def check(self, name: str) -> Checked:
        (found,) = self.ask(Check(directories=[self.directory(name)])).attempts
        return found

    def look(self, name: str) -> Seen:
        names = ["taken", "exit.json", "progress.json"]
        (seen,) = self.ask(Read(looks=[Look(directory=self.directory(name), log_at=0)], names=names)).seen
        return seen


@pytest.fixture
def pod(tpu: TpuBed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    for name, value in tpu.env.items():
        monkeypatch.setenv(name, value)
    made = Pod(tpu)
    yield made
    made.connection.close()


def variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_an_attempt_runs_on_all_workers(pod: Pod) -> None:
    greeting = pod.ask(Hello(programs=["bash", "no-such-program"]))
    assert (greeting.host, set(greeting.programs)) == (pod.workers[0].name, {"bash"})
    assert pod.begin("a").host == pod.workers[0].name
    told = [variables(pod.file(worker, "a", "environment")) for worker in pod.workers]
    assert [each["DISPATCHER_PROCESS_ID"] for each in told] == ["0", "1"]
    assert {each["DISPATCHER_NUM_PROCESSES"] for each in told} == {"2"}
    (coordinator,) = {each["DISPATCHER_COORDINATOR"] for each in told}
    assert coordinator.rpartition(":")[0] == pod.workers[0].address
    assert {each["SECRET"] for each in told} == {"x y"}
    found = pod.check("a")
    assert (found.is_alive, found.was_launched, found.was_taken) == (True, True, True)
    assert pod.look("a").log.decode() == f"{pod.workers[0].name} has begun\n"
    pod.end(pod.workers[0], "a", 0)
    wait_until(lambda: pod.file(pod.workers[0], "a", "exit.json"), "worker 0 has ended")
    seen = pod.look("a")
    assert (seen.is_alive, "exit.json" in seen.files, "taken" in seen.files) == (True, False, True)
    pod.end(pod.workers[1], "a", 0)
    wait_until(lambda: pod.check("a").has_exit, "all have ended")
    seen = pod.look("a")
    assert json.loads(seen.files["exit.json"])["exit_code"] == 0
    assert seen.files["output.1.log"].decode() == f"{pod.workers[1].name} has begun\n"
