"""Two doctors that meet: whoever leaves first, neither stumbles and nothing stays behind."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet import wait_until

from dispatcher.base import files
from dispatcher.doctor import meeting as module
from dispatcher.doctor.meeting import Doctor, Meeting, PeerGoneError, meeting_place
from dispatcher.workspace import Layout


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Meeting, Meeting]:
    """Both sides of a meeting: the one who leads, and the other."""
    a, b = (Doctor(name, f"host-{name}", "boot", 1, 1) for name in "ab")
    directory = tmp_path / "a+b"
    directory.mkdir()
    leader, other = Meeting(directory, a, b), Meeting(directory, b, a)
    assert leader.leads
    assert not other.leads
    return leader, other


def test_the_directory_is_gone_before_the_last_message_is_stamped(
    pair: tuple[Meeting, Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = pair
    stamp, main = files.stamp, threading.current_thread()

    def late(directory: Path) -> None:
        if threading.current_thread() is main:
            wait_until(lambda: not directory.exists(), "the leader has removed the directory")
        stamp(directory)

    monkeypatch.setattr(files, "stamp", late)
    with ThreadPoolExecutor(1) as threads:
        leaving = threads.submit(leader.end)
        other.end()
        leaving.result(60)
    assert not leader.directory.exists()


def test_names_that_are_shown_late_are_removed_too(
    pair: tuple[Meeting, Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = pair
    removed = []

    def rmtree(path: Path, real: Callable[..., None] = shutil.rmtree, **options: Any) -> None:
        """The first time, the names that the other has just made are not shown."""
        removed.append(path)
        if len(removed) > 1:
            real(path, **options)

    monkeypatch.setattr(module.shutil, "rmtree", rmtree)
    other.end()
    leader.end()
    assert len(removed) == 2
    assert not leader.directory.exists()


def test_one_that_has_gone_is_named_and_leaves_nothing(pair: tuple[Meeting, Meeting]) -> None:
    leader, other = pair
    leader.remove()
    for act in (lambda: other.send(words=1), other.receive):
        with pytest.raises(PeerGoneError, match="the doctor on host host-a has ended the meeting"):
            act()
    with pytest.raises(PeerGoneError), other.here():
        os.mkdir(other.directory / "race")


def test_one_that_nods_at_the_last_moment_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Doctor("b", "host-b", "boot", 1, 1)
    (tmp_path / "b.hello").write_bytes(msgspec.json.encode(peer))
    begun_s, sleep = time.monotonic(), time.sleep

    def sleep_then_nod(pause_s: float) -> None:
        sleep(pause_s)
        for nod in tmp_path.glob("*.nod.b") if time.monotonic() > begun_s + 0.3 else ():
            (tmp_path / f"b.nod.{nod.name.partition('.')[0]}").touch()

    monkeypatch.setattr(module.time, "sleep", sleep_then_nod)
    met = module.meet(tmp_path, 0.2, lambda _: None)
    assert met is not None
    assert met.peer == peer


def test_one_comes_while_the_other_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path)
    first = meeting_place(layout)
    first.__enter__()
    makedirs, entered = os.makedirs, []

    def makedirs_then_the_other_leaves(*words: Any, **options: Any) -> None:
        makedirs(*words, **options)
        if not entered:
            entered.append(True)
            first.__exit__(None, None, None)
            assert not layout.doctor_dir.exists()

    monkeypatch.setattr(module.os, "makedirs", makedirs_then_the_other_leaves)
    with meeting_place(layout) as place:
        (place / "test").touch()
        (place / "test").unlink()
    assert not layout.run_state.exists(), "neither was there before the doctors came"


def test_the_place_stays_for_as_long_as_somebody_is_there(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with meeting_place(layout) as place:
        with meeting_place(layout):
            pass
        assert place.is_dir()
    assert not layout.run_state.exists()
