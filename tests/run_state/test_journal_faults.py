"""A journal that is cut, garbled, removed, newer or foreign: a clear message, nothing lost, nothing touched."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dispatcher.errors import DamagedJournalError, FormatError, LockTimeoutError, StaleViewError, StorageError
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Blame, Event
from dispatcher.run_state.first_journal import FirstJournal
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.repair import repair
from dispatcher.run_state.states import Record, State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def grown(layout: Layout, *, projected: bool = True) -> Store:
    """A workspace in which something has happened."""
    store = Store(layout, by="pod-0")
    with store.transaction() as tx:
        for job in "abcd":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    with store.transaction() as tx:
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, attempt=1, pod="pod-0"))
    with store.transaction() as tx:
        tx.change("a", Event.DONE, Change(state=State.DONE, exit_code=0), data=Blame(method="fft"))
    with store.transaction() as tx:
        tx.change("b", Event.HELD, Change(state=State.HELD), extra={"note": "später"})
    if projected:
        Projector(store).write()
    return store


def reopened(layout: Layout) -> Store:
    store = Store(layout, by="pod-1")
    with store.transaction():
        pass
    return store


def comparable(records: dict[str, Record]) -> dict[str, Record]:
    """What is known of each job, without the number of the line that said so last."""
    return {job: msgspec.structs.replace(record, rev=0) for job, record in records.items()}


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def cuts(layout: Layout) -> list[int]:
    """Every length at which the journal may be cut within its last three lines."""
    data = layout.journal(1).read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    return list(range(ends[-4], len(data)))


def test_a_cut_at_every_byte_is_noticed_by_the_head_and_repaired(quick_dir: Path) -> None:
    whole = Layout(quick_dir / "whole")
    whole.root.mkdir()
    store = grown(whole)
    for length in cuts(whole):
        layout = Layout(quick_dir / "cut")
        shutil.copytree(whole.root, layout.root)
        os.truncate(layout.journal(1), length)
        before = tree(layout.run_state)
        with pytest.raises(StaleViewError, match=r"doctor --repair"):
            reopened(layout)
        assert tree(layout.run_state) == before
        said = repair(Store(layout, by="pod-1"))
        assert any("was copied to" in sentence for sentence in said)
        # The status file knew what the journal has lost.
        assert reopened(layout).records == store.records
        shutil.rmtree(layout.root)


def test_a_cut_at_every_byte_without_the_head_comes_back_from_the_status_file(quick_dir: Path) -> None:
    whole = Layout(quick_dir / "whole")
    whole.root.mkdir()
    store = grown(whole)
    for length in cuts(whole):
        layout = Layout(quick_dir / "cut")
        shutil.copytree(whole.root, layout.root)
        os.truncate(layout.journal(1), length)
        layout.lock_file.unlink()
        found = reopened(layout)
        # Running entries are left to whoever finds out how the attempt ended.
        state = found.records["a"].state
        assert state is State.DONE or (state is State.RUNNING and length < len(whole.journal(1).read_bytes()))
        expected = comparable(store.records)
        assert {job: r for job, r in comparable(found.records).items() if job != "a"} == {
            job: r for job, r in expected.items() if job != "a"
        }
        with found.transaction() as tx:
            tx.change("c", Event.HELD, Change(state=State.HELD))
        assert reopened(layout).records == found.records
        shutil.rmtree(layout.root)


@pytest.mark.parametrize("with_head", [True, False])
@pytest.mark.parametrize("how", ["zeros", "a flipped bit"])
def test_a_line_garbled_in_the_middle_stops_everything_and_touches_nothing(
    layout: Layout, with_head: bool, how: str
) -> None:
    store = grown(layout)
    lines = layout.journal(1).read_bytes().splitlines(keepends=True)
    text = lines[5].replace(b'"by":"p', b'"by":"\xf0')
    assert text != lines[5]
    lines[5] = text if how == "a flipped bit" else b"\x00" * (len(lines[5]) - 1) + b"\n"
    layout.journal(1).write_bytes(b"".join(lines))
    if not with_head:
        layout.lock_file.unlink()
    journal_before, status_before = layout.journal(1).read_bytes(), layout.status_file.read_bytes()
    with pytest.raises(DamagedJournalError, match=r"000001\.jsonl.*(line 6|byte \d+).*doctor --repair"):
        reopened(layout)
    assert (layout.journal(1).read_bytes(), layout.status_file.read_bytes()) == (journal_before, status_before)
    said = " ".join(repair(Store(layout, by="pod-1")))
    assert "1 of its lines could not be read" in said
    found = reopened(layout)
    assert comparable(found.records).keys() == store.records.keys()
    assert found.records["a"].state is State.DONE
    assert found.records["b"] == store.records["b"]
    kept = [path.read_bytes() for path in layout.rejected_dir.iterdir()]
    assert journal_before in kept


def test_a_repair_of_a_whole_journal_does_nothing(layout: Layout) -> None:
    grown(layout).close()
    before = tree(layout.journal_dir)
    assert repair(Store(layout, by="pod-1")) == []
    assert tree(layout.journal_dir) == before


@pytest.mark.parametrize("damage", [b"", b"garbage" * 100, b"\x00" * 512, b"00000000 {}"])
def test_the_head_can_be_lost(layout: Layout, damage: bytes) -> None:
    store = grown(layout)
    layout.lock_file.write_bytes(damage)
    found = reopened(layout)
    assert found.records == store.records
    # Those who were there before go on with it.
    with store.transaction() as tx:
        tx.change("c", Event.HELD, Change(state=State.HELD))
    found.refresh()
    assert found.records == store.records


def test_a_garbled_first_line_is_repaired_from_the_status_file(layout: Layout) -> None:
    store = grown(layout)
    data = layout.journal(1).read_bytes()
    layout.journal(1).write_bytes(b"#" * 20 + data[20:])
    before = tree(layout.run_state)
    with pytest.raises(DamagedJournalError, match="line 1 is not a journal header"):
        reopened(layout)
    assert tree(layout.run_state) == before
    said = " ".join(repair(Store(layout, by="pod-1")))
    assert "first line cannot be read" in said
    assert reopened(layout).records == store.records


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"format": "dispatcher-journal", "version": 99}, "version 99; this dispatcher knows versions up to 1"),
        ({"format": "something-else", "version": 1}, "format 'something-else', expected 'dispatcher-journal'"),
    ],
)
def test_a_newer_or_foreign_journal_is_refused_and_not_touched(
    layout: Layout, header: dict[str, object], words: str
) -> None:
    grown(layout).close()
    lines = layout.journal(1).read_bytes().split(b"\n", 1)
    layout.journal(1).write_bytes(json.dumps(header).encode() + b"\n" + lines[1])
    before = tree(layout.run_state)
    for act in (reopened, lambda here: repair(Store(here, by="x")), lambda here: Store(here, by="x").refresh()):
        with pytest.raises(FormatError, match=words):
            act(layout)
    assert tree(layout.run_state) == before


def test_a_removed_journal_is_rebuilt_from_the_status_file(layout: Layout) -> None:
    store = grown(layout)
    layout.journal(1).unlink()
    found = reopened(layout)
    assert found.records == store.records
    assert list(found.records) == list(store.records)
    assert found.fold.refusals == {}
    # The number is a new one, so those who have read the old file notice.
    assert journal.generations(layout) == [2]
    with store.transaction() as tx:
        tx.change("c", Event.HELD, Change(state=State.HELD))
    found.refresh()
    assert found.records == store.records


@pytest.mark.parametrize("removed", ["journal", "claims.lock"])
def test_what_is_removed_while_dispatchers_run_makes_no_two_of_them(layout: Layout, removed: str) -> None:
    """The lock that a process has open must be the one that a newcomer opens."""
    store = grown(layout)
    if removed == "journal":
        shutil.rmtree(layout.journal_dir)
    layout.lock_file.unlink()
    newcomer = reopened(layout)
    with (
        newcomer.transaction(),
        # The elder must not get in now.
        pytest.raises(LockTimeoutError, match="held by another process"),
        store.transaction(timeout_s=0.2),
    ):
        pass
    with store.transaction() as tx:
        tx.change("c", Event.HELD, Change(state=State.HELD))
    newcomer.refresh()
    assert newcomer.records == store.records


def test_a_journal_that_another_took_the_place_of_is_read_anew(layout: Layout, tmp_path: Path) -> None:
    store = grown(layout)
    other = Layout(tmp_path / "other")
    other.root.mkdir()
    others = grown(other)
    with others.transaction() as tx:
        tx.change("z" * 500, Event.QUEUED, Change(state=State.QUEUED))
    os.rename(other.journal(1), layout.journal(1))
    os.rename(other.lock_file, layout.root / "head")
    layout.lock_file.write_bytes((layout.root / "head").read_bytes())
    layout.status_file.unlink()
    with store.transaction():
        pass
    assert store.records == others.records


def test_a_reader_without_a_head_shows_all_of_a_journal_that_took_the_place_of_another(
    layout: Layout, tmp_path: Path
) -> None:
    grown(layout)
    reader = Store(layout, by="reader")
    reader.refresh()
    other = Layout(tmp_path / "other")
    other.root.mkdir()
    others = grown(other)
    os.rename(other.journal(1), layout.journal(1))
    layout.lock_file.unlink()
    reader.refresh()
    assert reader.records == others.records


def test_a_change_is_on_the_disk_before_the_head_tells_of_it(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    store = grown(layout)
    calls: list[tuple[str, str]] = []
    pwrite, fsync = os.pwrite, os.fsync

    def name(fd: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{fd}")).name

    def noted_pwrite(fd: int, *rest: Any) -> int:
        calls.append(("write", name(fd)))
        return pwrite(fd, *rest)

    def noted_fsync(fd: int) -> None:
        calls.append(("sync", name(fd)))
        fsync(fd)

    monkeypatch.setattr(os, "pwrite", noted_pwrite)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    with store.transaction() as tx:
        tx.change("c", Event.HELD, Change(state=State.HELD))
        tx.change("d", Event.HELD, Change(state=State.HELD))
    assert calls == [("write", "000001.jsonl"), ("sync", "000001.jsonl"), ("write", "claims.lock")]
    calls.clear()
    with store.transaction():
        pass
    assert calls == []


def test_a_removed_status_file_is_written_anew(layout: Layout) -> None:
    store = grown(layout)
    data = layout.status_file.read_bytes()
    layout.status_file.unlink()
    fresh = reopened(layout)
    assert fresh.status_is_stale
    Projector(fresh).write()
    assert layout.status_file.read_bytes() == data
    # Also by one that believed it current.
    layout.status_file.unlink()
    with store.transaction():
        pass
    assert store.status_is_stale
    Projector(store).write()
    assert layout.status_file.read_bytes() == data


def test_a_journal_and_a_status_file_that_are_gone_are_a_first_start(layout: Layout) -> None:
    grown(layout).close()
    shutil.rmtree(layout.run_state)
    assert reopened(layout).records == {}


def test_an_unfinished_batch_counts_for_nothing_without_a_head(layout: Layout) -> None:
    store = grown(layout)
    expected = dict(store.records)
    with store.transaction() as tx:
        for number in range(50):
            tx.change(f"new{number}", Event.QUEUED, Change(state=State.QUEUED))
    data = layout.journal(1).read_bytes()
    os.truncate(layout.journal(1), len(data) - 10)
    layout.lock_file.unlink()
    assert reopened(layout).records == expected


def test_history_is_one_story_over_all_generations(layout: Layout) -> None:
    store = grown(layout)
    told = list(journal.history(layout))
    for state, event in ((State.HELD, Event.HELD), (State.QUEUED, Event.REQUEUED)):
        assert store.rotate()
        with store.transaction() as tx:
            tx.change("c", event, Change(state=state))
        told = [*told, *list(journal.history(layout))[-1:]]
    assert journal.generations(layout) == [1, 2, 3]
    assert [path.name for path in sorted(layout.journal_dir.iterdir())] == [
        "000001.jsonl.gz", "000002.jsonl.gz", "000003.jsonl",
    ]  # fmt: skip
    assert list(journal.history(layout)) == told
    assert [line.event for line in journal.history(layout, "c")] == ["queued", "held", "requeued"]


def test_a_missing_newest_generation_is_not_taken_for_an_older_one(layout: Layout) -> None:
    store = grown(layout)
    assert store.rotate()
    layout.journal(2).unlink()
    before = tree(layout.run_state)
    for look in (reopened, lambda here: Store(here, by="x").refresh()):
        with pytest.raises(DamagedJournalError, match=r"000002\.jsonl is gone.*doctor --repair"):
            look(layout)
    assert tree(layout.run_state) == before
    assert repair(Store(layout, by="x"))
    assert reopened(layout).records == store.records
    assert journal.generations_in_force(layout) == [1, 3]


def test_a_workspace_that_was_unmounted_is_not_begun_anew_below(layout: Layout, tmp_path: Path) -> None:
    store = grown(layout)
    with store.transaction():
        layout.root.rename(tmp_path / "elsewhere")
        layout.root.mkdir()
        with pytest.raises(StorageError, match="unmounted"):
            FirstJournal(layout, "pod-0", time.time, (), None).create(2, "flock")
    assert list(layout.root.iterdir()) == []
