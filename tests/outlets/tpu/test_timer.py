"""A VM without a dispatcher deletes itself: with real gcloud, its metadata server and its own service account."""

from __future__ import annotations

import os
import socketserver
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.tpu import VERSION, TpuBed
from fleet import wait_until

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.operations import Failed, TailRead, Write, Written
from dispatcher.outlets.tpu import dead_man, gcloud, timer
from dispatcher.outlets.tpu.gcloud import queued_id

WORKSPACE = "0123456789ab"
PATIENCE_S = 120.0
SHORT_S = 8.0


def host(**settings: object) -> TpuHost:
    base = {"name": "vm", "cluster": "vm", "zone": "us-central2-b", "accelerator_type": "v4-16", "version": VERSION}
    return TpuHost(**{**base, "dead_after_s": SHORT_S, **settings})


def create(tpu: TpuBed, **settings: object) -> None:
    command = gcloud.create(host(**settings), WORKSPACE)
    tpu.gcloud(command[4], *command[5:], check=True)


@pytest.fixture(autouse=True)
def endpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "tpu" in request.fixturenames:
        tpu: TpuBed = request.getfixturevalue("tpu")
        for name, value in tpu.env.items():
            monkeypatch.setenv(name, value)


def state(tpu: TpuBed, worker: int = 0) -> str:
    return tpu.workers("vm")[worker].run("sh", "-c", f"cat {timer.DIRECTORY}/state", check=False).strip()


def write(tpu: TpuBed, seconds: float, *, is_last: bool = False) -> None:
    """As the agent does, on worker 0 and as a user that is not root."""
    operation = timer.renewal(seconds, is_last=is_last)[0]
    assert isinstance(operation, Write)
    script = f"printf {operation.content.decode()} >{operation.path}"
    tpu.workers("vm")[0].run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script)


@pytest.mark.slow
def test_it_deletes_itself_and_its_own_startup_script_runs_as_before(tpu: TpuBed) -> None:
    own = "#!/usr/bin/env python3\nopen('/run/own', 'w').write('it\\'s mine')\n"
    create(tpu, metadata={timer.STARTUP: own, "a": "b"})
    for worker in tpu.workers("vm"):
        wait_until(lambda worker=worker: worker.run("cat", "/run/own", check=False) == "it's mine", "it has run")
    tpu.wait_for("vm", None, PATIENCE_S)
    assert tpu.requests("nodes.delete") == []
    *_, asked, deleted = tpu.api.vm_requests
    assert (asked.kind, deleted.kind, deleted.name) == ("nodes.get", "nodes.delete", "vm")


@pytest.mark.slow
def test_what_dispatchers_write_counts(tpu: TpuBed) -> None:
    create(tpu)
    wait_until(lambda: state(tpu) == "armed", "it is armed", PATIENCE_S)
    write(tpu, 3600)
    # It was taken in, so the VM outlives its first limit; then the last dispatcher hands it over.
    wait_until(lambda: not tpu.workers("vm")[0].path("/run/dispatcher-tpu/alive").exists(), "it has heard", PATIENCE_S)
    write(tpu, 1, is_last=True)
    tpu.wait_for("vm", None, PATIENCE_S)
    assert not state_of_others(tpu)


def state_of_others(tpu: TpuBed) -> list[str]:
    return [request.name for request in tpu.api.vm_requests if request.name != "vm" and "dead-man" not in request.name]


@pytest.mark.slow
def test_a_request_that_has_brought_it_goes_too(tpu: TpuBed) -> None:
    command = gcloud.create_queued(host(), WORKSPACE)
    tpu.gcloud(command[4], *command[5:], group="queued-resources", check=True)
    tpu.wait_for("vm", "READY", PATIENCE_S)
    tpu.wait_for("vm", None, PATIENCE_S)
    gone = queued_id(WORKSPACE, "vm")
    wait_until(lambda: not tpu.queue.requests, f"{gone} is deleted", PATIENCE_S)
    assert tpu.api.vm_requests[-1].kind == "queuedResources.delete"


@pytest.mark.slow
def test_one_that_cannot_delete_itself_says_so(tpu: TpuBed) -> None:
    tpu.api.vm_may_delete = False
    create(tpu, dead_after_s=3600.0)
    wait_until(
        lambda: state(tpu).startswith("unable: 403 Permission 'tpu.nodes.delete' denied"), "it says so", PATIENCE_S
    )
    assert state(tpu, worker=1) == ""


@pytest.mark.parametrize(
    ("told", "dead_after_s", "expected"),
    [
        ("armed", 7200.0, "vm deletes itself after 2h00m without a dispatcher"),
        ("", 7200.0, "its startup script has not started the timer. On worker 0 `sudo journalctl -u google-"),
        ("unable: 403 no", 600.0, "warning: vm cannot delete itself after 10m00s without a dispatcher, and"),
        ("unable: 403 no", 600.0, "403 no. The VM's service account needs the permission tpu.nodes.delete"),
        ("", None, "vm does not delete itself when no dispatcher is left (dead_after: never)"),
    ],
)
def test_what_people_are_told(told: str, dead_after_s: float | None, expected: str) -> None:
    assert expected in timer.text(host(dead_after_s=dead_after_s), told)


def test_a_vm_that_never_deletes_itself_is_created_as_it_is_configured() -> None:
    assert timer.metadata(host(dead_after_s=None, metadata={"a": "b"})) == {"a": "b"}
    assert timer.metadata(host(metadata={"a": "b"})).keys() == {"a", timer.STARTUP}
    assert (
        os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU")
        or "https://tpu.googleapis.com/" in (timer.metadata(host())[timer.STARTUP])
    )


def test_people_are_told_once_whether_it_can_delete_itself(clock: Callable[[float], None]) -> None:
    said: list[str] = []
    made = timer.Timer(host(dead_after_s=7200.0), said.append)
    assert made.due_in_s() == 0.0
    made.take_in([Written(), TailRead(content=b"armed\n")])
    made.take_in([Written(), TailRead(content=b"armed\n")])
    assert said == ["vm deletes itself after 2h00m without a dispatcher"]
    assert made.is_armed
    assert made.due_in_s() == 900.0
    clock(900.0)
    assert made.due_in_s() == 0.0
    made.start_over()
    made.take_in([Written(), TailRead()])
    assert made.due_in_s() == 30.0
    for _ in range(12):
        made.take_in([Written(), TailRead()])
    assert len(said) == 2
    assert "has not started the timer" in said[1]
    # Each call is one of gcloud to all workers.
    assert made.due_in_s() == 900.0


ARMED = TailRead(content=b"armed\n")


def test_a_renewal_that_has_failed_is_told_and_tried_again_before_the_vm_deletes_itself(
    clock: Callable[[float], None],
) -> None:
    made = timer.Timer(host(dead_after_s=7200.0), lambda _: None)
    made.take_in([Written(), ARMED])
    clock(900.0)
    made.take_in([Failed(error="worker 0: /run/dispatcher-tpu/alive: No space left on device"), ARMED])
    at = time.strftime("%H:%M", time.localtime(time.time() + 6300.0))
    assert made.problem == (
        "the TPU VM vm does not hear that a dispatcher lives: worker 0: /run/dispatcher-tpu/alive: No space left on "
        f"device. It deletes itself at {at} (dead_after: 2h00m) unless a renewal gets there before; that is tried "
        "until then"
    )
    waited_s = 0.0
    pauses = []
    while waited_s < 6300.0:
        pauses.append(made.due_in_s())
        clock(pauses[-1])
        waited_s += pauses[-1]
        # An answer that cannot be read tells nothing of the timer.
        made.take_in([Failed(error="worker 0: no"), Failed(error="worker 0: no")])
    assert pauses[:6] == [30.0, 60.0, 120.0, 240.0, 480.0, 900.0]
    made.take_in([Written(), ARMED])
    assert made.problem == ""
    assert made.due_in_s() == 900.0
    made.missed("its workers do not answer")
    assert "its workers do not answer. It deletes itself at" in made.problem


def test_what_fails_on_other_workers_concerns_no_renewal(clock: Callable[[float], None]) -> None:
    made = timer.Timer(host(dead_after_s=7200.0), lambda _: None)
    made.take_in([Failed(error="worker 1: /run/dispatcher-tpu: Permission denied"), ARMED])
    assert made.problem == ""
    assert made.due_in_s() == 900.0


def test_a_timer_that_takes_in_no_renewal_has_ended(clock: Callable[[float], None]) -> None:
    said: list[str] = []
    made = timer.Timer(host(dead_after_s=7200.0), said.append)
    made.take_in([Written(), ARMED])
    for _ in range(2):
        made.take_in([Written(existed=True), ARMED])
        assert made.is_armed, "it may be the renewal of another dispatcher"
    made.take_in([Written(existed=True), ARMED])
    assert not made.is_armed
    assert (
        "vm cannot delete itself after 2h00m without a dispatcher, and costs money then: its timer has ended"
        in (said[-1])
    )
    made.take_in([Written(), ARMED])
    assert said[-1] == "vm deletes itself after 2h00m without a dispatcher"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """The one that goes on while this computer sleeps: VMs do not sleep meanwhile."""
    now_s = 0.0

    def pass_(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(time, "clock_gettime", lambda clock: now_s if clock == time.CLOCK_BOOTTIME else 0.0)
    return pass_


def test_dispatchers_can_write_on_every_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal is written on all of them, by users that may not make its directory."""
    monkeypatch.setattr(dead_man, "tpu_env", lambda: {"WORKER_ID": "1"})
    dead_man.main(os.fspath(tmp_path / "timer"), "60", "https://example.org/")
    assert stat.S_IMODE((tmp_path / "timer").stat().st_mode) == 0o1777


def test_a_state_that_cannot_be_written_does_not_end_the_timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    class Cloud:
        def __init__(self, endpoint: str) -> None:
            """It can always be asked."""

        def delete(self) -> str:
            steps.append("delete")
            return ""

        def why_unable(self) -> str:
            steps.append("ask")
            return ""

    def sleep(_: float) -> None:
        if "delete" in steps:
            raise SystemExit
        monkeypatch.setattr(dead_man.time, "monotonic", lambda: 1e9)

    (tmp_path / "state.new").mkdir()
    monkeypatch.setattr(dead_man, "tpu_env", lambda: {"WORKER_ID": "0"})
    monkeypatch.setattr(dead_man, "Cloud", Cloud)
    monkeypatch.setattr(dead_man.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(dead_man.time, "sleep", sleep)
    with pytest.raises(SystemExit):
        dead_man.main(os.fspath(tmp_path), "60", "https://example.org/")
    assert steps == ["ask", "delete"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"no HTTP\r\n\r\n", "BadStatusLine"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{}", "IncompleteRead"),
        (b"HTTP/1.0 200 OK\r\n\r\n[]", "TypeError"),
    ],
)
def test_an_answer_that_is_none_does_not_end_the_timer(
    answer: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(dead_man, "METADATA", f"http://127.0.0.1:{server.server_address[1]}/")
        cloud = dead_man.Cloud.__new__(dead_man.Cloud)
        cloud.place = "projects/lab/locations/us-central2-b"
        dead_man.Timer(os.fspath(tmp_path), 60.0, cloud).step()
        server.shutdown()
    assert (tmp_path / "state").read_text().startswith(f"unable: {why}: ")
