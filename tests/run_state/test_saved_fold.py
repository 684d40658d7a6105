"""A saved fold spares a long journal, and whatever becomes of it, the journal alone says what happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatcher.errors import DamagedJournalError
from dispatcher.run_state import journal, loaded_generation, saved_fold
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import AppliedEdit, Blame, Event, HandEdit, Paused, Refused
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
    rest = [fold.pauses, fold.refusals, fold.streaks, fold.applied_edits, fold.lock_kind]
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
