"""A saved fold spares a long journal, and whatever becomes of it, the journal alone says what happened."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher.errors import DamagedJournalError, StaleViewError
from dispatcher.run_state import checksum, journal, loaded_generation, saved_fold
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import AppliedEdit, Blame, Event, HandEdit
from dispatcher.run_state.facets.gpu_idle import GpuIdle
from dispatcher.run_state.facets.pauses import Paused
from dispatcher.run_state.facets.refusals import Refused
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


@pytest.fixture(autouse=True)
def always_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_generation, "_WORTHWHILE", 1)


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the lines that were parsed, without those beyond the head."""
    numbers: list[int] = []
    parse = journal.parse_lines

    def watched(*args: object) -> list[journal.Line]:
        lines = parse(*args)  # type: ignore[arg-type]
        numbers.extend(line.seq for line in lines)
        return lines

    monkeypatch.setattr(journal, "parse_lines", watched)
    return numbers


def grown(layout: Layout) -> Store:
    """A journal with everything that a fold holds; saved."""
    store = Store(layout, by="pod-0")
    with store.transaction() as tx:
        for job in "abcdef":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
        tx.note(Paused(scope="lora", why="five alike"))
        tx.change("g", Event.QUEUED, Change(state=State.QUEUED))
        tx.change("g", Event.CLAIMED, Change(state=State.RUNNING, attempt=1, gpu=(0, 1)))
        tx.note(GpuIdle(attempt=1, since="2026-11-23T03:00:00Z", gpus=2), job="g")
        tx.note(Refused(line='"x": {}', why="no state"), job="x")
        tx.delete("c")
        edit = HandEdit(edit=AppliedEdit(1, {"note": "ü"}))
        tx.change("a", Event.EDITED, Change(priority=3), extra={"note": "ü"}, data=edit)
        tx.change("b", Event.CLAIMED, Change(state=State.RUNNING, attempt=1, gpu=(0, 1)))
        failed = Change(state=State.FAILED, error="CUDA error 700", reason="exit 1")
        tx.change("b", Event.FAILED, failed, data=Blame(method="fft", gpu="gpu:h:1"))
    store.save()
    assert layout.saved_fold.exists()
    return store


def said(store: Store) -> list[object]:
    fold = store.fold
    born = {job: fold.records.born(job) for job in fold.records}
    rest = [fold.pauses, fold.refusals, fold.pauses.streaks, fold.gpu_idle, fold.applied_edits, fold.lock_kind]
    return [fold.seq, list(fold.records.items()), born, *rest, store.position]


def opened(layout: Layout) -> Store:
    store = Store(layout, by="newcomer")
    store.refresh()
    return store


def test_only_what_came_after_it_is_folded(layout: Layout, folded: list[int]) -> None:
    store = grown(layout)
    assert said(opened(layout)) == said(store)
    assert folded == []
    seq = store.seq
    with store.transaction() as tx:
        tx.change("d", Event.HELD, Change(state=State.HELD))
        tx.change("new", Event.QUEUED, Change(state=State.QUEUED))
    newcomer = opened(layout)
    assert said(newcomer) == said(store)
    assert folded == [seq + 1, seq + 2]
    assert newcomer.fold.drain_touched() == set(store.records)
    with newcomer.transaction() as tx:
        tx.change("e", Event.HELD, Change(state=State.HELD))
    store.refresh()
    assert said(store) == said(newcomer)


def test_what_is_saved_beside_the_loop_is_the_fold_at_the_beginning(layout: Layout, folded: list[int]) -> None:
    store = grown(layout)
    with store.transaction() as tx:
        tx.change("d", Event.HELD, Change(state=State.HELD))
        tx.change("f", Event.HELD, Change(state=State.HELD))
    write, seq = store.begin_save(), store.seq
    assert write is not None
    with store.transaction() as tx:
        tx.change("d", Event.REQUEUED, Change(state=State.QUEUED))
        tx.delete("e")
        tx.change("new", Event.QUEUED, Change(state=State.QUEUED))
        tx.note(Paused(scope="fft", why="more alike"))
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert said(opened(layout)) == said(store)
    assert folded == [seq + 1, seq + 2, seq + 3, seq + 4]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:20], flip])
def test_a_damaged_one_is_as_good_as_none(layout: Layout, folded: list[int], damage: Callable[[bytes], bytes]) -> None:
    store = grown(layout)
    layout.saved_fold.write_bytes(damage(layout.saved_fold.read_bytes()))
    assert said(opened(layout)) == said(store)
    assert len(folded) == store.seq


def test_one_of_another_version_or_generation_is_left_alone(
    layout: Layout, folded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = grown(layout)
    old = layout.saved_fold.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(saved_fold, "_FORM", "another")
        assert said(opened(layout)) == said(store)
        assert len(folded) == store.seq
    assert store.rotate()
    store.save()
    layout.saved_fold.write_bytes(old)
    assert said(opened(layout)) == said(store)


def test_a_journal_that_was_overwritten_is_found_out_all_the_same(layout: Layout) -> None:
    grown(layout)
    path = layout.journal(1)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"priority":3', b'"priority":4'))
    with pytest.raises(DamagedJournalError, match="doctor --repair"):
        opened(layout)
    # Without the head nothing tells that it was overwritten: then the journal counts, not what was saved of it.
    layout.lock_file.unlink()
    store = Store(layout, by="newcomer")
    store.refresh(to_the_end=True)
    assert store.records["a"].priority == 4


def test_a_number_that_has_no_packed_form_is_not_saved(layout: Layout) -> None:
    store = Store(layout, by="pod-0")
    with store.transaction() as tx:
        tx.change("a", Event.QUEUED, Change(state=State.QUEUED), extra={"seed": 2**70})
    store.save()
    assert not layout.saved_fold.exists()
    assert [path for path in layout.journal_dir.iterdir() if path != layout.journal(1)] == []
    assert opened(layout).records["a"].extra == {"seed": 2**70}


def shown(layout: Layout) -> Store:
    """As `status` reads it."""
    store = Store(layout, by="status")
    store.refresh(to_the_end=True, for_display=True)
    return store


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(checksum, "BLOCK", 256)
    monkeypatch.setattr(loaded_generation, "BLOCK", 256)
    return 256


def overwrite(layout: Layout) -> None:
    """Change a byte in the third block of the journal, of many."""
    path = layout.journal(1)
    data = bytearray(path.read_bytes())
    start = data.index(b'"job":"d"')
    assert 2 * 256 < start < 3 * 256 < 5 * 256 < len(data)
    data[start + 7 : start + 8] = b"D"
    path.write_bytes(data)


def test_who_shows_records_reads_what_was_saved_and_what_follows(
    layout: Layout, folded: list[int], small_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = grown(layout)
    with store.transaction() as tx:
        tx.change("d", Event.HELD, Change(state=State.HELD))
    checked = []
    check = loaded_generation.LoadedGeneration.check
    monkeypatch.setattr(loaded_generation.LoadedGeneration, "check", lambda *args: checked.append(1) or check(*args))
    newcomer = shown(layout)
    assert said(newcomer) == said(store)
    assert folded == [store.seq]
    assert newcomer.fold.drain_touched() == set(store.records)
    # Steps cost as little as ever, and what it appends follows on what it has read.
    with store.transaction() as tx:
        tx.change("e", Event.HELD, Change(state=State.HELD))
    newcomer.refresh(to_the_end=True, for_display=True)
    assert said(newcomer) == said(store)
    assert not checked
    for job in "af":
        with newcomer.transaction() as tx:
            tx.change(job, Event.HELD, Change(state=State.HELD))
    assert len(checked) == 1 and newcomer.reloads == 1, "all bytes were read before the first change"
    store.refresh()
    assert said(store) == said(newcomer) == said(opened(layout))


def test_who_changes_records_reads_all_bytes(layout: Layout, small_blocks: int) -> None:
    store = grown(layout)
    overwrite(layout)
    newcomer = shown(layout)
    assert said(newcomer) == said(store), "neither the first block nor the last"
    before = layout.journal(1).read_bytes()
    with pytest.raises(DamagedJournalError, match="doctor --repair"), newcomer.transaction() as tx:
        tx.change("a", Event.HELD, Change(state=State.HELD))
    assert layout.journal(1).read_bytes() == before
    with pytest.raises(DamagedJournalError, match="doctor --repair"):
        opened(layout)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def replace_by_another(path: Path) -> None:
    """A copy of the same workspace in which something else happened: the same first line, and no shorter."""
    data = path.read_bytes()
    path.write_bytes(data.replace(b"CUDA error 700", b"CUDA error 701"))


@pytest.mark.parametrize("damage", [cut, replace_by_another])
def test_a_journal_that_was_cut_or_replaced_is_found_out_by_all(
    layout: Layout, small_blocks: int, damage: Callable[[Path], None]
) -> None:
    grown(layout)
    damage(layout.journal(1))
    with pytest.raises((DamagedJournalError, StaleViewError)), shown(layout).transaction():
        pass
    with pytest.raises((DamagedJournalError, StaleViewError)), opened(layout).transaction():
        pass


def test_a_restored_backup_is_shown_as_it_is(layout: Layout, folded: list[int], small_blocks: int) -> None:
    """The journal and the head of an earlier time, with a fold that was saved later."""
    store = grown(layout)
    kept = {path: path.read_bytes() for path in (layout.journal(1), layout.lock_file)}
    with store.transaction() as tx:
        for job in "adef":
            tx.change(job, Event.HELD, Change(state=State.HELD))
    store.save()
    for path, data in kept.items():
        path.write_bytes(data)
    restored = Store(layout, by="elsewhere")
    with restored.transaction() as tx:
        for job in "adef":
            tx.change(job, Event.EDITED, Change(priority=9), extra={"note": "as long as what was there before" * 9})
    assert said(shown(layout)) == said(restored)


def test_without_a_head_all_bytes_are_read(layout: Layout, small_blocks: int) -> None:
    grown(layout)
    overwrite(layout)
    layout.lock_file.unlink()
    assert "D" in shown(layout).records
