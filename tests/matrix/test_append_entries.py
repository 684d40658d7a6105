"""Entries are appended with the records of their jobs, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.matrix.submitted import append_entries
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store, Transaction
from dispatcher.workspace import Layout


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Layout(tmp_path), by="test")


def append(store: Store, tx: Transaction, *jobs: str) -> None:
    append_entries(
        store.layout.submitted_manifest, [{"job_id": job, "method": "command"} for job in jobs],
        counts=store.records.is_ad_hoc, guard=store.guard, when_over=tx.when_over,
    )  # fmt: skip


def add(store: Store, *jobs: str, fails: bool = False) -> None:
    with store.transaction() as tx:
        append(store, tx, *jobs)
        for job in jobs:
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED, ad_hoc=True))
        if fails:
            raise RuntimeError("on purpose")


def lines(store: Store) -> list[str]:
    return store.layout.submitted_manifest.read_text().splitlines()


def test_what_fails_leaves_nothing(store: Store) -> None:
    add(store, "a")
    with pytest.raises(RuntimeError):
        add(store, "b", "c", fails=True)
    assert len(lines(store)) == len(store.records) == 1
    add(store, "d")
    assert [line[12] for line in lines(store)] == ["a", "d"]


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        ('{"job_id": "half', []),
        ('{"job_id": "x", "method": "command"}', ["x"]),
        ('{"job_id": "y", "method": "command"}\n' + "x" * 200_000, ["y"]),
        ("\n", [""]),
    ],
)
def test_an_unfinished_line_is_cut_off_unless_an_editor_left_it(store: Store, left: str, kept: list[str]) -> None:
    store.layout.matrix_dir.mkdir()
    store.layout.submitted_manifest.write_text(left)
    add(store, "a")
    assert [line[12:13] for line in lines(store)] == [*kept, "a"]


def test_a_mistake_that_an_editor_has_left_in_the_last_line_is_not_cut_off(store: Store) -> None:
    add(store, "a")
    store.layout.submitted_manifest.write_text('{"job_id": "a", "method": "command", "command": ["long')
    add(store, "b")
    assert lines(store) == [
        '{"job_id": "a", "method": "command", "command": ["long',
        '{"job_id": "b", "method": "command"}',
    ]


def test_lines_of_others_are_never_cut_off(store: Store) -> None:
    """Somebody has taken the lock over from this process, which fails after that."""
    add(store, "a")
    with pytest.raises(RuntimeError), store.transaction() as tx:
        append(store, tx, "b")
        with open(store.layout.submitted_manifest, "a") as file:
            file.write('{"job_id": "c", "method": "command"}\n')
        raise RuntimeError("on purpose")
    assert [line[12] for line in lines(store)] == ["a", "b", "c"], "what has no record does not count"


def test_the_group_may_add_jobs_whatever_the_umask_of_the_first(store: Store) -> None:
    root = store.layout.root
    root.chmod(0o770)
    old = os.umask(0o077)
    try:
        add(store, "a")
    finally:
        os.umask(old)
    assert store.layout.submitted_manifest.stat().st_mode & 0o060 == 0o060
    assert store.layout.matrix_dir.stat().st_mode & 0o070 == 0o070
