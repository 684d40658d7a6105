"""At its start a dispatcher looks for what other hosts say that they have written."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from dispatcher.base.mounts import Mount
from dispatcher.doctor.prove_view import prove_appends, prove_directories
from dispatcher.errors import StaleViewError
from dispatcher.run_state import liveness
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

GLUSTER = Mount("/shared", "fuse.glusterfs", "server:volume", "rw")
CURES = [
    "performance.X off",
    "--attribute-timeout=0",
    "--entry-timeout=0",
    "--negative-timeout=0",
    "--fopen-keep-cache=no",
]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def store(layout: Layout) -> Store:
    store = Store(layout, by="here")
    with store.transaction() as tx:
        tx.change("a", Event.QUEUED, Change(state=State.QUEUED))
    return store


def other(**changes: object) -> liveness.PodInfo:
    values = {
        "pod": "there",
        "host": "host-b",
        "boot_id": "another",
        "pid_namespace": 1,
        "pid": 1,
        "start_ticks": 1,
        "user": "u",
        "started_at": "",
        "heartbeat": 1,
        "heartbeat_s": 1.0,
        "lock": "flock",
    }
    return liveness.PodInfo(**{**values, **changes})  # type: ignore[arg-type]


def test_what_the_others_have_seen_is_there(store: Store, layout: Layout) -> None:
    seen = store.position
    with store.transaction() as tx:
        tx.change("b", Event.QUEUED, Change(state=State.QUEUED))
    newcomer = Store(layout, by="new")
    prove_appends(newcomer, [other(journal=seen), other(journal=store.position), other()], GLUSTER, 0)
    assert newcomer.position == store.position


def test_a_journal_that_others_have_seen_go_further_is_refused(store: Store) -> None:
    assert store.position is not None
    generation, length, checksum = store.position
    for journal in ((generation, length + 1, checksum), (generation, length, checksum ^ 1), (generation + 1, 10, 1)):
        with pytest.raises(StaleViewError, match=r"pod there \(host host-b\) has seen \d+ bytes") as refused:
            prove_appends(store, [other(journal=journal)], GLUSTER, 0)
        assert all(cure in str(refused.value) for cure in CURES)
        assert f"remove {store.layout.pod_file('there')}, unless that pod runs" in str(refused.value)


def test_an_earlier_part_that_reads_differently_is_refused(store: Store) -> None:
    assert store.position is not None
    generation, length, checksum = store.position
    with store.transaction() as tx:
        tx.change("b", Event.QUEUED, Change(state=State.QUEUED))
    prove_appends(store, [other(journal=(generation, length, checksum))], GLUSTER, 0)
    with pytest.raises(StaleViewError):
        prove_appends(store, [other(journal=(generation, length, checksum ^ 1))], GLUSTER, 0)


def test_a_directory_of_another_host_cannot_be_made_again(store: Store, layout: Layout) -> None:
    info = other(slots=[liveness.SlotInfo(name="cpu0", jobs=["a/1"])])
    liveness.write_pod(layout, info)
    directory = layout.attempt("a", 1).directory
    # Nobody holds the pod's lock: what it says is old, and its directories may have been removed.
    prove_directories(layout, [info], GLUSTER, 0)
    assert not directory.exists()
    lock = os.open(layout.pod_lock("there"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for parent_is_there in (False, True):
        with pytest.raises(StaleViewError, match=r"jobs/a/1: exists for pod there \(host host-b\)"):
            prove_directories(layout, [info], GLUSTER, 0)
        assert not directory.exists(), "nothing is left behind"
        if not parent_is_there:
            directory.parent.mkdir()
    directory.mkdir()
    prove_directories(layout, [info], GLUSTER, 0)
    # It has ended meanwhile, and somebody has cleaned up: nothing to be seen.
    directory.rmdir()
    liveness.write_pod(layout, other(slots=[]))
    prove_directories(layout, [info], GLUSTER, 0)
    os.close(lock)


def test_a_local_disk_is_not_looked_at(store: Store, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatcher.doctor.prove_view import prove_view

    monkeypatch.setattr(liveness, "read_pods", lambda _: pytest.fail("read"))
    prove_view(store, "here")
