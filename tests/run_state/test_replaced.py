"""Programs that save into a status file that was replaced after they had opened it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from typing import IO

import pytest
from clocks import Clock

from dispatcher.base import file_identity
from dispatcher.base.host import process_name
from dispatcher.run_state import projection, replaced
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


@pytest.fixture
def store(layout: Layout) -> Store:
    made = Store(layout, by="pod-0")
    with made.transaction() as tx:
        for job in "abc":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
            tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
            tx.change(job, Event.FAILED, Change(state=State.FAILED, error="boom"))
    Projector(made).write()
    return made


def requeue_b(store: Store, clock: Callable[[], float] = time.monotonic) -> Projector:
    """As a command does, up to the moment in which it ends."""
    projector = Projector(store, clock=clock)
    with store.transaction() as tx:
        tx.change("b", Event.REQUEUED, Change(state=State.QUEUED))
    projector.write()
    return projector


def queued(text: str, job: str = "a") -> str:
    return text.replace(f'"{job}": {{"state": "failed"', f'"{job}": {{"state": "queued"')


def save(file: IO[str], text: str) -> None:
    file.seek(0)
    file.write(text)
    file.truncate()
    file.flush()


def as_of_a_dead_process(name: str) -> str:
    """The name of a file of this process as one that has ended would have called it."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    return re.sub(re.escape(process_name()), process_name(dead.pid), name)


def hidden(layout: Layout) -> list[str]:
    return [name for name in os.listdir(layout.run_state) if name.startswith(".") and name != ".gitignore"]


def test_a_save_after_the_command_that_replaced_the_file_has_ended(layout: Layout, store: Store) -> None:
    with open(layout.status_file, "r+", encoding="utf-8") as program:
        text = program.read()
        requeue_b(store).close()
        save(program, queued(text))
    reader = Store(layout, by="reader")
    reader.refresh()
    assert [(edit.job, edit.event) for edit in reader.pending_edits().edits] == [("a", Event.REQUEUED)]
    assert reader.problem is None
    following = Store(layout, by="pod-1")
    projector = Projector(following)
    projector.check_replaced()
    assert following.records["a"].state is following.records["b"].state is State.QUEUED
    assert following.fold.refusals == {}
    projector.close()
    assert hidden(layout) == []


def test_a_command_leaves_nothing_behind_when_no_program_writes(layout: Layout, store: Store) -> None:
    with open(layout.status_file, encoding="utf-8"):
        command = requeue_b(store)
        assert len(hidden(layout)) == 1
        command.close()
    assert hidden(layout) == []


def test_a_pod_watches_for_as_long_as_a_program_has_the_file_open(layout: Layout, store: Store) -> None:
    clock = Clock()
    with open(layout.status_file, "r+", encoding="utf-8") as program:
        text = queued(program.read())
        pod = requeue_b(store, clock)
        clock.now_s += 3600
        save(program, text[:40])
        pod.check_replaced()
        assert pod.check_due_in_s() is not None
        program.write(text[40:])
    pod.check_replaced()
    assert store.records["a"].state is State.QUEUED
    assert pod.check_due_in_s() is None
    assert hidden(layout) == []


def test_what_stays_half_written_is_read_once(layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(layout.status_file, "r+", encoding="utf-8") as program:
        text = queued(program.read())
        clock = Clock()
        pod = requeue_b(store, clock)
        save(program, text[:40])
        # Long ago by the clock of file times, so that nobody needs to look at it again.
        os.utime(program.fileno(), (time.time() - 60, time.time() - 60))
        pod.check_replaced()
        assert pod.check_due_in_s() is not None
        with monkeypatch.context() as patched:
            patched.setattr(store, "find_edits", lambda *_: pytest.fail("it is read again"))
            pod.check_replaced()
        clock.now_s += 10
        assert pod.check_due_in_s() is None, "the rest may come in hours"
        program.write(text[40:])
    pod.check_replaced()
    assert store.records["a"].state is State.QUEUED
    pod.close()


def test_an_edit_of_a_file_whose_process_was_killed_is_applied_once(layout: Layout, store: Store) -> None:
    with open(layout.status_file, "r+", encoding="utf-8") as program:
        text = queued(program.read())
        save(program, text)
        # Long ago by the clock of file times, so that nobody needs to look at it again.
        os.utime(layout.status_file, (time.time() - 60, time.time() - 60))
        requeue_b(store)
        with store.transaction() as tx:
            tx.change("a", Event.HELD, Change(state=State.HELD))
        (name,) = hidden(layout)
        os.rename(layout.run_state / name, layout.run_state / as_of_a_dead_process(name))
        following = Projector(Store(layout, by="pod-1"))
        following.recover_leftovers()
        following.store.refresh()
        assert following.store.records["a"].state is State.HELD
        # What the program saves now is new.
        save(program, queued(text, "c"))
    following.check_replaced()
    assert following.store.records["c"].state is State.QUEUED
    following.close()
    assert hidden(layout) == []


def test_a_file_whose_process_was_killed_when_it_had_just_replaced_it_is_watched(
    layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise SystemExit

    with open(layout.status_file, "r+", encoding="utf-8") as program:
        text = queued(program.read())
        with monkeypatch.context() as patched, pytest.raises(SystemExit):
            patched.setattr(replaced, "keep", die)
            requeue_b(store)
        (name,) = hidden(layout)
        os.rename(layout.run_state / name, layout.run_state / as_of_a_dead_process(name))
        following = Projector(Store(layout, by="pod-1"))
        following.recover_leftovers()
        save(program, text)
    following.check_replaced()
    assert following.store.records["a"].state is State.QUEUED
    following.close()
    assert hidden(layout) == []


def test_a_file_that_is_left_in_the_tick_of_the_last_look_is_found(
    layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder then has the time that it had at that look."""
    monkeypatch.setattr(file_identity, "_TICK_S", 1e9)
    following = Projector(Store(layout, by="pod-1"))
    with open(layout.status_file, "r+", encoding="utf-8") as program:
        text = queued(program.read())
        requeue_b(store).close()
        (name,) = hidden(layout)
        os.rename(layout.run_state / name, layout.root / name)
        found = os.stat(layout.run_state)
        following.check_replaced()
        os.rename(layout.root / name, layout.run_state / name)
        os.utime(layout.run_state, ns=(found.st_atime_ns, found.st_mtime_ns))
        following.check_replaced()
        save(program, text)
    following.check_replaced()
    assert following.store.records["a"].state is State.QUEUED
    following.close()


def test_what_a_program_left_half_written_is_refused_and_kept(layout: Layout, store: Store) -> None:
    with open(layout.status_file, "r+", encoding="utf-8") as program:
        half = queued(program.read())[:40]
        requeue_b(store).close()
        save(program, half)
    following = Projector(Store(layout, by="pod-1"))
    following.check_replaced()
    following.close()
    assert "cannot be parsed (what it wrote: line" in following.store.fold.refusals[""].why
    assert [path.read_text(encoding="utf-8") for path in layout.rejected_dir.iterdir()] == [half]
    assert following.store.records["a"].state is State.FAILED
    assert following.store.problem is None


def test_where_the_kernel_does_not_tell_who_writes_the_file_waits(
    layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced, "_has_writer", lambda fd: None)
    requeue_b(store).close()
    (name,) = hidden(layout)
    assert name.endswith(".replaced")
    clock = Clock()
    pod = Projector(store, clock=clock)
    pod.check_replaced()
    assert hidden(layout) != []
    clock.now_s += 10
    pod.check_replaced()
    assert hidden(layout) == []


def test_the_files_are_bounded_where_the_kernel_does_not_tell(
    layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the files of another user: many versions are written while each would be watched for a while."""
    monkeypatch.setattr(replaced, "_has_writer", lambda fd: None)
    monkeypatch.setattr(projection, "_WATCHED", 3)
    clock = Clock()
    pod = Projector(store, clock=clock)
    for number in range(6):
        with store.transaction() as tx:
            tx.change(f"more{number}", Event.QUEUED, Change(state=State.QUEUED))
        pod.write()
    assert len(hidden(layout)) == 3
    clock.now_s += 10
    pod.close()
    assert hidden(layout) == []


def test_one_process_takes_a_file_over(layout: Layout, store: Store) -> None:
    with open(layout.status_file, "r+", encoding="utf-8"):
        requeue_b(store).close()
        (left,) = replaced.left_behind(layout.status_file)
        first = replaced.take_over(left, layout.status_file, time.monotonic)
        assert first is not None
        assert replaced.take_over(left, layout.status_file, time.monotonic) is None
        assert list(replaced.left_behind(layout.status_file)) == []
        first.drop()
    assert hidden(layout) == []
