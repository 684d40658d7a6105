"""While an editor has the status file open the projection waits, up to a bound, and costs nothing under the lock."""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dispatcher.base import host
from dispatcher.run_state import liveness, projection
from dispatcher.run_state.change import Change
from dispatcher.run_state.edits import editors, status_file
from dispatcher.run_state.events import Event
from dispatcher.run_state.projection import Projector, restore
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

SWAP = ".matrix_status.json.swp"


class Clock:
    """The monotonic clock of the process and the wall clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        monotonic, wall = time.monotonic, time.time
        monkeypatch.setattr(editors.time, "monotonic", lambda: monotonic() + self.passed_s)
        monkeypatch.setattr(editors.time, "time", lambda: wall() + self.passed_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def store(layout: Layout) -> Store:
    made = Store(layout, by="pod-0")
    with made.transaction() as tx:
        tx.change("a", Event.QUEUED, Change(state=State.QUEUED))
    Projector(made).write()
    return made


def change(store: Store) -> None:
    with store.transaction() as tx:
        record = tx.record("a")
        assert record is not None
        tx.change("a", Event.EDITED, Change(priority=(record.priority or 0) + 1))


def is_current(store: Store) -> bool:
    return store.layout.status_file.read_bytes() == status_file.render(store.records)


def swap_file(layout: Layout, pid: int, owner: str | None = None, name: str = SWAP) -> Path:
    """As vim and nano write it."""
    path = layout.status_file.with_name(name)
    path.write_bytes(
        b"b0VIM 9.0".ljust(24, b"\0") + struct.pack("<I40x40s", pid, (owner or os.uname().nodename).encode())
    )
    return path


def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize(
    "name", [SWAP, ".matrix_status.json.swo", ".matrix_status.json.svz", ".#matrix_status.json", "#matrix_status.json#"]
)
def test_every_editors_file_keeps_the_status_file_as_it_is(layout: Layout, store: Store, name: str) -> None:
    path = layout.status_file.with_name(name)
    if name.startswith(".#"):
        # Emacs makes a link to nowhere.
        path.symlink_to(f"somebody@{os.uname().nodename}.{os.getpid()}:1700000000")
    else:
        path.write_text("what was typed")
    assert editors.editor_files(layout.status_file) == [name]
    projector = Projector(store)
    before = layout.status_file.read_bytes()
    identity = store.status_identity()
    change(store)
    projector.write()
    assert (layout.status_file.read_bytes(), store.status_identity()) == (before, identity)
    assert name in projector.note
    # It is looked at again soon, and no busy loop waits for it.
    assert 0 < (projector.due_in_s() or 0) <= 1
    path.unlink()
    projector.write()
    assert projector.note == ""
    assert is_current(store)


@pytest.mark.parametrize(
    "name", ["matrix_status.json~", "matrix_status.json.swp", ".matrix.json.swp", ".matrix_status.json.tmp", "x.swp"]
)
def test_other_files_are_no_editors(layout: Layout, store: Store, name: str) -> None:
    layout.status_file.with_name(name).write_text("")
    change(store)
    Projector(store).write()
    assert is_current(store)


def test_an_editor_that_is_gone_is_not_waited_for(layout: Layout, store: Store) -> None:
    pid = dead_pid()
    swap_file(layout, pid)
    layout.status_file.with_name(".#matrix_status.json").symlink_to(f"me@{os.uname().nodename}.{pid}:1700000000")
    change(store)
    Projector(store).write()
    assert is_current(store)


@pytest.mark.parametrize("name", [os.uname().nodename, "another host"])
def test_a_live_editor_and_one_of_another_host_are(layout: Layout, store: Store, name: str) -> None:
    swap_file(layout, os.getpid(), name)
    change(store)
    Projector(store).write()
    assert not is_current(store)


def test_an_editor_in_which_nobody_types_is_waited_for_a_while_only(layout: Layout, store: Store, clock: Clock) -> None:
    """Somebody is at lunch."""
    swap = swap_file(layout, os.getpid())
    projector = Projector(store)
    change(store)
    projector.write()
    assert not is_current(store)
    clock.passed_s += editors.IDLE_S - 5
    projector.write()
    assert not is_current(store)
    clock.passed_s += 6
    projector.write()
    assert is_current(store)
    assert projector.note == ""
    # And from then on at once, until they type again.
    change(store)
    projector.write()
    assert is_current(store)
    os.utime(swap, (time.time() + clock.passed_s, time.time() + clock.passed_s))
    change(store)
    projector.write()
    assert not is_current(store)


def test_an_old_swap_file_delays_nothing(layout: Layout, store: Store) -> None:
    os.utime(swap_file(layout, 1, "another host"), (1, 1))
    change(store)
    Projector(store).write()
    assert is_current(store)


def test_a_file_server_whose_clock_is_wrong_is_not_asked(
    layout: Layout, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(swap_file(layout, 1, "another host"), (1, 1))
    projector = Projector(store)
    monkeypatch.setattr(projector._editors, "_is_network", True)
    change(store)
    projector.write()
    assert not is_current(store)
    clock.passed_s += editors.IDLE_S + 1
    projector.write()
    assert is_current(store)


def test_an_editor_in_which_somebody_types_for_ever_is_not_waited_for_for_ever(
    layout: Layout, store: Store, clock: Clock
) -> None:
    swap = swap_file(layout, os.getpid())
    projector = Projector(store)
    written = []
    change(store)
    for _ in range(20):
        os.utime(swap, (time.time() + clock.passed_s, time.time() + clock.passed_s))
        projector.write()
        if is_current(store):
            written.append(clock.passed_s)
            change(store)
        clock.passed_s += 100
    assert len(written) == 20 * 100 // (editors.TOTAL_S + 100)
    assert all(later - earlier >= editors.TOTAL_S for earlier, later in itertools.pairwise(written))


def test_an_editor_that_is_opened_while_the_file_is_written_wins(
    layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = projection._write_temporary

    def slow(path: Path, data: bytes) -> Any:
        swap_file(layout, os.getpid())
        return write(path, data)

    monkeypatch.setattr(projection, "_write_temporary", slow)
    before = layout.status_file.read_bytes()
    change(store)
    projector = Projector(store)
    projector.write()
    assert layout.status_file.read_bytes() == before
    assert projector.note
    assert [path.name for path in layout.run_state.iterdir() if path.suffix == ".tmp"] == []


def test_nothing_is_looked_for_under_the_lock(layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    find = editors.editor_files

    def looking(path: Path) -> list[str]:
        looks.append(store._journal._busy)
        return find(path)

    monkeypatch.setattr(editors, "editor_files", looking)
    change(store)
    Projector(store).write()
    assert is_current(store)
    assert looks == [False, False]


def test_the_last_one_writes_the_file_and_leaves_it_to_no_dead_dispatcher(layout: Layout, store: Store) -> None:
    swap_file(layout, os.getpid())
    projector = Projector(store)
    info = liveness.PodInfo(
        pod=store.by, host=host.host_name(), boot_id=host.boot_id(), pid_namespace=host.pid_namespace(),
        pid=os.getpid(), start_ticks=host.start_ticks(os.getpid()) or 0, user="me",
        started_at="2026-06-17T22:48:00Z", heartbeat=1, heartbeat_s=10.0, lock="flock",
    )  # fmt: skip
    liveness.write_pod(layout, info)
    own, fd = liveness.take(layout.pod_lock(store.by)), liveness.take(layout.pod_lock("pod-1"))
    assert own is not None and fd is not None
    try:
        change(store)
        projector.write_before_exit()
        assert is_current(store)
        liveness.write_pod(layout, msgspec.structs.replace(info, pod="pod-1"))
        change(store)
        projector.write_before_exit()
        assert not is_current(store)
        assert projector.note
    finally:
        os.close(own)
        os.close(fd)
    projector.write_before_exit()
    assert is_current(store)


def test_restore_asks_no_editor(layout: Layout, store: Store) -> None:
    swap_file(layout, os.getpid())
    layout.status_file.write_bytes(b"{broken")
    assert restore(store) is not None
    assert is_current(store)


def test_an_editor_that_saves_twice_requeues_a_job_once(layout: Layout, store: Store) -> None:
    """Its text still says `queued` when the job has run and failed again."""
    with store.transaction() as tx:
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
        tx.change("a", Event.FAILED, Change(state=State.FAILED))
    Projector(store).write()
    swap_file(layout, os.getpid())
    text = layout.status_file.read_text().replace('"failed"', '"queued"')
    layout.status_file.write_text(text)
    with store.transaction() as tx:
        assert store.records["a"].state is State.QUEUED
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, attempt=2))
        tx.change("a", Event.FAILED, Change(state=State.FAILED))
    Projector(store).write()
    assert layout.status_file.read_text() == text
    layout.status_file.write_text(text.replace('"state"', '"note": "again", "state"'))
    with store.transaction():
        pass
    record = store.records["a"]
    assert (record.state, record.attempt, record.extra) == (State.FAILED, 2, {"note": "again"})
