"""A host that was cut off writes late, over the lines of others: everybody notices before anything is changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from clocks import Clock

from dispatcher.base import files
from dispatcher.base.mounts import Mount
from dispatcher.errors import DamagedJournalError
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.checksum import BLOCK, PAGE, RunningChecksum
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import Line
from dispatcher.run_state.repair import repair
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

AT = "2026-06-17T22:48:00.123Z"
OpenStore = Callable[[str], Store]


def queue(store: Store, *jobs: str, note: str = "") -> None:
    with store.transaction() as tx:
        for job in jobs:
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED), extra={"note": note})


def write_late(layout: Layout, offset: int, seq: int, length: int = 0) -> None:
    """What a host does that decided at this length of the journal and is heard of only now."""
    line = Line(seq=seq, at=AT, by="late", event=Event.QUEUED, job="late", set={"state": "queued", "note": ""})
    line.set["note"] = "x" * max(0, length - len(journal.encode(line)) - 1)
    fd = os.open(layout.journal(1), os.O_WRONLY)
    os.pwrite(fd, journal.encode(line) + b"\n", offset)
    os.close(fd)


class Looked(Clock):
    """Advances by a second with every reading: so every step compares the whole journal."""

    step_s = 1.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def clock() -> Looked:
    return Looked()


@pytest.fixture
def open_store(layout: Layout, clock: Looked) -> OpenStore:
    return lambda by: Store(layout, by=by, clock=clock)


@pytest.fixture
def overwritten(layout: Layout, open_store: OpenStore) -> Store:
    """A process that has in memory what a late write has replaced on the disk."""
    store = open_store("witness")
    queue(store, "a")
    offset, seq = store.offset, store.seq
    # As long as the late line, to the byte: nothing but the content can tell.
    queue(store, "b", note="long enough for the late line to fit in here")
    length = store.offset - offset
    queue(store, "c")
    write_late(layout, offset, seq + 1, length)
    return store


def test_a_process_that_had_the_lines_in_memory_stops(overwritten: Store) -> None:
    before = overwritten.layout.journal(1).read_bytes()
    with pytest.raises(DamagedJournalError, match=r"bytes 0 to \d+ are not what .*doctor --repair"):
        queue(overwritten, "d")
    with pytest.raises(DamagedJournalError, match=r"doctor --repair"):
        overwritten.refresh()
    assert overwritten.layout.journal(1).read_bytes() == before


@pytest.mark.parametrize("to_the_end", [True, False])
def test_a_newcomer_stops(overwritten: Store, open_store: OpenStore, to_the_end: bool) -> None:
    newcomer = open_store("newcomer")
    with pytest.raises(DamagedJournalError, match=r"doctor --repair"):
        newcomer.refresh(to_the_end=to_the_end)
    with pytest.raises(DamagedJournalError, match=r"doctor --repair"):
        queue(newcomer, "d")


def test_whole_lines_that_replace_whole_lines_are_noticed(layout: Layout, open_store: OpenStore) -> None:
    store = open_store("witness")
    queue(store, "a")
    offset, seq = store.offset, store.seq
    queue(store, "b")
    data = layout.journal(1).read_bytes()
    layout.journal(1).write_bytes(data[:offset] + data[offset:].replace(b'"job":"b"', b'"job":"z"'))
    for other in (store, open_store("newcomer")):
        with pytest.raises(DamagedJournalError, match=r"doctor --repair"):
            queue(other, "d")
    assert store.seq == seq + 1


def test_far_back_in_a_long_journal_it_is_noticed_within_one_round(layout: Layout, open_store: OpenStore) -> None:
    store = open_store("witness")
    queue(store, "a")
    offset, seq = store.offset, store.seq
    while store.offset < 5 * BLOCK:
        queue(store, *(f"job-{number:03}" for number in range(400)))
        with store.transaction() as tx:
            for number in range(400):
                tx.delete(f"job-{number:03}")
    write_late(layout, offset, seq + 1)
    with pytest.raises(DamagedJournalError, match=r"doctor --repair"):
        for _ in range(store.offset // BLOCK + 1):
            store.refresh()


def test_a_claim_on_a_local_disk_does_not_pay_for_it(
    open_store: OpenStore, clock: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There no host can be cut off and write late."""
    clock.step_s = 0.0
    checks: list[int] = []
    differs_at = RunningChecksum.differs_at
    monkeypatch.setattr(
        RunningChecksum, "differs_at", lambda self, fd, **_: (checks.append(fd), differs_at(self, fd))[1]
    )
    store = open_store("pod")
    for number in range(10):
        queue(store, f"job-{number}")
        store.refresh()
    assert len(checks) == 1


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, clock: Looked) -> None:
    """An NFS mount between two of the looks at everything that come once a second."""
    monkeypatch.setattr(Mount, "is_network", True)
    clock.step_s = 0.0


@pytest.mark.usefixtures("network")
def test_a_late_write_near_the_end_is_noticed_by_the_next_step(overwritten: Store) -> None:
    journal_file = overwritten.layout.journal(1)
    before = journal_file.read_bytes()
    assert len(before) < PAGE
    with pytest.raises(DamagedJournalError, match=r"doctor --repair"):
        queue(overwritten, "d")
    assert journal_file.read_bytes() == before


@pytest.mark.usefixtures("network")
def test_the_folder_of_the_journal_is_opened_once_a_second_and_when_something_is_wrong(
    layout: Layout, open_store: OpenStore, clock: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    refresh_names = files.refresh_names
    monkeypatch.setattr(files, "refresh_names", lambda path: (opened.append(Path(path)), refresh_names(path))[1])
    store = open_store("pod")
    queue(store, "a")
    opened.clear()
    clock.now_s += 1
    queue(store, "b")
    assert layout.journal_dir in opened
    opened.clear()
    for number in range(5):
        queue(store, f"job-{number}")
    assert layout.journal_dir not in opened, "everything was looked at just before"
    layout.journal(1).unlink()
    queue(store, "d")
    assert layout.journal_dir in opened
    assert store.generation == 2


def test_a_late_head_is_noticed_too(layout: Layout, open_store: OpenStore) -> None:
    """The late host's head lies: what is in the journal up to there is not what it was written for."""
    store, late = open_store("witness"), open_store("late")
    queue(store, "a")
    late.refresh()
    old = layout.journal(1).read_bytes()
    queue(late, "late")
    head = layout.lock_file.read_bytes()
    os.truncate(layout.journal(1), len(old))
    layout.lock_file.write_bytes(b"")
    store = open_store("witness")
    queue(store, "b", note="longer than the late one's line, so that it is there up to the length of that head")
    layout.lock_file.write_bytes(head)
    with pytest.raises(DamagedJournalError, match=r"not what the lock file was written for.*doctor --repair"):
        queue(store, "c")


def test_doctor_says_so_and_repairs(overwritten: Store, open_store: OpenStore) -> None:
    layout = overwritten.layout
    command = [*commands.COMMAND, "doctor", "--root", str(layout.root), "--peer-wait", "0"]
    done = commands.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "are not what the lock file was written for" in done.stdout
    said = " ".join(repair(open_store("pod")))
    assert "was copied to" in said
    found = open_store("pod")
    found.refresh(to_the_end=True)
    assert {"a", "late"} <= found.records.keys()
    queue(found, "d")
    # Whoever had the lost lines in memory follows into the new generation.
    overwritten.refresh()
    assert overwritten.records["d"].state is State.QUEUED
