"""Zero is a value: every field of a record with each of its falsy values, set, shown, edited by hand and removed."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_state.lines import AT

from dispatcher.errors import FormatError
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change, split
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.edits.changes import Recorded, changes
from dispatcher.run_state.events import Event
from dispatcher.run_state.fold import Fold, snapshot
from dispatcher.run_state.prepared import PreparedClaims
from dispatcher.run_state.requests import FRESH_START
from dispatcher.run_state.states import DEFAULTS, Record, State, make_record
from dispatcher.run_state.transaction import Transaction
from dispatcher.workspace import Layout

NOWHERE = Layout("/nowhere")

FALSY: list[Any] = [0, 0.0, "", [], {}, False, None]


def falsy_values_of(name: str) -> list[Any]:
    """Those that this field of ours can have."""
    values = []
    for value in [0, "", [], False]:
        with contextlib.suppress(FormatError):
            make_record({"state": "failed", name: value})
            values.append(value)
    return values


OURS = {name: falsy_values_of(name) for name in DEFAULTS if name not in ("state", "desired")}
CASES = [(name, value) for name, values in OURS.items() for value in values]
CASES += [(name, value) for name in ("note", "extra", "") for value in FALSY if value is not None]
names = st.sampled_from(sorted({name for name, _ in CASES}))


class World:
    """A record whose changes are journal lines, as a store has it."""

    def __init__(self, **fields: Any) -> None:
        self.fold = Fold()
        self.tx = Transaction(self.fold, NOWHERE, "pod-0", AT, PreparedClaims(NOWHERE, b"pod-0\n"))
        change, extra = split({"state": "failed", **fields})
        self.tx.change("a", Event.QUEUED, change, extra=extra)

    def change(self, name: str, value: Any) -> None:
        change, extra = split({name: value})
        self.tx.change("a", Event.EDITED, change, extra=extra)

    def line(self) -> dict[str, Any]:
        return status_file.parse(status_file.render(self.fold.records), "status")["a"]

    def save(self, line: dict[str, Any]) -> list[str]:
        """Write `line` by hand and take it in; the events."""
        fold = self.fold
        saved = status_file.parse(json.dumps({"a": line}).encode(), "status")
        found = changes(Recorded(fold.records, fold.records.born, fold.seq, fold.version), saved)
        for edit in found.edits:
            self.tx.change(edit.job, edit.event, edit.change, extra=edit.extra)
        return [*(edit.event for edit in found.edits), *("refused" for _ in found.refusals)]

    def check_files(self) -> None:
        """The status file and the journal, read line by line, in bulk and from a snapshot, say what the record says."""
        record = self.fold.records["a"]
        assert make_record(self.line()) == record
        data = b"".join(journal.encode(line) + b"\n" for line in self.tx.lines)
        lines, length = journal.parse_consecutive(data, 0)
        assert length == len(data)
        one, bulk, again = Fold(), Fold(), Fold()
        one.extend(lines)
        bulk.extend_in_bulk(lines)
        again.extend_in_bulk(snapshot(one, AT, "p"))
        assert one.records == bulk.records == again.records == {"a": record}


def test_no_field_is_left_out_of_these_tests() -> None:
    assert [name for name, values in OURS.items() if not values] == []
    assert OURS["gpu"] == [0, []]


@pytest.mark.parametrize(("name", "value"), CASES, ids=repr)
def test_a_falsy_value_is_kept_shown_and_removed(name: str, value: Any) -> None:
    world = World(**{name: value})
    assert make_record({"state": "failed", name: value, "rev": 1}) == world.fold.records["a"]
    if name not in DEFAULTS or value != DEFAULTS[name]:
        shown = world.line()[name]
        # 0.0 is 0, but `false` is not, and neither is an empty text.
        assert (shown, isinstance(shown, bool)) == (value, isinstance(value, bool))
    world.check_files()
    world.change(name, None)
    now = world.fold.records["a"]
    assert now == make_record({"state": "failed", "rev": now.rev})
    assert name not in world.line()
    world.check_files()


@pytest.mark.parametrize(("name", "value"), CASES, ids=repr)
def test_a_line_that_writes_out_what_stands_there_is_no_edit(name: str, value: Any) -> None:
    world = World(**{name: value})
    assert world.save({**world.line(), name: value}) == []
    if name in DEFAULTS and value == DEFAULTS[name]:
        # The default of a field may be written out, and so may nothing.
        assert world.save({"state": "failed"}) == []
        assert world.save({"state": "failed", name: None}) == []


@pytest.mark.parametrize(("name", "value"), CASES, ids=repr)
def test_a_requeued_record_keeps_nothing_falsy_of_the_last_attempt(name: str, value: Any) -> None:
    world = World(**{name: value})
    assert world.save({"state": "queued"}) == ["requeued"]
    of_person = ("priority", "time_limit")
    is_kept = name in DEFAULTS and name not in of_person and name not in FRESH_START.fields()
    kept = {name: value} if is_kept else {}
    assert world.fold.records["a"] == make_record({"state": "queued", "rev": 2, **kept})
    world.check_files()


@given(st.data())
def test_hand_edits_of_a_note_and_a_priority_take_any_falsy_value_and_its_removal(data: st.DataObject) -> None:
    world = World()
    for _ in range(data.draw(st.integers(1, 6))):
        name = data.draw(st.sampled_from(["note", "extra", "", "priority"]))
        values = [0, None] if name == "priority" else FALSY
        line = world.line()
        if data.draw(st.booleans()):
            value = line[name] = data.draw(st.sampled_from(values))
        else:
            line.pop(name, None)
            value = None
        before = world.fold.records["a"].fields().get(name)
        events = world.save(line)
        now = world.fold.records["a"].fields().get(name)
        assert now == value
        assert (now is None) == (value is None)
        # `false` is not 0, but 0.0 is: such an edit changes nothing.
        same = before == value and isinstance(before, bool) == isinstance(value, bool)
        assert events == ([] if same else ["edited"])
        world.check_files()


@given(names, names, st.data())
def test_a_change_of_one_falsy_field_leaves_another_alone(one: str, other: str, data: st.DataObject) -> None:
    if one == other:
        return
    values = dict(CASES)
    world = World(**{one: values[one], other: values[other]})
    world.change(one, None)
    now = world.fold.records["a"]
    assert now == make_record({"state": "failed", other: values[other], "rev": now.rev})


def test_a_record_that_is_requeued_gives_gpu_zero_back() -> None:
    """As a restarted pod books GPUs: by the record."""
    world = World(gpu=0, exit_code=0, pid=0)
    world.tx.change("a", Event.REQUEUED, FRESH_START | Change(state=State.QUEUED))
    record: Record = world.fold.records["a"]
    assert (record.gpu, record.exit_code, record.pid) == (None, None, None)
