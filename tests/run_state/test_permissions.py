"""Files follow the workspace's group-write bit, whatever the umask; nobody else can ever write."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import forks
import pytest

from dispatcher.base import host
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask 000", "umask 022", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o2775, 0o777])
def test_every_file_follows_the_workspace(layout: Layout, umask: int, mode: int) -> None:
    layout.root.chmod(mode)
    store = Store(layout, by="pod-0")
    store.prepare()
    with store.transaction() as tx:
        for job in "ab":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
        assert tx.make_attempt("a", 1) is not None
    Projector(store).write()
    lines = json.loads(layout.status_file.read_bytes())
    lines["a"]["state"] = "quued"
    layout.status_file.write_text(json.dumps(lines), encoding="utf-8")
    Projector(store).write()
    assert store.rotate()
    store.use_hardlink_lock()
    with store.transaction() as tx:
        tx.change("b", Event.HELD, Change(state=State.HELD))
    seen = set()
    for path in (layout.run_state, *layout.run_state.rglob("*")):
        found = path.stat()
        seen.add(path.name)
        assert not found.st_mode & stat.S_IWOTH, path
        assert bool(found.st_mode & stat.S_IWGRP) == bool(mode & 0o020), path
        assert found.st_mode & stat.S_IRGRP, path
        assert found.st_gid == layout.run_state.stat().st_gid, path
    assert {"claims.lock", "matrix_status.json", "000001.jsonl.gz", "000002.jsonl", "1", "rejected"} <= seen
    # The process's own umask is as it was.
    assert os.umask(umask) == umask


def test_a_folder_that_a_clone_has_made_follows_the_workspace(layout: Layout) -> None:
    layout.root.chmod(0o2775)
    layout.run_state.mkdir()
    layout.run_state.chmod(0o755)
    (layout.run_state / "README.md").touch()
    Store(layout, by="pod-0").prepare()
    assert layout.run_state.stat().st_mode & 0o2020 == 0o2020


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other people")
def test_two_people_of_one_group_work_on_one_workspace(layout: Layout) -> None:
    group = 54321
    os.chown(layout.root, 0, group)
    layout.root.chmod(0o2775)
    open_the_way(layout.root)
    for uid in (61001, 61002, 61001):
        assert as_person(uid, group, layout, f"job-{uid}") == 0
    store = Store(layout, by="reader")
    store.refresh()
    assert set(store.records) == {"job-61001", "job-61002"}
    assert as_person(61003, 61003, layout, "stranger") != 0
    store.refresh()
    assert "stranger" not in store.records


def open_the_way(path: Path) -> None:
    for parent in path.parents:
        mode = parent.stat().st_mode
        if not mode & 0o001:
            parent.chmod(mode | 0o011)


def as_person(uid: int, gid: int, layout: Layout, job: str) -> int:
    """Change the workspace as somebody else with a strict umask; the exit status."""
    return forks.run(change_as, uid, gid, layout, job)


def change_as(uid: int, gid: int, layout: Layout, job: str) -> None:
    # What Python imports late, it may not be allowed to read then.
    host.here()
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    os.umask(0o077)
    store = Store(layout, by=f"user-{uid}")
    with store.transaction() as tx:
        tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
        tx.make_attempt(job, 1)
    Projector(store).write()
    store.rotate()
