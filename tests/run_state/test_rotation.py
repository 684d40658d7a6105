"""A new generation says what the old one said, for whoever comes, stays or looks in between."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import forks
import pytest

from dispatcher.base import files
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Blame, Event
from dispatcher.run_state.facets.gpu_idle import GpuBusy, GpuIdle
from dispatcher.run_state.facets.pauses import Paused
from dispatcher.run_state.facets.refusals import Refused
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def busy(layout: Layout) -> Store:
    store = Store(layout, by="pod-0")
    with store.transaction() as tx:
        for job in "abcdef":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
        tx.note(Paused(scope="lora", why="five alike"))
        tx.note(Refused(line='"x": {}', why="no state"), job="x")
        tx.delete("f")
    for job in "abc":
        with store.transaction() as tx:
            tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1), extra={"note": ["ü", 1.5, None]})
        with store.transaction() as tx:
            failed = Change(state=State.FAILED, error="CUDA error 700", reason="exit 1")
            tx.change(job, Event.FAILED, failed, data=Blame(method="fft", gpu="gpu:h:1"))
    with store.transaction() as tx:
        for job in "de":
            tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1, gpu=0))
            tx.note(GpuIdle(attempt=1, since="2026-11-23T03:00:00Z", gpus=1), job=job)
        tx.note(GpuBusy(attempt=1, since="2026-11-23T03:00:00Z", gpus=1), job="e")
    return store


def said(store: Store) -> list[object]:
    fold = store.fold
    return [
        fold.seq,
        list(fold.records.items()),
        {job: fold.records.born(job) for job in fold.records},
        fold.pauses,
        fold.refusals,
        fold.pauses.streaks,
        dict(fold.gpu_idle),
    ]


def test_idle_gpus_of_an_attempt_that_has_ended_are_not_repeated(layout: Layout) -> None:
    store = busy(layout)
    idle = store.fold.gpu_idle
    assert idle.of("d", store.records["d"]) is not None and idle.of("e", store.records["e"]) is None
    with store.transaction() as tx:
        tx.change("d", Event.STOPPED, Change(state=State.QUEUED))
    with store.transaction() as tx:
        tx.change("d", Event.CLAIMED, Change(state=State.RUNNING, attempt=2))
    assert store.fold.gpu_idle.of("d", store.records["d"]) is None
    assert store.rotate()
    newcomer = Store(layout, by="newcomer")
    newcomer.refresh()
    assert newcomer.fold.gpu_idle == {}


def test_what_was_never_written_is_forgotten(layout: Layout) -> None:
    store = busy(layout)
    before = said(store)
    with contextlib.suppress(ZeroDivisionError), store.transaction() as tx:
        tx.note(GpuBusy(attempt=1, since="2026-11-23T03:00:00Z", gpus=1), job="d")
        raise ZeroDivisionError
    assert said(store) == before and store.fold.gpu_idle.of("d", store.records["d"]) is not None


def test_everybody_finds_the_same_after_it(layout: Layout) -> None:
    store = busy(layout)
    elder, waiting = Store(layout, by="elder"), Store(layout, by="waiting")
    elder.refresh()
    waiting.refresh()
    before = said(store)
    assert store.rotate()
    assert said(store) == before
    assert store.generation == 2
    newcomer = Store(layout, by="newcomer")
    newcomer.refresh()
    elder.refresh()
    with waiting.transaction():
        pass
    for other in (newcomer, elder, waiting):
        assert said(other) == before
        assert other.generation == 2
    with elder.transaction() as tx:
        tx.change("d", Event.REQUESTED, Change(desired=State.HELD))
    for other in (store, newcomer, waiting):
        other.refresh()
        assert said(other) == said(elder)


def once_synced(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Do `then` when this process has synced a file for the first time: a snapshot, which is done without the lock."""
    fsync, pending = os.fsync, [then]

    def synced(fd: int) -> None:
        fsync(fd)
        if pending:
            pending.pop()()

    monkeypatch.setattr(os, "fsync", synced)


def test_what_is_changed_while_it_is_prepared_is_not_lost(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = busy(layout), Store(layout, by="other")

    def overtake() -> None:
        with other.transaction() as tx:
            tx.change("d", Event.HELD, Change(state=State.HELD))
            tx.change("e", Event.HELD, Change(state=State.HELD))

    once_synced(monkeypatch, overtake)
    assert store.rotate()
    newcomer = Store(layout, by="newcomer")
    newcomer.refresh()
    other.refresh()
    assert said(newcomer) == said(other) == said(store)
    assert newcomer.records["e"].state == "held"
    assert [line.seq for line in journal.history(layout)] == list(range(1, store.seq + 1))


def test_of_two_at_once_one_gives_way(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = busy(layout), Store(layout, by="other")
    once_synced(monkeypatch, other.rotate)
    assert not store.rotate()
    store.refresh()
    assert said(store) == said(other)
    assert journal.generations_in_force(layout) == journal.generations(layout) == [1, 3]


def test_a_file_that_never_came_into_force_counts_for_nothing_and_goes(layout: Layout) -> None:
    store = busy(layout)
    before = said(store)
    shutil.copy(layout.journal(1), layout.journal(2))
    data = (
        layout.journal(1).read_bytes().replace(b'"generation":1', b'"generation":2').replace(b'"after":0', b'"after":1')
    )
    layout.journal(2).write_bytes(data[: len(data) // 2])
    layout.lock_file.unlink()
    newcomer = Store(layout, by="newcomer")
    newcomer.refresh()
    assert said(newcomer) == before
    assert newcomer.rotate()
    assert journal.generations(layout) == [1, 3]
    assert said(newcomer) == before


def test_it_is_worthwhile_only_for_many_lines_per_record(layout: Layout) -> None:
    store = busy(layout)
    assert not store.rotate_if_worthwhile()
    with store.transaction() as tx:
        for number in range(60_000):
            tx.note(Paused(scope="fft", why=str(number)))
    assert store.rotate_if_worthwhile()
    assert store.generation == 2
    assert not store.rotate_if_worthwhile()


def test_a_generation_that_is_removed_while_others_look_for_the_newest_counts_for_nothing(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(layout)
    monkeypatch.setattr(journal, "generations", lambda _: [1, 2])
    assert journal.newest_generation(layout) == 1
    assert journal.generations_in_force(layout) == [1]


def test_a_reader_follows_generations_that_are_replaced_while_it_opens_them(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, reader = busy(layout), Store(layout, by="reader")
    reader.refresh()
    opened, left, rotating = files.open_existing, [3], [False]

    def open_late(path: Path | str, flags: int = os.O_RDONLY) -> int:
        if left[0] and not rotating[0]:
            left[0] -= 1
            rotating[0] = True
            assert store.rotate()
            rotating[0] = False
        return opened(path, flags)

    monkeypatch.setattr(files, "open_existing", open_late)
    reader.refresh()
    assert left == [0]
    assert said(reader)[1:] == said(store)[1:]


def rotate_often(layout: Layout, by: str, together: Barrier) -> None:
    store = Store(layout, by=by)
    store.refresh()
    together.wait()
    for _ in range(120):
        store.rotate()


def test_processes_that_rotate_at_the_same_moment_say_nothing(layout: Layout) -> None:
    before = said(busy(layout))
    together = forks.barrier(4)
    running = [forks.begin(rotate_often, layout, f"pod-{number}", together) for number in range(4)]
    assert [forks.end(process) for process in running] == [0, 0, 0, 0]
    newcomer = Store(layout, by="newcomer")
    newcomer.refresh(to_the_end=True)
    assert newcomer.records.keys() == {"a", "b", "c", "d", "e"}
    assert said(newcomer)[1:] == before[1:]
    assert newcomer.generation > 4
