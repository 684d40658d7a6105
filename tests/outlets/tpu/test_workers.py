"""All workers of a TPU VM answer as one host: real gcloud, real sshd, two workers."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import zlib
from pathlib import Path

import msgspec
import pytest
from fleet import wait_until
from outlets.remote.calls import ask, unreached
from outlets.tpu.pods import PATIENCE_S, Pod

from dispatcher.outlets.remote.connection import Lane
from dispatcher.outlets.remote.operations import (
    AttemptRead,
    Check,
    Delivered,
    Failed,
    FileSizes,
    Has,
    Hello,
    Launched,
    Read,
    Store,
    Stored,
)
from dispatcher.outlets.tpu.workers import EXCLUSIVE

pytestmark = pytest.mark.timeout(900)


def variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_nothing_is_launched_on_a_vm_that_is_of_another_size_by_now(pod: Pod) -> None:
    pod.connection.close()
    pod.connection = pod.connect(accelerator_type="v4-32")
    why = unreached(pod.connection, [pod.deliver("a"), pod.launch("a")], patience_s=PATIENCE_S)
    assert "the TPU VM pod is a v4-16, and hosts.pod.accelerator_type says v4-32" in why
    assert not [worker for worker in pod.workers if pod.file(worker, "a", "taken")]


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
    assert pod.look("a").grown["output.log"].content.decode() == f"{pod.workers[0].name} has begun\n"
    pod.end(pod.workers[0], "a", 0)
    wait_until(lambda: pod.file(pod.workers[0], "a", "exit.json"), "worker 0 has ended")
    seen = pod.look("a")
    assert (seen.is_alive, "exit.json" in seen.files, "taken" in seen.files) == (True, False, True)
    pod.end(pod.workers[1], "a", 0)
    wait_until(lambda: pod.file(pod.workers[1], "a", "exit.json"), "worker 1 has ended")
    assert pod.check("a").has_exit
    seen = pod.look("a")
    assert json.loads(seen.files["exit.json"])["exit_code"] == 0
    assert seen.files["output.1.log"].decode() == f"{pod.workers[1].name} has begun\n"


def test_one_worker_fails_and_the_others_are_stopped(pod: Pod) -> None:
    pod.begin("a")
    pod.end(pod.workers[1], "a", 3)
    wait_until(lambda: pod.file(pod.workers[1], "a", "exit.json"), "worker 1 has failed")
    assert "exit.json" not in pod.look("a").files
    wait_until(lambda: pod.file(pod.workers[0], "a", "exit.json"), "the others are stopped")
    seen = pod.look("a")
    assert json.loads(seen.files["exit.json"]) | {"ended_at": ""} == {"exit_code": 3, "ended_at": "", "worker": 1}
    assert seen.files["output.1.log"].decode() == f"{pod.workers[1].name} has begun\n"
    assert json.loads(pod.file(pod.workers[0], "a", "exit.json"))["exit_code"] == 143


def test_a_worker_whose_processes_are_gone_explains_the_end(pod: Pod) -> None:
    pod.begin("a")
    pod.workers[1].run("pkill", "-KILL", "-f", "job.sh")
    assert pod.check("a").is_alive is True
    wait_until(lambda: pod.file(pod.workers[0], "a", "exit.json"), "the others are stopped")
    found = pod.check("a")
    assert (found.has_exit, found.host) == (False, pod.workers[1].name)
    assert "exit.json" not in pod.look("a").files


def test_one_attempt_at_a_time_has_the_vm(pod: Pod) -> None:
    lock = Read(looks=[AttemptRead(directory=EXCLUSIVE)], names=())
    pod.begin("a")
    other = pod.connect()
    delivered, launched = ask(other, pod.deliver("b"), pod.launch("b"), timeout_s=120, patience_s=PATIENCE_S)
    other.close()
    assert delivered == Delivered()
    assert isinstance(launched, Launched)
    assert launched.outcome == "no_room"
    assert launched.why == f"the attempt {pod.directory('a')} runs there"
    # The other worker was not asked, and has the files all the same.
    assert not pod.file(pod.workers[1], "b", "launch.json")
    assert pod.file(pod.workers[1], "b", "job.sh")
    assert pod.ask(lock).seen[0].is_alive is True
    for worker in pod.workers:
        pod.end(worker, "a", 0)
    wait_until(lambda: all(pod.file(worker, "a", "exit.json") for worker in pod.workers), "it has ended")
    assert pod.ask(lock).seen[0].is_alive is False
    assert pod.ask(pod.launch("b")).outcome == "started"
    # The same again finds it.
    assert pod.ask(pod.launch("b")).outcome in ("alive", "taken")


def test_a_launch_that_one_worker_cannot_do_leaves_nothing_behind(pod: Pod) -> None:
    pod.workers[1].path("it's; $(x)").mkdir()
    pod.workers[1].path("it's; $(x)/a").write_text("in the way")
    delivered, launched = pod.ask(pod.deliver("a"), msgspec.structs.replace(pod.launch("a"), only_after=1))
    assert isinstance(delivered, Failed)
    assert isinstance(launched, Failed)
    assert delivered.error.startswith(f"worker 1: {pod.directory('a')}: ")
    assert not [line for line in pod.workers[0].run("ps", "-eo", "args").splitlines() if "job.sh" in line]


def test_a_launch_that_was_cut_off_is_completed(pod: Pod) -> None:
    """Worker 1 goes away when worker 0 has launched: what is known of the attempt has it submitted again."""
    pod.ask(pod.deliver("a"))
    pod.workers[1].stop_sshd()
    assert "worker 1 of 2" in unreached(pod.connection, [pod.launch("a")], timeout_s=120, patience_s=PATIENCE_S)
    pod.workers[1].start_sshd()
    found = pod.check("a")
    assert (found.was_launched, found.is_alive) == (False, False)
    _, launched = pod.ask(pod.deliver("a"), pod.launch("a"))
    assert launched.outcome == "alive"
    wait_until(lambda: pod.file(pod.workers[1], "a", "output.log"), "it has begun on worker 1")
    assert pod.check("a").is_alive is True


def test_a_worker_that_is_down_is_named(pod: Pod) -> None:
    pod.begin("a")
    pod.workers[1].power_cut()
    impatient = pod.connect(call_limit_s=20.0)
    why = unreached(impatient, [Check(directories=[pod.directory("a")])], timeout_s=300, patience_s=PATIENCE_S)
    impatient.close()
    # Not after all the times that gcloud would try.
    assert why.startswith("pod: no answer within 20 s: worker 1 of 2 gave no answer: ssh: connect to host")
    assert "worker 0 of" not in why


def test_a_vm_that_is_not_there_is_told_in_words(pod: Pod) -> None:
    pod.bed.set("pod", state="PREEMPTED")
    why = unreached(pod.connection, [Hello()], patience_s=PATIENCE_S)
    assert why == 'pod: This TPU has terminal state "PREEMPTED", so it cannot be used anymore.'
    pod.bed.gcloud("delete", "pod", check=True)
    connection = pod.connect()
    assert "NOT_FOUND" in unreached(connection, [Hello()], patience_s=PATIENCE_S)
    wait_until(lambda: connection.free_in_s() == 0, "a call is allowed")
    assert "NOT_FOUND" in unreached(connection, [pod.launch("a")], patience_s=PATIENCE_S)
    connection.close()


def test_what_may_be_secret_or_is_large_goes_by_file(pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No argument of a program has it; what was sent is removed from the workers."""
    calls = record_gcloud(tmp_path, monkeypatch)
    archive = tmp_path / "code it's.tar"
    archive.write_bytes(os.urandom(20 << 20))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    path = f"{pod.directory('code')}/{digest}.tar"
    store = Store(path=path, source=os.fspath(archive), size=20 << 20, sha256=digest)
    assert pod.ask(Has(paths=[path])) == FileSizes(sizes=[None])
    assert pod.ask(store, lane=Lane.TRANSFER) == Stored()
    assert pod.ask(Has(paths=[path])) == FileSizes(sizes=[20 << 20])
    pod.workers[1].path(f"it's; $(x)/code/{digest}.tar").unlink()
    assert pod.ask(Has(paths=[path])) == FileSizes(sizes=[None])
    wrong = msgspec.structs.replace(store, sha256="0" * 64)
    answer = pod.ask(wrong, lane=Lane.TRANSFER)
    assert isinstance(answer, Failed)
    assert answer.error.startswith("worker 1: ") and "checksum" in answer.error
    # An environment, which `launch` has, and a question that is too long for an argument.
    pod.begin("a")
    many = [f"/{number}/{os.urandom(20).hex()}" for number in range(6000)]
    assert pod.ask(Has(paths=many)) == FileSizes(sizes=[None] * 6000)
    said = calls.read_text()
    assert "SECRET" not in said
    assert said.count(" scp ") == 5
    for line in said.splitlines():
        for word in re.findall(r"[A-Za-z0-9+/=]{200,}", line):
            assert b"SECRET" not in unpacked(base64.b64decode(word))
    assert pod.workers[0].run("find", "/root", "/home", "/tmp", "-xdev", "-name", ".dispatcher-*") == ""


def record_gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the words of all calls of gcloud from now on."""
    real = shutil.which("gcloud")
    program, said = tmp_path / "bin" / "gcloud", tmp_path / "said"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\necho "$*" >>{shlex.quote(os.fspath(said))}\nexec {real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return said


def unpacked(request: bytes) -> bytes:
    """The document in a request of the agent."""
    length, _, rest = request.partition(b"\n")[2].partition(b"\n")
    return zlib.decompress(rest[int(length) + 1 :].partition(b"\n")[2])
