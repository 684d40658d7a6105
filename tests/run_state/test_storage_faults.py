"""A full disk, a read-only or vanished directory, a clock that jumps: a clear message, and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.errors import StorageError
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.events import Event
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Layout]:
    """A workspace on a filesystem of 512 KiB."""
    root = tmp_path / "small disk"
    root.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", root], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"a filesystem of its own needs root: {made.stderr.decode().strip()}")
    yield Layout(root)
    subprocess.run(["umount", "-l", root], check=True)


def queue(store: Store, jobs: list[str]) -> None:
    with store.transaction() as tx:
        for job in jobs:
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))


def fill(layout: Layout) -> Path:
    """Use up what is left, to the last byte."""
    ballast = layout.root / "ballast"
    with open(ballast, "ab", buffering=0) as file:
        size = 65536
        while size:
            try:
                if file.write(b"x" * size) == 0:
                    size //= 2
            except OSError:
                size //= 2
    return ballast


def test_a_full_disk_loses_nothing_and_is_overcome(small_disk: Layout) -> None:
    store = Store(small_disk, by="pod-0")
    queue(store, ["a", "b"])
    projector = Projector(store)
    projector.write()
    text = small_disk.status_file.read_bytes()
    queue(store, ["c"])
    before = dict(store.records)
    ballast = fill(small_disk)
    length = small_disk.journal(1).stat().st_size
    with pytest.raises(StorageError, match=r"No space left on device; the disk is full: free some space"):
        queue(store, [f"new{number}" for number in range(2_000)])
    assert store.records == before
    assert small_disk.journal(1).stat().st_size == length
    # A claim takes its directory back.
    with pytest.raises(StorageError, match="the disk is full"), store.transaction() as tx:
        for number in range(2_000):
            assert tx.make_attempt("a", number) is not None
            tx.change("a", Event.EDITED, Change(), extra={"note": "x" * 1000})
    assert not small_disk.job_dir("a").is_dir() or os.listdir(small_disk.job_dir("a")) == []
    assert store.status_is_stale
    with pytest.raises(StorageError, match="the disk is full"):
        projector.write()
    assert small_disk.status_file.read_bytes() == text
    with pytest.raises(StorageError, match="the disk is full"):
        store.rotate()
    assert journal.generations(small_disk) == [1]
    assert Store(small_disk, by="reader").records == {}
    ballast.unlink()
    queue(store, ["d"])
    projector.write()
    assert set(json.loads(small_disk.status_file.read_bytes())) == {"a", "b", "c", "d"}
    fresh = Store(small_disk, by="pod-1")
    fresh.refresh()
    assert fresh.records == store.records


def test_a_hand_edit_waits_while_the_disk_is_full(small_disk: Layout) -> None:
    store = Store(small_disk, by="pod-0")
    queue(store, ["a", "b"])
    Projector(store).write()
    text = small_disk.status_file.read_text(encoding="utf-8")
    small_disk.status_file.write_text(
        text.replace('"a": {"state": "queued"', '"a": {"state": "held"'), encoding="utf-8"
    )
    ballast = fill(small_disk)
    # What does not fit any more is the change, and with it what the person did.
    for _ in range(3):
        with pytest.raises(StorageError, match="the disk is full"), store.transaction() as tx:
            tx.change("b", Event.EDITED, Change(), extra={"note": "x" * 100_000})
        assert store.records["a"].state is State.QUEUED
    ballast.unlink()
    queue(store, ["c"])
    assert store.records["a"].state is State.HELD


def test_a_read_only_filesystem_says_so(small_disk: Layout) -> None:
    store = Store(small_disk, by="pod-0")
    queue(store, ["a"])
    Projector(store).write()
    store.close()
    before = dict(store.records)
    subprocess.run(["mount", "-o", "remount,ro", small_disk.root], check=True)
    for used in (store, Store(small_disk, by="pod-1")):
        with pytest.raises(StorageError, match=r"Read-only file system; the filesystem is mounted read-only"):
            queue(used, ["b"])
    # Looking goes on.
    reader = Store(small_disk, by="reader")
    reader.refresh()
    assert reader.records == before
    subprocess.run(["mount", "-o", "remount,rw", small_disk.root], check=True)
    queue(store, ["b"])
    assert set(store.records) == {"a", "b"}


def test_a_first_start_on_a_read_only_filesystem_says_so(small_disk: Layout) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk.root], check=True)
    with pytest.raises(StorageError, match=r"creating the run state in .*Read-only file system"):
        queue(Store(small_disk, by="pod-0"), ["b"])


def test_a_workspace_that_vanishes_says_so(layout: Layout) -> None:
    store = Store(layout, by="pod-0")
    projector = Projector(store)
    queue(store, ["a"])
    projector.write()
    away = layout.root.with_name("away")
    layout.root.rename(away)
    for act in (lambda: queue(store, ["b"]), projector.write, lambda: Store(layout, by="x").prepare()):
        store.status_is_stale = True
        with pytest.raises(StorageError, match=re.escape(str(layout.root))):
            act()
    assert not layout.root.exists()
    away.rename(layout.root)
    queue(store, ["b"])
    projector.write()
    assert set(json.loads(layout.status_file.read_bytes())) == {"a", "b"}


def test_a_run_state_that_vanishes_is_never_mixed_with_a_new_one(layout: Layout) -> None:
    """Somebody starts all over while a dispatcher runs: both end up with one and the same new state."""
    store = Store(layout, by="pod-0")
    queue(store, ["a"])
    shutil.rmtree(layout.run_state)
    newcomer = Store(layout, by="pod-1")
    queue(newcomer, ["b"])
    queue(store, ["c"])
    newcomer.refresh()
    assert set(newcomer.records) == set(store.records) == {"b", "c"}


def test_jobs_folder_that_was_removed_comes_back(layout: Layout) -> None:
    store = Store(layout, by="pod-0")
    queue(store, ["a"])
    shutil.rmtree(layout.jobs_dir)
    for attempt in (1, 2):
        with store.transaction() as tx:
            assert tx.make_attempt("a", attempt) is not None
            assert tx.make_attempt("a", attempt) is None


def test_a_clock_that_jumps_by_a_day_changes_no_order(layout: Layout) -> None:
    now = 1_781_700_000.0
    times = iter([now, now + 86_400, now - 86_400, now, now - 10 * 86_400, now + 1, now + 2])
    store = Store(layout, by="pod-0", wall_clock=lambda: next(times))
    queue(store, ["a"])
    for state, event in ((State.HELD, Event.HELD), (State.QUEUED, Event.REQUEUED), (State.HELD, Event.HELD)):
        with store.transaction() as tx:
            tx.change("a", event, Change(state=state))
    fresh = Store(layout, by="pod-1")
    fresh.refresh()
    assert fresh.records == store.records
    assert fresh.records["a"].state is State.HELD
    lines = list(journal.history(layout, "a"))
    assert [line.seq for line in lines] == [1, 2, 3, 4]
    assert [line.at for line in lines] != sorted(line.at for line in lines)


def test_a_status_file_from_the_future_is_taken_in_like_any_other(layout: Layout) -> None:
    store = Store(layout, by="pod-0")
    queue(store, ["a"])
    Projector(store).write()
    changed = status_file.render(store.records).replace(b'"queued"', b'"held"')
    layout.status_file.write_bytes(changed)
    os.utime(layout.status_file, (4e9, 4e9))
    queue(store, ["b"])
    assert store.records["a"].state is State.HELD
    Projector(store).write()
    assert layout.status_file.read_bytes() == status_file.render(store.records)


def test_a_claim_that_may_have_been_written_keeps_its_directory(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the claim that the next reader finds would be nobody's: no dispatcher could tell how it ended."""
    store = Store(layout, by="pod-0")
    queue(store, ["a"])

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken, pytest.raises(StorageError), store.transaction() as tx:
        broken.setattr(os, "fsync", fail)
        broken.setattr(os, "ftruncate", fail)
        assert tx.make_attempt("a", 1) is not None
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
    with store.transaction() as tx:
        record = tx.record("a")
    assert record is not None and record.state is State.RUNNING
    assert layout.attempt("a", 1).directory.is_dir()
