"""The journal's descriptor stays open between transactions, and is never that of another file."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path

import pytest

from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.open_journal import OpenJournal
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def queue(store: Store, job: str) -> None:
    with store.transaction() as tx:
        tx.change(job, Event.QUEUED, Change(state=State.QUEUED))


def test_transactions_open_no_file_again(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(layout, by="pod")
    queue(store, "a")
    opened: Counter[str] = Counter()
    real_open = os.open

    def counting(path: str | Path, *rest: int, **named: int | None) -> int:
        opened[os.path.basename(path)] += 1
        return real_open(path, *rest, **named)

    monkeypatch.setattr(os, "open", counting)
    for job in "bcd":
        queue(store, job)
    assert not opened


def test_a_store_that_is_dropped_leaves_nothing_open(layout: Layout) -> None:
    """A notebook opens one after the other, and closes none."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for job in "abc":
        queue(Store(layout, by="pod"), job)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failed_transaction_keeps_no_descriptor(layout: Layout) -> None:
    store = Store(layout, by="pod")
    queue(store, "a")
    with pytest.raises(ZeroDivisionError), store.transaction():
        _ = 1 / 0
    journals = [name for name in map(_target, os.listdir("/proc/self/fd")) if name == str(layout.journal(1))]
    assert not journals
    queue(store, "b")
    assert list(store.records) == ["a", "b"]


def test_a_new_generation_leaves_the_old_file(layout: Layout) -> None:
    store, other = Store(layout, by="pod"), Store(layout, by="other")
    queue(store, "a")
    queue(other, "b")
    assert store.rotate()
    queue(store, "c")
    queue(other, "d")
    assert list(other.records) == ["a", "b", "c", "d"]
    assert not [name for name in map(_target, os.listdir("/proc/self/fd")) if str(layout.journal(1)) in name]


def test_a_file_that_has_taken_its_place_is_opened(tmp_path: Path) -> None:
    path, moved = tmp_path / "000001.jsonl", tmp_path / "moved"
    path.write_text("old")
    file = OpenJournal(network=False)
    assert file.open(path) == file.open(path)
    path.rename(moved)
    with pytest.raises(FileNotFoundError):
        file.open(path)
    path.write_text("new")
    assert os.pread(file.open(path), 3, 0) == b"new"
    file.close()


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return ""
