"""A status file with lines that cannot be read: the others count, once, and the file is left to its author."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from run_state.lines import JOBS, json_values

from dispatcher.errors import StatusFileError
from dispatcher.run_state import projection
from dispatcher.run_state.change import Change
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.events import Event
from dispatcher.run_state.projection import Projector, restore
from dispatcher.run_state.states import State, make_record
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


@pytest.fixture
def store(layout: Layout) -> Store:
    made = Store(layout, by="pod-0")
    with made.transaction() as tx:
        for job in "abcd":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    for job in "abcd":
        fail(made, job)
    Projector(made).write()
    return made


def fail(store: Store, job: str) -> None:
    with store.transaction() as tx:
        record = tx.record(job)
        assert record is not None
        tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=record.attempt + 1))
        tx.change(job, Event.FAILED, Change(state=State.FAILED))


def touch(store: Store) -> None:
    """A transaction with nothing of its own."""
    with store.transaction():
        pass


def edit(layout: Layout, *changes: tuple[str, str]) -> bytes:
    """Replace words of the file as it stands, in place."""
    text = layout.status_file.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, f"{old!r} is not in {text}"
        text = text.replace(old, new)
    layout.status_file.write_text(text, encoding="utf-8")
    return text.encode()


REQUEUE_A = ('"a": {"state": "failed"', '"a": {"state": "queued"')
BREAK_B = ('"b": {"state": "failed"', '"b": {"state": failed"')


def test_one_broken_line_suspends_one_line(layout: Layout, store: Store) -> None:
    kept = store.records["b"]
    saved = edit(layout, REQUEUE_A, BREAK_B, ('"c": {', '"c": {"note": "ключ", '))
    touch(store)
    assert store.records["a"].state is State.QUEUED
    assert store.records["b"] == kept
    assert store.records["c"].extra == {"note": "ключ"}
    assert store.fold.refusals == {}
    assert re.search(r"matrix_status\.json: line 3: .*\(the record of 'b' stays as it is\)", store.problem or "")
    # Nothing writes over what the person has to correct.
    Projector(store).write()
    assert layout.status_file.read_bytes() == saved
    edit(layout, ('{"state": failed"', '{"state": "held"'))
    touch(store)
    assert store.problem is None
    assert store.records["b"].state is State.HELD
    Projector(store).write()
    assert layout.status_file.read_bytes() == status_file.render(store.records)


def test_what_was_taken_in_of_a_broken_file_is_not_taken_in_again(layout: Layout, store: Store) -> None:
    """The requeued job fails again while the file still says `queued`: nobody wants a third start."""
    edit(layout, REQUEUE_A, BREAK_B)
    touch(store)
    fail(store, "a")
    newcomer = Store(layout, by="pod-1")
    touch(newcomer)
    assert newcomer.records["a"].state is State.FAILED
    assert newcomer.problem is not None
    # Saved once more, with another edit of another line, and one of the same.
    edit(layout, ('"c": {"state": "failed"', '"c": {"state": "queued"'))
    touch(store)
    assert (store.records["a"].state, store.records["c"].state) == (State.FAILED, State.QUEUED)
    assert store.rotate()
    after_rotation = Store(layout, by="pod-2")
    edit(layout, ('"a": {', '"a": {"priority": 3, '))
    touch(after_rotation)
    assert (after_rotation.records["a"].state, after_rotation.records["a"].priority) == (State.FAILED, 3)
    edit(layout, ('{"state": failed"', '{"state": "failed"'))
    touch(after_rotation)
    assert after_rotation.problem is None
    Projector(after_rotation).write()
    assert json.loads(layout.status_file.read_bytes())["a"]["state"] == "failed"
    # From now on the line is a new one, and the same words are a new edit.
    edit(layout, ('"a": {"state": "failed"', '"a": {"state": "queued"'))
    touch(after_rotation)
    assert after_rotation.records["a"].state is State.QUEUED


def test_a_line_without_rev_counts_once_for_each_time_it_is_written(layout: Layout, store: Store) -> None:
    layout.status_file.write_text('{\n"a": {"state": "queued"},\n"b": {"state" "queued"},\n"c": {}\n}\n')
    touch(store)
    assert store.records["a"].state is State.QUEUED
    fail(store, "a")
    touch(Store(layout, by="pod-1"))
    store.refresh(to_the_end=True)
    assert store.records["a"].state is State.FAILED
    assert restore(store) is not None
    layout.status_file.write_text('{"a": {"state": "queued"}, "b": {"state": "failed"}}')
    touch(store)
    assert store.records["a"].state is State.QUEUED


def test_an_edit_that_a_failed_transaction_took_in_is_taken_in_again(layout: Layout, store: Store) -> None:
    edit(layout, REQUEUE_A, BREAK_B)
    with pytest.raises(ZeroDivisionError), store.transaction():
        assert store.records["a"].state is State.QUEUED
        raise ZeroDivisionError
    assert store.records["a"].state is State.FAILED
    touch(store)
    assert store.records["a"].state is State.QUEUED


@pytest.mark.parametrize("lost", [1, 3, 40, 150])
def test_a_file_that_is_cut_off_has_lost_no_line(layout: Layout, store: Store, lost: int) -> None:
    """Somebody is in the middle of saving it, or the disk was full."""
    whole = edit(layout, REQUEUE_A, ('"d": {"state": "failed"', '"d": {"state": "queued"'))
    cut = whole[:-lost]
    layout.status_file.write_bytes(cut)
    touch(store)
    assert store.records["a"].state is State.QUEUED
    assert store.fold.refusals == {}
    if lost == 1:
        # Only the line's end is missing.
        assert store.problem is None
        return
    assert store.problem is not None
    Projector(store).write()
    assert layout.status_file.read_bytes() == cut
    layout.status_file.write_bytes(whole)
    touch(store)
    assert store.problem is None
    assert store.records["d"].state is State.QUEUED


@pytest.mark.parametrize(
    ("old", "new"),
    [('},\n"c"', '}\n"c"'), ("}\n}\n", "},\n}\n"), ('},\n"c"', '},,\n"c"'), ('},\n"c"', '},\r\n"c"')],
    ids=["a missing comma", "a comma too many", "two commas", "another line end"],
)
def test_commas_that_are_missing_or_too_many_leave_no_line_unread(
    layout: Layout, store: Store, old: str, new: str
) -> None:
    edit(layout, REQUEUE_A, (old, new))
    touch(store)
    assert store.problem is None
    assert store.records["a"].state is State.QUEUED
    Projector(store).write()
    assert layout.status_file.read_bytes() == status_file.render(store.records)


def test_a_broken_file_that_is_not_written_line_by_line_changes_nothing(layout: Layout, store: Store) -> None:
    lines = json.loads(layout.status_file.read_bytes())
    lines["a"].update({"state": "queued", "empty": {}, "list": []})
    for indent in (0, 1, 2, "\t"):
        text = json.dumps(lines, indent=indent)
        layout.status_file.write_text(text.replace('"rev"', "rev", 1))
        touch(store)
        assert re.search(r"line \d+, column \d+", store.problem or "")
        assert store.records["a"].state is State.FAILED
        assert store.fold.refusals == {}


def test_restore_takes_in_what_can_be_read_and_keeps_the_rest(layout: Layout, store: Store) -> None:
    saved = edit(layout, REQUEUE_A, BREAK_B)
    kept = restore(store)
    assert kept is not None
    assert kept.read_bytes() == saved
    assert store.records["a"].state is State.QUEUED
    assert layout.status_file.read_bytes() == status_file.render(store.records)


def test_a_reader_is_told_and_sees_what_counts(layout: Layout, store: Store) -> None:
    edit(layout, REQUEUE_A, BREAK_B)
    reader = Store(layout, by="reader")
    reader.refresh(to_the_end=True)
    assert [(edit.job, edit.event) for edit in reader.pending_edits().edits] == [("a", "requeued")]
    assert "line 3" in (reader.problem or "")
    touch(store)
    reader.refresh(to_the_end=True)
    assert not reader.pending_edits()
    assert reader.problem == store.problem


def drop_quote(line: str) -> str:
    return line.replace('"', "", 1)


BREAKS: list[Callable[[str], str]] = [
    drop_quote,
    lambda line: line[: len(line) // 2],
    lambda line: line.replace("}", "", 1),
    lambda line: line.replace(":", "", 1),
    lambda line: "x" + line,
    lambda line: line.replace('{"', '{"loss": NaN, "', 1),
    lambda line: line.replace('{"', '{"\ufffd": "\x00", "', 1),
]


@given(
    st.dictionaries(st.sampled_from(JOBS), st.dictionaries(st.just("note"), json_values), min_size=2, max_size=4),
    st.sampled_from(BREAKS),
    st.data(),
)
def test_every_line_but_the_broken_one_is_read(
    notes: dict[str, dict[str, object]], spoil: Callable[[str], str], data: st.DataObject
) -> None:
    records = {job: make_record({"state": "queued", "rev": 7, **note}) for job, note in notes.items()}
    expected = status_file.parse(status_file.render(records), "status")
    rows = status_file.render(records).decode().split("\n")
    number = data.draw(st.integers(1, len(records)))
    rows[number] = spoil(rows[number])
    text = "\n".join(rows)
    try:
        status_file.parse(text.encode(), "status")
    except StatusFileError:
        pass
    else:
        # What was taken out stood within a note.
        reject()
    found = status_file.parse_lines(text.encode(), "status")
    del expected[list(records)[number - 1]]
    assert found.jobs == expected
    assert [line.number for line in found.broken] == [number + 1]


@pytest.mark.parametrize(
    ("text", "read", "broken"),
    [
        ('{\n"a": {},\n"b": {},\n"a": {}\n}', "b", {4: "duplicate job 'a', also in line 2"}),
        ('{\n"a": {},\n"b": {"x": 1, "x": 2}\n}', "a", {3: "duplicate key 'x'"}),
        ('{\n"a": {},\n"b": 5\n}', "a", {3: "'b' holds 5"}),
        ('{\n"a": {},\n\n"b": {\n  "state": "queued"\n  "note": {}\n},\n"c": {}\n}', "ac", {4: "Expecting"}),
        ('{\n"a": {}, "b": {}\n"c": {}\n}', "abc", {}),
        ('"a": {}\n}', "a", {1: "the { at the beginning"}),
        ('{\n"a": {}', "a", {2: "the } at the end"}),
        ('{\n"a": {}\n}\n}', "a", {4: "one } too many"}),
        ('\ufeff{\n"a": {},\n"b": {\n}', "a", {3: "Expecting"}),
    ],
)
def test_what_is_read_of_a_broken_file(text: str, read: str, broken: dict[int, str]) -> None:
    found = status_file.parse_lines(text.encode(), "status")
    assert list(found.jobs) == list(read)
    assert [line.number for line in found.broken] == list(broken)
    for line in found.broken:
        assert broken[line.number] in line.why


def test_a_line_that_is_no_text_is_one_broken_line() -> None:
    found = status_file.parse_lines(b'{\n"a": {},\n"b": {"note": "\xff"}\n}', "status")
    assert list(found.jobs) == ["a"]
    assert [(line.number, line.job) for line in found.broken] == [(3, "b")]
    assert "0xff" in found.broken[0].why


def test_the_restored_file_never_leaves_a_moment_without_one(
    layout: Layout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever call of the system it is at, a reader finds a file, and it is the old one or the new one."""
    saved = edit(layout, BREAK_B)
    seen: list[bytes] = []

    def looking(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            seen.append(Path(layout.status_file).read_bytes())
            try:
                return call(*args, **kwargs)
            finally:
                seen.append(Path(layout.status_file).read_bytes())

        return wrapped

    for exchange in (True, False):
        layout.status_file.write_bytes(saved)
        with monkeypatch.context() as patch:
            for name in ("rename", "replace", "unlink", "link", "truncate", "ftruncate", "pwrite", "fsync"):
                patch.setattr(os, name, looking(getattr(os, name)))
            if not exchange:
                patch.setattr(projection, "_renameat2", lambda: None)
            kept = restore(store)
        assert kept is not None
        assert kept.read_bytes() == saved
        assert saved in seen
        assert set(seen) == {saved, status_file.render(store.records)}
        store.refresh(to_the_end=True)
        seen.clear()
