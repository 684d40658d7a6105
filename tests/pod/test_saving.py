"""A pod saves what it has read of a long journal in a thread, or without one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dispatcher.pod.participants.saving import Saver
from dispatcher.run_state import loaded_generation
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(loaded_generation, "_WORTHWHILE", 1)
    store = Store(Layout(tmp_path), by="pod-0")
    with store.transaction() as tx:
        for job in "abc":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    return store


def left_over(store: Store) -> list[str]:
    known = {store.layout.journal(1), store.layout.saved_fold}
    return [path.name for path in store.layout.journal_dir.iterdir() if path not in known]


def test_the_file_is_complete_when_the_pod_ends(store: Store) -> None:
    saver = Saver(store)
    saver.save_if_worthwhile()
    saver.save_if_worthwhile()
    saver.close()
    assert store.layout.saved_fold.exists()
    assert left_over(store) == []


def test_a_pod_that_may_have_no_more_threads_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        # As with `ulimit -u`.
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    saver = Saver(store)
    saver.save_if_worthwhile()
    saver.close()
    assert store.layout.saved_fold.exists()
    assert left_over(store) == []
