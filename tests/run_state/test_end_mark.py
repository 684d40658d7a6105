"""The journal's end as a name: one winner, nothing written by who is shown an old one, nobody blocked by the dead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.base.mounts import Mount
from dispatcher.errors import LockLostError
from dispatcher.run_state.change import Change
from dispatcher.run_state.end_mark import EndMark
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    mark = EndMark(tmp_path / "journal_end")
    mark.begin()
    mark.finish(1, 100, 0xAB)
    return tmp_path / "journal_end"


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_of_two_that_were_shown_the_same_end_one_may_append(directory: Path) -> None:
    one, other = EndMark(directory), EndMark(directory)
    assert one.read() == other.read()
    one.begin()
    with pytest.raises(LockLostError, match="nothing was changed"):
        other.begin()
    one.finish(1, 200, 0xCD)
    with pytest.raises(LockLostError):
        other.begin()
    end = other.read()
    assert end is not None
    assert (end.position, end.is_settled) == ((1, 200, 0xCD), True)
    assert names(directory) == ["000001.200.000000cd"]


def test_what_a_dead_writer_has_left_is_taken_over(directory: Path) -> None:
    dead, heir = EndMark(directory), EndMark(directory)
    dead.read()
    dead.begin()
    end = heir.read()
    assert end is not None
    assert (end.position, end.is_settled) == ((1, 100, 0xAB), False)
    heir.begin()
    # It was only slow, and has lost the lock meanwhile.
    with pytest.raises(LockLostError):
        dead.finish(1, 150, 1)
    heir.finish(2, 50, 2)
    assert names(directory) == ["000002.50.00000002"]


def test_whoever_is_shown_no_directory_does_not_begin_anew(tmp_path: Path) -> None:
    first, blind = EndMark(tmp_path / "end"), EndMark(tmp_path / "end")
    assert first.read() is None
    assert blind.read() is None
    first.begin()
    first.finish(1, 100, 1)
    with pytest.raises(LockLostError, match="shown old names"):
        blind.begin()


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """This disk passes for one whose clients show old content, for no time at all."""
    monkeypatch.setattr(Mount, "shows_old_content", True)
    monkeypatch.setattr(Mount, "is_network", True)


def queue(store: Store, job: str) -> None:
    with store.transaction() as tx:
        tx.change(job, Event.QUEUED, Change(state=State.QUEUED))


@pytest.mark.usefixtures("fuse")
def test_every_change_and_every_generation_moves_the_name(layout: Layout) -> None:
    store, other = Store(layout, by="pod-0"), Store(layout, by="pod-1")
    directory = layout.run_state / "journal_end"
    for number, changing in enumerate([store, other, store, other]):
        queue(changing, f"job-{number}")
        generation, length, checksum = changing.position or (0, 0, 0)
        assert names(directory) == [f"{generation:06d}.{length}.{checksum:08x}"]
    assert store.rotate()
    queue(other, "last")
    assert names(directory) == [f"000002.{other.offset}.{other.position[2]:08x}"]  # type: ignore[index]
    newcomer = Store(layout, by="new")
    newcomer.refresh(to_the_end=True)
    assert newcomer.records == other.records


@pytest.mark.usefixtures("fuse")
def test_an_old_head_misleads_nobody(layout: Layout) -> None:
    """The locked file's own content may be an old one; what is written behind the head does not put it in force."""
    store, other = Store(layout, by="pod-0"), Store(layout, by="pod-1")
    queue(store, "a")
    old = layout.lock_file.read_bytes()
    queue(store, "b")
    layout.lock_file.write_bytes(old)
    queue(other, "c")
    assert list(other.records) == ["a", "b", "c"]
    queue(store, "d")
    assert list(store.records) == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("fuse")
@pytest.mark.parametrize("left", ["nothing", "a token", "a line"])
def test_a_workspace_whose_writer_died_goes_on(layout: Layout, left: str) -> None:
    store = Store(layout, by="pod-0")
    queue(store, "a")
    directory = layout.run_state / "journal_end"
    (name,) = names(directory)
    if left == "nothing":
        (directory / name).unlink()
    else:
        (directory / name).rename(directory / f"{name}.host.1.1")
    if left == "a line":
        queue(store, "b")
        (directory / names(directory)[0]).rename(directory / f"{name}.host.1.1")
    heir = Store(layout, by="pod-1")
    queue(heir, "c")
    assert list(heir.records) == (["a", "b", "c"] if left == "a line" else ["a", "c"])
    queue(store, "d")
    assert names(directory) == [f"000001.{store.offset}.{store.position[2]:08x}"]  # type: ignore[index]
