"""When an attempt of another host is lost: what its free lock proves, and what only heartbeats do."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from fleet import Fleet, shell, wait_until
from sessions import kill_session

from dispatcher.base import host
from dispatcher.base.mounts import Mount
from dispatcher.config import load_config
from dispatcher.outlets.base import Key
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.kinds import make_outlets
from dispatcher.pod.recover import Found, Recovery
from dispatcher.run_state import liveness, observer
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.nfs import Server
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import AttemptPaths, Layout

LEASE_S = 15
# The wrapper's two looks and its grace period, by the configuration below.
GUARD_S = 2 * 30 + 1
RECORD = Record(state=State.RUNNING, pod="theirs", attempt=1, host="elsewhere", pid=7)


class Scene:
    """A workspace on NFS with an attempt of a pod of another host, whose locks are free; its wrapper may live."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layout = Layout(root)
        self.layout.config_file.write_text("lost_after: 10m\nheartbeat: 1s\nkill_grace: 1s\n")
        self.paths: AttemptPaths = self.layout.attempt("a", 1)
        self.paths.directory.mkdir(parents=True)
        self.paths.claimant.write_text("theirs\nelsewhere x 1\n")
        self.layout.pods_dir.mkdir()
        self.layout.pod_lock("theirs").touch()
        self.pod = liveness.PodInfo(
            pod="theirs", host="elsewhere", boot_id="x", pid_namespace=1, pid=7, start_ticks=7, user="u",
            started_at="", heartbeat=1, heartbeat_s=1.0, lock="flock",
        )  # fmt: skip
        self.beat()
        self.now_s = 1000.0
        self.server = Server(1, LEASE_S)
        monkeypatch.setattr(observer.nfs, "server_of", lambda point: self.server)
        config = load_config(self.layout)
        watch = liveness.Watch(lambda: self.now_s, longest_gap_s=15)
        mount = Mount(str(root), "nfs4", "server:/export", "rw")
        seen = Observer(self.layout, config.lost_after_s, lambda: True, watch, mount)
        outlets = make_outlets(PodContext(pod="mine", config=config, observer=seen, log=print, cpu_slots=1))
        self.recovery = Recovery(self.layout, "mine", outlets, seen)

    def beat(self) -> None:
        self.pod.heartbeat += 1
        liveness.write_pod(self.layout, self.pod)

    def restart_server(self) -> None:
        self.server = msgspec.structs.replace(self.server, connections=self.server.connections + 1)

    def found_after(self, limit_s: float) -> float | None:
        """After how many seconds the attempt is found to be lost, looking every second; None when not in this time."""
        begun_s = self.now_s
        while self.now_s - begun_s <= limit_s:
            found = self.recovery.find([("a", RECORD)])
            if found:
                assert [(one.key, one.ended.exit_code) for one in found] == [(Key("a", 1), None)]
                return self.now_s - begun_s
            self.now_s += 1
        return None


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_a_free_lock_and_a_still_heartbeat_are_enough_where_the_server_runs_on(scene: Scene) -> None:
    after_s = scene.found_after(200)
    assert after_s is not None
    assert after_s == pytest.approx(LEASE_S + GUARD_S, abs=3)
    assert scene.paths.superseded.exists()


def test_a_free_lock_after_a_restart_proves_nothing(scene: Scene) -> None:
    scene.recovery.find([("a", RECORD)])
    for _ in range(2):
        scene.restart_server()
        assert scene.found_after(31) is None
    assert scene.found_after(500) is None
    assert not scene.paths.superseded.exists(), "its wrapper was told to stop, although it may live"
    for _ in range(200):
        scene.beat()
        assert scene.found_after(4) is None, "its client has recovered, though its attempts' locks are lost for good"


def test_a_host_that_does_not_come_back_is_given_up_after_lost_after(scene: Scene) -> None:
    scene.recovery.find([("a", RECORD)])
    scene.restart_server()
    after_s = scene.found_after(1000)
    assert after_s is not None
    assert after_s == pytest.approx(600 + GUARD_S, abs=3)


def test_a_restart_between_two_looks_is_noticed_before_a_lock_is_believed(scene: Scene) -> None:
    assert scene.found_after(LEASE_S - 2) is None
    held = liveness.is_held
    restarted = []

    def restart_meanwhile(path: Path) -> bool | None:
        if not restarted:
            restarted.append(True)
            scene.restart_server()
        return held(path)

    scene.now_s += 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liveness, "is_held", restart_meanwhile)
        assert scene.recovery.find([("a", RECORD)]) == []
    assert restarted
    assert not scene.paths.superseded.exists()


def test_what_says_how_it_ended_has_ended(scene: Scene) -> None:
    scene.recovery.find([("a", RECORD)])
    scene.restart_server()
    scene.pod.phase = "ended"
    scene.beat()
    scene.paths.exit.write_text('{"exit_code": 3, "reason": "", "ended_at": "2026-06-17T22:00:00Z"}\n')
    (found,) = scene.recovery.find([("a", RECORD)])
    assert found.ended.exit_code == 3


def test_a_process_of_this_host_that_is_gone_needs_no_lock(scene: Scene) -> None:
    """The server has just restarted; the dispatcher and its job were of this very host."""
    scene.recovery.find([("a", RECORD)])
    scene.restart_server()
    here = {"host": host.host_name(), "boot_id": host.boot_id(), "pid_namespace": host.pid_namespace()}
    scene.pod = msgspec.structs.replace(scene.pod, pid=4194304, **here)
    scene.beat()
    scene.paths.claimant.write_text(f"theirs\n{host.here()}\n")
    (found,) = scene.recovery.find([("a", RECORD)])
    assert isinstance(found, Found)


def test_the_last_sign_of_an_attempt_without_an_end_is_looked_up_before_it_is_recorded(scene: Scene) -> None:
    scene.paths.log.write_text("the last words\n")
    os.utime(scene.paths.log, (1_790_000_000, 1_790_000_000))
    os.utime(scene.paths.claimant, (1_790_000_100, 1_790_000_100))
    scene.found_after(200)
    (found,) = scene.recovery.find([("a", RECORD)])
    assert found.last_seen_at == now_text(1_790_000_000)


def test_the_log_of_an_attempt_is_read_while_others_have_the_lock(fleet: Fleet) -> None:
    """The disk with the log of a dead dispatcher's attempt may hang: here whoever opens it waits for a lease to end."""
    fleet.write_manifest([shell("a", "echo begun; exec sleep 600"), shell("b", "true", needs=["a"])])
    first = fleet.start("first")
    pid = fleet.wait_running("a")
    first.kill()
    kill_session(pid)
    with leased(fleet.attempt("a").log):
        second = fleet.start("second")
        wait_until(lambda: is_opening(second.pid), "the log is read")
        fleet.run("hold", "b")
        assert fleet.record("b").state == "held"
        wait_until(lambda: is_opening(second.pid), "the log is still waited for")
    wait_until(lambda: "auto_requeued" in fleet.events("a"), "its end is recorded")
    fleet.run("cancel", "a")
    attempt, *_ = json.loads(fleet.run("show", "a", "--json"))["attempts"]
    assert attempt["reason"] == "lost" and attempt["ended_at"] is None and "lost" in fleet.run("show", "a")


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """Whoever opens the file meanwhile waits, for at most 45 s."""
    before = signal.signal(signal.SIGIO, lambda *_: None)
    fd = os.open(path, os.O_RDWR)
    try:
        wait_until(lambda: has_lease(fd), "nobody else has the file open")
        yield
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def has_lease(fd: int) -> bool:
    try:
        return fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK) == 0
    except BlockingIOError:
        return False


def is_opening(pid: int) -> bool:
    """Whether a process waits for a lease to end, and not in one of its other opens. Signals wake it for a moment."""
    waits_in = Path(f"/proc/{pid}/wchan").read_text()
    # Kernels that do not tell their functions have a 0 there; then it is one of its other opens, too.
    return waits_in == "__break_lease" or (waits_in == "0" and Path(f"/proc/{pid}/syscall").read_text() != "running\n")
