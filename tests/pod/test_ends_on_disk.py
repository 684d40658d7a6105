"""Ends are recorded when what they tell of is on the disk."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fleet import wait_until
from syncs import noted_syncs

from dispatcher.base import files
from dispatcher.base.outputs import MetricsTable, Outputs, ResultFile, collect_result, encode, read_outputs
from dispatcher.outlets.base import Ended, Key, Slot
from dispatcher.pod.ends_on_disk import EndsOnDisk
from dispatcher.pod.recover import Found
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.workspace import Layout

Synced = list[tuple[str, list[str]]]
KEY = Key("a", 1)


def collect(directory: Path) -> str:
    return collect_result(directory, read_outputs(directory))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    directory = made.attempt("a", 1).directory
    directory.mkdir(parents=True)
    for name in ("exit.json", "result.json", "entry.json", "output.log", "other.bin"):
        (directory / name).write_text("{}\n")
    return made


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    return noted_syncs(monkeypatch)


def ready(ends: EndsOnDisk, found: Found) -> Callable[[], bool]:
    return lambda: found.key in [one.key for one in ends.found()]


def test_an_end_is_held_back_until_its_files_and_their_names_are_synced(layout: Layout, synced: Synced) -> None:
    ends = EndsOnDisk(layout, print)
    found = Found(KEY, Ended(0))
    assert ends.found([found]) == [] or synced
    wait_until(ready(ends, found), "its files are on the disk")
    # The exit status vouches for the rest.
    names = [name for name, _ in synced]
    assert names == ["entry.json", "output.log", "result.json", "exit.json", "1"]
    ends.commit([found.key])
    assert ends.found() == []
    assert not ends.is_busy
    ends.close()


def test_the_result_that_a_script_leaves_is_there_before_its_end(layout: Layout, synced: Synced) -> None:
    directory = layout.attempt("a", 1).directory
    (directory / "result.json").unlink()
    left = Outputs(ResultFile("out/summary.json"), MetricsTable("log.csv"))
    (directory / "script-outputs.json").write_bytes(encode(left))
    (directory / "out").mkdir()
    (directory / "out" / "summary.json").write_text('{"loss": 1}')
    (directory / "log.csv").write_text("loss\n1\n")
    ends = EndsOnDisk(layout, print)
    found = Found(KEY, Ended(0))
    ends.found([found])
    wait_until(ready(ends, found), "its files are on the disk")
    assert [one.ended for one in ends.found()] == [Ended(0, has_result=True)]
    assert (directory / "result.json").read_text() == '{"loss": 1}\n'
    names = [name for name, _ in synced]
    assert {"summary.json", "log.csv"} < set(names[: names.index("exit.json")])
    ends.close()


def test_an_end_tells_what_its_result_lacks_and_is_held_back_while_that_is_not_known(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = layout.attempt("a", 1).directory
    (directory / "result.json").unlink()
    (directory / "script-outputs.json").write_bytes(encode(Outputs(ResultFile("out.json"))))
    answers = [errno.ESTALE, errno.EACCES]
    read = files.read_at_once

    def reads(path: Path) -> bytes:
        if path.name != "out.json":
            return read(path)
        number = answers.pop(0)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "read_at_once", reads)
    ends = EndsOnDisk(layout, print, try_again_s=0.0)
    one = RunningAttempt(KEY, "local", Slot(), layout.attempt("a", 1))
    one.ended = Ended(0)
    wait_until(lambda: ends.own([one]), "the storage has answered")
    assert one.ended.error == "result: out.json: Permission denied"
    assert answers == []
    # What is not done has no result.
    failed = Found(KEY, Ended(1))
    ends.commit([one.key])
    ends.found([failed])
    wait_until(ready(ends, failed), "its files are on the disk")
    ends.close()


def test_a_result_that_cannot_be_written_for_good_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script-outputs.json").write_bytes(encode(Outputs(ResultFile("out.json"))))
    (tmp_path / "out.json").write_text('{"loss": 1}')

    def refuses(path: Path, data: bytes) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files, "replace_file", refuses)
    assert collect(tmp_path) == "result.json: Permission denied"


def test_an_end_without_an_exit_status_tells_of_nothing_that_could_be_lost(layout: Layout, synced: Synced) -> None:
    ends = EndsOnDisk(layout, print)
    found = Found(KEY, Ended(None))
    assert ends.found([found]) == [found]
    assert synced == []
    ends.close()


def test_a_disk_that_cannot_take_the_files_is_reported_once_and_tried_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    fails = [True, True, False]

    def sync(directory: Path, names: object) -> None:
        if fails.pop(0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync_files", sync)
    ends = EndsOnDisk(layout, said.append, try_again_s=0.0)
    found = Found(KEY, Ended(0))
    ends.found([found])
    assert ends.wait_fds()
    select.select(ends.wait_fds(), [], [], 1)
    wait_until(ready(ends, found), "the disk has room again")
    assert len(said) == 1
    assert "a/1: its end is not recorded yet" in said[0]
    ends.close()


def test_files_that_are_gone_or_are_no_files_hold_nothing_back(layout: Layout) -> None:
    directory = layout.attempt("a", 1).directory
    (directory / "result.json").unlink()
    os.mkfifo(directory / "result.json")
    (directory / "entry.json").unlink()
    (directory / "entry.json").symlink_to("/dev/null")
    (directory / "exit.json").unlink()
    ends = EndsOnDisk(layout, print)
    gone = Found(Key("b", 1), Ended(3))
    for found in (Found(KEY, Ended(3)), gone):
        ends.found([found])
        wait_until(ready(ends, found), "nothing holds it back")
    ends.close()


def test_what_a_script_leaves_and_nobody_can_read_holds_nothing_back(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = layout.attempt("a", 1).directory
    (directory / "script-outputs.json").write_bytes(encode(Outputs(ResultFile("out/a.json"))))
    real = files.sync_files

    def sync(path: Path, names: Sequence[str]) -> None:
        if path.name == "out":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        real(path, names)

    monkeypatch.setattr(files, "sync_files", sync)
    ends = EndsOnDisk(layout, print)
    found = Found(KEY, Ended(0))
    ends.found([found])
    wait_until(ready(ends, found), "nothing holds it back")
    ends.close()
