"""Attempts as processes of a host: started once, found again, stopped, and their GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet import wait_until
from outlets.remote.calls import ask, wait
from outlets.remote.nvidia_smi import SCRIPT, gpus

from dispatcher.base import host
from dispatcher.base.users import user_name
from dispatcher.hosts.types import PlainHost
from dispatcher.outlets.local import processes
from dispatcher.outlets.remote.agent import gpus as agent_gpus
from dispatcher.outlets.remote.connection import Connection
from dispatcher.outlets.remote.operations import (
    AttemptRead,
    Check,
    Checked,
    Failed,
    GpuInfo,
    GpuList,
    Launch,
    Launched,
    ListGpus,
    Read,
    Signal,
    Signalled,
)
from dispatcher.outlets.remote.transport import LocalTransport
from dispatcher.outlets.solver.plain import gpus_for

# All of it.
LOG = {"output.log": (0, 0)}

pytestmark = pytest.mark.slow

# What a wrapper does first and last. It ends when the file `go` appears.
WRAPPER = """\
set -o noclobber
{ read -r host </proc/sys/kernel/hostname; echo "$host $$" >"$DISPATCHER_ATTEMPT_DIR/taken"; } || exit 1
cd "$DISPATCHER_ATTEMPT_DIR"
env >environment
echo "$1" >begun
until [ -e go ]; do sleep 0.02; done
echo '{"exit_code": 0, "reason": "", "ended_at": ""}' >exit.json
"""


class Host:
    """This machine as a host, with attempts below a directory whose name shells choke on."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.connection = Connection("here", LocalTransport("here"))

    def directory(self, name: str) -> Path:
        return self.base / "a'; b\n" / name

    def deliver(self, name: str, script: str = WRAPPER) -> str:
        directory = self.directory(name)
        directory.mkdir(parents=True)
        (directory / "job.sh").write_text(script)
        return os.fspath(directory)

    def launch(self, directory: str, **words: Any) -> Any:
        return ask(self.connection, Launch(directory=directory, root=os.fspath(self.base), **words))

    def check(self, directory: str) -> Checked:
        (found,) = ask(self.connection, Check(directories=[directory])).attempts
        assert isinstance(found, Checked)
        return found

    def begin(self, name: str, script: str = WRAPPER, **words: Any) -> str:
        directory = self.deliver(name, script)
        answer = self.launch(directory, **words)
        assert isinstance(answer, Launched), answer
        assert answer.outcome == "started", answer.why
        wait_until((Path(directory) / "begun").exists, "it has begun")
        return directory

    def end(self, directory: str) -> Checked:
        (Path(directory) / "go").touch()
        wait_until(lambda: not self.check(directory).is_alive, "it has ended")
        return self.check(directory)

    def close(self) -> None:
        wait_until(self._kill_all, "nothing is left")
        self.connection.close()

    def _kill_all(self) -> bool:
        left = [pid for directory in self.base.glob("a'*/*") for pid in processes.of_attempt(directory)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("DISPATCHER_GPU_LOCKS", os.fspath(tmp_path / "locks"))
    made = Host(tmp_path)
    try:
        yield made
    finally:
        made.close()


def with_gpus(place: Host, monkeypatch: pytest.MonkeyPatch, listed: str) -> Path:
    """Give the host these GPUs; the directory with their stand-in."""
    programs = place.base / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(SCRIPT)
    (programs / "nvidia-smi").chmod(0o755)
    (programs / "gpus").write_text(listed)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs


def test_it_runs_on_when_the_agent_has_ended(place: Host) -> None:
    directory = place.begin("1", environment={"A": "it's", "HOME": None})
    found = place.check(directory)
    assert (found.is_alive, found.was_launched, found.was_taken, found.has_exit) == (True, True, True, False)
    assert found.host == host.host_name()
    assert found.pid is not None
    assert os.getsid(found.pid) == os.getpgid(found.pid) == found.pid, "it leads a session and a group"
    variables = (Path(directory) / "environment").read_text().splitlines()
    assert "A=it's" in variables
    assert not [each for each in variables if each.startswith("HOME=")]
    assert (Path(directory) / "begun").read_text().strip().isdigit(), "it is told the descriptor of the liveness lock"
    (seen,) = ask(place.connection, Read(looks=[AttemptRead(directory=directory)], names=())).seen
    assert seen.is_alive is True
    ended = place.end(directory)
    assert (ended.is_alive, ended.has_exit, ended.was_rebooted) == (False, True, False)


def test_it_is_started_once(place: Host) -> None:
    directory = place.deliver("1")
    launch = Launch(directory=directory, root="/")
    first, second = ask(place.connection, launch, launch)
    assert (first.outcome, second.outcome, second.pid) == ("started", "alive", first.pid)
    place.end(directory)
    assert place.launch(directory).outcome == "taken"
    # On a full disk its wrapper could not tell that it has taken the attempt.
    (Path(directory) / "taken").unlink()
    assert place.launch(directory).outcome == "taken"


def test_two_that_start_it_at_once(place: Host) -> None:
    directory = place.deliver("1")
    others = [Connection(f"c{number}", LocalTransport("c")) for number in range(4)]
    launch = Launch(directory=directory, root="/")
    calls = [other.call([launch], timeout_s=30) for other in others]
    outcomes = [wait(other, call) for other, call in zip(others, calls, strict=True)]
    names = sorted(answer.outcome for (answer,) in outcomes)  # type: ignore[misc, union-attr]
    assert names.count("started") == 1
    assert set(names) <= {"started", "alive"}
    place.end(directory)
    for other in others:
        other.close()


def test_one_that_was_never_launched(place: Host) -> None:
    directory = place.deliver("1")
    assert place.check(directory) == Checked(is_alive=False, was_launched=False, was_taken=False)
    missing = place.check(f"{directory}/none")
    assert (missing.is_alive, missing.was_launched) == (False, False)
    answer = place.launch(f"{directory}/none")
    assert isinstance(answer, Failed)
    assert "was not delivered" in answer.error


def test_a_wrapper_that_cannot_begin(place: Host) -> None:
    directory = place.deliver("1", "echo no such file >&2; exit 127")
    assert place.launch(directory).outcome == "started"
    wait_until(lambda: not place.check(directory).is_alive, "it has ended")
    found = place.check(directory)
    assert (found.was_launched, found.was_taken, found.has_exit) == (True, False, False)
    assert (Path(directory) / "launch.log").read_text() == "no such file\n"


def test_what_cannot_be_started_can_be_tried_again(place: Host) -> None:
    directory = place.deliver("1")
    failed = ask(place.connection, Launch(directory=directory, root="/none/such"))
    assert isinstance(failed, Failed)
    assert "/none/such" in failed.error
    assert place.check(directory).was_launched is False
    assert place.launch(directory).outcome == "started"
    place.end(directory)


def test_term_goes_to_the_wrapper_and_kill_to_all(place: Host) -> None:
    script = f"trap 'echo told >told; exit 1' TERM\n{WRAPPER}"
    directory = place.begin("1", script)
    assert ask(place.connection, Signal(directory=directory)) == Signalled(count=1)
    wait_until(lambda: not place.check(directory).is_alive, "it has ended")
    assert (Path(directory) / "told").read_text() == "told\n"
    assert ask(place.connection, Signal(directory=directory)) == Signalled(count=0)
    script = f"trap '' TERM\nsetsid sleep 600 &\n{WRAPPER}"
    directory = place.begin("2", script)
    assert ask(place.connection, Signal(directory=directory, force=True)).count >= 2
    wait_until(lambda: not place.check(directory).is_alive, "all of it has ended, what left its session too")
    assert not processes.of_attempt(Path(directory))


def test_term_reaches_one_that_is_suspended(place: Host) -> None:
    directory = place.begin("1", f"trap 'echo told >told; exit 1' TERM\n{WRAPPER}")
    pid = place.check(directory).pid
    assert pid
    os.killpg(pid, signal.SIGSTOP)
    assert ask(place.connection, Signal(directory=directory)) == Signalled(count=1)
    wait_until(lambda: not place.check(directory).is_alive, "it has ended")
    assert (Path(directory) / "told").exists()


def test_kill_is_faster_than_one_that_forks(place: Host) -> None:
    directory = place.begin("1", f"f() {{ sleep 0.01; f & }}; f\n{WRAPPER}")
    # One that has just ended is not counted.
    assert ask(place.connection, Signal(directory=directory, force=True)).count >= 1
    wait_until(lambda: not processes.of_attempt(Path(directory)), "all of it has ended", timeout_s=10)


def test_what_a_job_has_left_behind_keeps_it_alive(place: Host) -> None:
    directory = place.begin("1", WRAPPER.replace("echo '{", "setsid sleep 600 &\necho '{"))
    (Path(directory) / "go").touch()
    wait_until((Path(directory) / "exit.json").exists, "the wrapper has ended")
    assert place.check(directory).is_alive is True
    assert ask(place.connection, Signal(directory=directory)).count == 1
    wait_until(lambda: not place.check(directory).is_alive, "it was stopped")


def test_a_pid_that_is_another_process_now(place: Host) -> None:
    directory = place.begin("1")
    place.end(directory)
    (Path(directory) / "exit.json").unlink()
    record = Path(directory) / "launch.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "pid": os.getpid()}))
    found = place.check(directory)
    assert (found.is_alive, found.was_launched) == (False, True)
    assert ask(place.connection, Signal(directory=directory, force=True)) == Signalled(count=0)


def test_a_host_that_was_started_anew_and_one_that_is_another(place: Host) -> None:
    directory = place.begin("1")
    place.end(directory)
    (Path(directory) / "exit.json").unlink()
    record = Path(directory) / "launch.json"
    known = json.loads(record.read_text())
    record.write_text(json.dumps({**known, "boot_id": "another"}))
    found = place.check(directory)
    assert (found.is_alive, found.was_rebooted) == (False, True)
    record.write_text(json.dumps({**known, "host": "login2"}))
    found = place.check(directory)
    assert found.is_alive is None
    assert "started on login2" in found.error
    assert isinstance(ask(place.connection, Signal(directory=directory)), Failed)
    # Emptied when the host went down.
    record.write_text("")
    assert place.check(directory).is_alive is False


def test_where_its_log_is(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS", os.fspath(place.base / "lo gs"))
    directory = place.begin("1", WRAPPER + "echo said >>output.log\n", log="$LOGS/p_g_n")
    wait_until(lambda: not place.end(directory).is_alive, "it has ended")
    (log,) = (place.base / "lo gs").iterdir()
    assert log.name.startswith("p_g_n_20")
    assert log.suffix == ".log"
    assert log.read_text() == "said\n"
    (seen,) = ask(place.connection, Read(looks=[AttemptRead(directory=directory, growing=LOG)], names=())).seen
    assert seen.grown["output.log"].content == b"said\n"
    shared = place.begin("2", log=os.fspath(place.base / "shared" / "p"), needs_shared_log=True)
    (link,) = (place.base / "shared").iterdir()
    assert os.readlink(link) == f"{shared}/output.log"
    place.end(shared)


def test_gpus_that_are_free(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = with_gpus(place, monkeypatch, gpus(4))
    busy = subprocess.Popen(["sleep", "600"])
    (programs / "apps").write_text(f"GPU-0, {busy.pid}, 2000\nGPU-1, {busy.pid}, 99\n")
    try:
        first = place.begin("1", gpus=1)
        assert place.check(first).gpus == (1,), "less than 100 MiB is not in use"
        listed = ask(place.connection, ListGpus())
        assert isinstance(listed, GpuList)
        assert [bool(gpu.busy) for gpu in listed.gpus] == [True, True, False, False]
        assert f"pid {busy.pid} ({user_name()}: sleep 600)" in listed.gpus[0].busy
        assert listed.gpus[1].busy == f"given to the attempt {first}"
        assert listed.gpus[0].users[0].used_mib == 2000
        second = place.deliver("2")
        answer = place.launch(second, gpus=3)
        assert answer.outcome == "no_room"
        assert answer.why.startswith("2 of 3 GPUs are free; GPU 0: 2000 MiB used by pid ")
        assert place.check(second).was_launched is False
        assert place.launch(second, gpus=2).gpus == (2, 3)
        variables = (
            wait_until((Path(second) / "environment").exists, "it has begun")
            and (Path(second) / "environment").read_text()
        )
        assert "CUDA_VISIBLE_DEVICES=2,3\n" in variables
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in variables
        place.end(first)
        assert [bool(gpu.busy) for gpu in ask(place.connection, ListGpus()).gpus] == [True, False, True, True]
        place.end(second)
    finally:
        busy.kill()
        busy.wait()


def test_who_uses_a_gpu() -> None:
    user = {"pid": 7, "user": "bob", "command": "python"}

    def use(used_mib: int | None, *sizes: int | None) -> str:
        users = [{**user, "used_mib": size} for size in sizes]
        return agent_gpus.gpu_use({"used_mib": used_mib, "total_mib": None, "users": users})

    assert use(None) == use(99) == use(99, None) == use(None, 99) == ""
    assert use(None, None) == "in use by pid 7 (bob: python), how much of it is not told"
    assert use(200, None) == use(200, 200) == "200 MiB used by pid 7 (bob: python)"
    assert use(1024) == "1024 MiB used by processes that are not shown"
    assert bool(use(900)) is agent_gpus.in_container(), "a desktop, which draws and does not compute"


def test_an_attempt_without_gpus_sees_none(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(place, monkeypatch, gpus(2))
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    directory = place.begin("1", gpus=0)
    variables = (
        wait_until((Path(directory) / "environment").exists, "it has begun")
        and (Path(directory) / "environment").read_text().splitlines()
    )
    assert {"CUDA_VISIBLE_DEVICES=", "ROCR_VISIBLE_DEVICES="} <= set(variables)
    assert not any(line.startswith("HIP_VISIBLE_DEVICES") for line in variables)
    place.end(directory)


@pytest.mark.parametrize(("visible", "left"), [("1,0", [0, 1]), ("GPU-2,1", [1, 2]), ("", []), ("NoDevFiles", [])])
def test_a_login_may_be_kept_to_some_gpus(
    place: Host, monkeypatch: pytest.MonkeyPatch, visible: str, left: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with_gpus(place, monkeypatch, gpus(4))
    listed = ask(place.connection, ListGpus())
    assert [gpu.index for gpu in listed.gpus] == left


def test_dispatchers_that_share_the_gpus_of_a_host(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is first; nobody keeps one of two that another needs both."""
    with_gpus(place, monkeypatch, gpus(4))
    others = [Connection(f"c{number}", LocalTransport("c")) for number in range(4)]
    directories = [place.deliver(str(number)) for number in range(4)]
    calls = [
        other.call([Launch(directory=directory, root="/", gpus=2)], timeout_s=60)
        for other, directory in zip(others, directories, strict=True)
    ]
    answers = [wait(other, call)[0] for other, call in zip(others, calls, strict=True)]  # type: ignore[index]
    assert sorted(answer.outcome for answer in answers) == ["no_room", "no_room", "started", "started"]
    assert sorted(index for answer in answers for index in answer.gpus) == [0, 1, 2, 3]
    for directory, answer, other in zip(directories, answers, others, strict=True):
        other.close()
        if answer.outcome == "started":
            place.end(directory)
    assert [gpu.busy for gpu in ask(place.connection, ListGpus()).gpus] == [""] * 4


def test_chips_of_different_kinds(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(place, monkeypatch, gpus(1, "NVIDIA GeForce RTX 4090") + gpus(2).splitlines(keepends=True)[1])
    directory = place.deliver("1")
    answer = place.launch(directory, gpus=2, chip="rtx-4090", chips=["rtx-4090", "h100"])
    assert (answer.outcome, answer.why) == ("no_room", "1 of 2 GPUs are free; the host has no more")
    assert place.launch(directory, gpus=1, chip="h100", chips=["rtx-4090", "h100"]).gpus == (1,)
    place.end(directory)


def test_only_some_of_the_gpus(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(place, monkeypatch, gpus(4))
    directory = place.deliver("1")
    assert place.launch(directory, gpus=2, only=[3]).outcome == "no_room"
    assert place.launch(directory, gpus=2, only=[1, 3]).gpus == (1, 3)
    place.end(directory)


def test_the_agent_and_the_solver_choose_alike() -> None:
    names = ["NVIDIA L40", "NVIDIA L40S", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090", "Tesla T4"]
    seen = [GpuInfo(index=index, name=name, uuid=str(index)) for index, name in enumerate(names)]
    known = [msgspec.to_builtins(gpu) for gpu in seen]
    for chips in ({"l40": 1, "l40s": 1, "a100": 1}, {"l40": 4}, {"x1": 1, "rtx_4090": 1}):
        for pinned in ("", "0,1,2"):
            host = PlainHost(name="h", cluster="h", ssh="h", chips=chips, env={"CUDA_VISIBLE_DEVICES": pinned})
            for chip in ("", *chips):
                by_solver = [gpu.index for gpu in gpus_for(host, chip, seen)]
                by_agent = agent_gpus.gpus_for(host.visible_gpus, chip, list(chips), known)  # type: ignore[arg-type]
                assert [gpu["index"] for gpu in by_agent] == by_solver


def test_a_host_without_gpus(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = place.deliver("1")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    answer, listed = ask(place.connection, Launch(directory=directory, root="/", gpus=1), ListGpus())
    assert isinstance(answer, Failed)
    assert isinstance(listed, Failed), "that they cannot be counted does not mean that there are none"
    assert "nvidia-smi is not on PATH" in listed.error


def test_an_nvidia_smi_that_prints_something_else(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = place.begin("1")
    with_gpus(place, monkeypatch, "Unable to determine the device handle for GPU0: GPU is lost.\n")
    listed, found = ask(place.connection, ListGpus(), Check(directories=[directory]))
    assert isinstance(listed, Failed)
    assert "ListGpus: ValueError" in listed.error
    assert found.attempts[0].is_alive, "the others are answered all the same"
    place.end(directory)


def test_a_lock_directory_of_somebody_else(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(place, monkeypatch, gpus(1))
    (place.base / "locks").symlink_to("/tmp")
    answer = place.launch(place.deliver("1"), gpus=1)
    assert isinstance(answer, Failed)
    assert "it must be a directory of" in answer.error
