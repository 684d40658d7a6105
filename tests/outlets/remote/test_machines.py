"""An attempt that has a machine to itself, and one that runs on several machines."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from outlets.remote.calls import ask
from outlets.remote.test_launch import Host, place

from dispatcher.outlets.remote.agent import machine
from dispatcher.outlets.remote.operations import AttemptFiles, AttemptRead, Failed, Read

# All of it.
LOG = {"output.log": (0, 0)}

pytestmark = pytest.mark.slow

__all__ = ["place"]

WORKERS = (("10.0.0.2",), ("10.0.0.3", "198.18.0.3"))


def reached_at(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("SSH_CONNECTION", f"192.0.2.1 50000 {address} 22")


def variables(directory: str) -> dict[str, str]:
    lines = (Path(directory) / "environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line.startswith("DISPATCHER_"))


def look(place: Host, directory: str) -> AttemptFiles:
    names = ["taken", "exit.json", "progress.json"]
    (seen,) = ask(place.connection, Read(looks=[AttemptRead(directory=directory, growing=LOG)], names=names)).seen
    assert isinstance(seen, AttemptFiles)
    return seen


def test_a_machine_is_given_to_one_attempt_at_a_time(place: Host) -> None:
    common = os.fspath(place.base / "common")
    first = place.begin("1", exclusive=common)
    second = place.deliver("2")
    answer = place.launch(second, exclusive=common)
    assert (answer.outcome, answer.why) == ("no_room", f"the attempt {first} runs there")
    assert look(place, common).is_alive is True
    # Those that need none of it run beside.
    place.end(place.begin("3"))
    place.end(first)
    assert look(place, common).is_alive is False
    assert place.launch(second, exclusive=common).outcome == "started"
    place.end(second)
    # Whoever comes first, all users of the machine get in.
    assert stat.S_IMODE(os.stat(common).st_mode) == 0o1777
    assert stat.S_IMODE(os.stat(f"{common}/alive").st_mode) == 0o666


def test_each_machine_has_its_number(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("10.0.0.3", "198.18.0.3"):
        reached_at(monkeypatch, address)
        directory = place.begin(address, workers=WORKERS)
        told = variables(directory)
        assert (told["DISPATCHER_PROCESS_ID"], told["DISPATCHER_NUM_PROCESSES"]) == ("1", "2")
        host, _, port = told["DISPATCHER_COORDINATOR"].rpartition(":")
        assert host == "10.0.0.2"
        assert 10000 <= int(port) < 30000
        place.end(directory)


def test_one_machine_alone_is_told_nothing(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    reached_at(monkeypatch, "10.0.0.2")
    directory = place.begin("1", workers=WORKERS[:1])
    assert not {"DISPATCHER_PROCESS_ID", "DISPATCHER_NUM_PROCESSES", "DISPATCHER_COORDINATOR"} & set(
        variables(directory)
    )
    place.end(directory)


def test_a_machine_that_is_none_of_them_starts_nothing(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = place.deliver("1")
    for address, named in (("10.0.0.4", "10.0.0.4"), (None, "no address")):
        if address is None:
            monkeypatch.delenv("SSH_CONNECTION")
        else:
            reached_at(monkeypatch, address)
        answer = place.launch(directory, workers=WORKERS)
        assert isinstance(answer, Failed)
        assert f"reached this machine at {named}" in answer.error
        assert "10.0.0.2, 10.0.0.3" in answer.error
    assert not place.check(directory).was_launched


def test_a_directory_that_machines_share_is_refused(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one would find the attempt launched, and not run it."""
    reached_at(monkeypatch, "10.0.0.2")
    directory = place.begin("1", workers=WORKERS)
    reached_at(monkeypatch, "10.0.0.3")
    answer = place.launch(directory, workers=WORKERS)
    assert isinstance(answer, Failed)
    assert "share this directory" in answer.error
    place.end(directory)


def test_further_machines_tell_the_end_of_their_log(place: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    reached_at(monkeypatch, "10.0.0.3")
    directory = place.begin("1", workers=WORKERS)
    (Path(directory) / "output.log").write_bytes(b"x" * 100_000 + b"the end\n")
    (Path(directory) / "progress.json").write_text("{}")
    seen = look(place, directory)
    assert (set(seen.files), seen.grown, seen.log_end) == ({"taken"}, {}, None)
    place.end(directory)
    seen = look(place, directory)
    assert set(seen.files) == {"taken", "exit.json"}
    assert seen.log_end is not None
    assert len(seen.log_end) == 65536
    assert seen.log_end.endswith(b"xthe end\n")


def test_lock_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    paths = [os.fspath(tmp_path / name) for name in ("libtpu_lockfile", "libtpu.so_lockfile", "missing")]
    for path in paths[:2]:
        Path(path).touch()
    with open(paths[0], "rb") as used, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=used):
        machine.remove_left_locks(paths)
        assert sorted(os.listdir(tmp_path)) == ["libtpu.so_lockfile", "libtpu_lockfile"]
    machine.remove_left_locks(paths)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes files of others")
def test_lock_files_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "libtpu_lockfile"
    path.touch()
    os.chown(path, 12345, 12345)
    machine.remove_left_locks([os.fspath(path)])
    assert path.exists()
