"""Merging hand edits: copies of any age, saved at any time, lose no change and no edit that applies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_state.lines import AT, JOBS, change, json_values

from dispatcher.run_state.change import Change, split
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.edits.adopting import adopt
from dispatcher.run_state.edits.changes import Changes, Edit, Recorded, changes
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.refusals import Refusal
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.prepared import PreparedClaims
from dispatcher.run_state.requests import decide_at_rest, decide_state
from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, MARKABLE, REQUESTABLE, STATES, Record, State
from dispatcher.run_state.transaction import Transaction
from dispatcher.workspace import Layout

NOWHERE = Layout("/nowhere")

Lines = dict[str, dict[str, Any]]
_SETTABLE = {"state", "desired", "priority", "time_limit", "retry_at"}


def of(found: Changes) -> list[Edit | Refusal]:
    return [*found.edits, *found.refusals]


def event_of(one: Edit | Refusal) -> str:
    return "refused" if isinstance(one, Refusal) else one.event


class World:
    """Records and a status file in memory, changed as dispatchers and people do."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.tx = Transaction(self.fold, NOWHERE, "pod-0", AT, PreparedClaims(NOWHERE, b"pod-0\n"))

    @property
    def records(self) -> dict[str, Record]:
        return self.fold.records

    def copy(self) -> Lines:
        """What somebody has who loads the status file now."""
        loaded: Lines = json.loads(status_file.render(self.records))
        return loaded

    def version(self, job: str, rev: int) -> Record | None:
        """The record as it was, from the journal alone."""
        fold = Fold()
        fold.extend(line for line in self.tx.lines if line.seq <= rev)
        found = fold.records.get(job)
        return found if found is not None and found.rev == rev else None

    def merge(self, lines: Lines) -> list[Edit | Refusal]:
        """Save `lines` as the status file and let the next transaction take it in."""
        saved = status_file.parse(json.dumps(lines).encode(), "status")
        fold = self.fold
        return of(changes(Recorded(fold.records, fold.records.born, fold.seq, self.version, fold.applied_edits), saved))

    def take_in(self, lines: Lines) -> list[Edit | Refusal]:
        outcomes = self.merge(lines)
        for outcome in outcomes:
            if isinstance(outcome, Edit):
                self.tx.change(outcome.job, outcome.event, outcome.change, extra=outcome.extra)
        return outcomes

    def go_on(self, data: st.DataObject, most: int = 8) -> None:
        """Some changes by dispatchers."""
        for _ in range(data.draw(st.integers(0, most))):
            job = data.draw(st.sampled_from(JOBS[:3]))
            record = self.records.get(job)
            event, fields, blame = data.draw(st.composite(change)(job, record.state if record else None))
            if event is Event.CLAIMED and record is not None:
                fields = {**fields, "attempt": record.attempt + 1}
            ours, extra = split(fields)
            self.tx.change(job, event, ours, extra=extra, data=blame)

    def transitions(self) -> dict[str, tuple[Any, ...]]:
        """What the dispatchers have said of every job, and nothing that people may set."""
        return {
            job: tuple(v for k, v in sorted(record.fields().items()) if k not in (*_SETTABLE, "rev") and k != "note")
            for job, record in self.records.items()
        }


@given(st.data())
def test_a_copy_of_any_age_that_nobody_edited_changes_nothing(data: st.DataObject) -> None:
    world = World()
    world.go_on(data)
    copy = world.copy()
    world.go_on(data)
    assert world.merge(copy) == []


@given(st.data())
def test_one_changed_line_of_an_old_copy_changes_one_line(data: st.DataObject) -> None:
    world = World()
    world.go_on(data)
    copy = world.copy()
    world.go_on(data)
    if not copy:
        return
    job = data.draw(st.sampled_from(sorted(copy)))
    copy[job]["state"] = data.draw(st.sampled_from([*State, "quued"]))
    before = dict(world.records)
    world.take_in(copy)
    after = dict(world.records)
    before.pop(job, None)
    after.pop(job, None)
    assert after == before


def expected_after(desired: State, base: Record, now: Record) -> State | str:
    """What must become of `desired`: the state it leads to, "desired", "refused", or "nothing"."""
    if desired in MARKABLE and now.state is not desired:
        unseen = base.state is not now.state and (base.state in IN_FLIGHT or now.state is State.DONE)
        return "refused" if unseen or now.state in IN_FLIGHT else desired
    same_run = base.state in IN_FLIGHT and base.attempt == now.attempt
    if now.state in IN_FLIGHT:
        if same_run or desired is State.ABANDONED:
            return "desired"
        return "nothing" if desired is State.QUEUED else "refused"
    if now.state is desired:
        return "nothing"
    if now.state is State.DONE:
        return State.QUEUED if desired is State.QUEUED and base.state is State.DONE else "refused"
    return desired


@given(st.data())
def test_every_request_is_carried_out_asked_for_or_refused(data: st.DataObject) -> None:
    world = World()
    world.go_on(data)
    copy = world.copy()
    bases = dict(world.records)
    world.go_on(data)
    if not copy:
        return
    job = data.draw(st.sampled_from(sorted(copy)))
    base, now = bases[job], world.records[job]
    desired = data.draw(st.sampled_from([*REQUESTABLE, *MARKABLE]))
    copy[job]["state"] = desired
    if desired is base.state:
        assert world.merge(copy) == []
        return
    said = world.take_in(copy)
    record = world.records[job]
    expected = expected_after(desired, base, now)
    if expected == "refused":
        assert [event_of(one) for one in said] == ["refused"]
        assert record == now
    elif expected == "nothing":
        assert said == []
        assert record == now
    elif expected == "desired":
        assert (record.state, record.desired) == (now.state, desired)
    else:
        assert record.state is expected
        assert record.desired is None
    # Looked at once more (a crash before the head was written), the file changes nothing more.
    seq = world.fold.seq
    again = world.take_in(copy)
    assert world.fold.seq == seq, again


@given(st.data())
def test_any_interleaving_loses_no_change_and_no_note(data: st.DataObject) -> None:
    world = World()
    copies: list[Lines] = []
    noted: dict[str, Any] = {}
    ranked: dict[str, int] = {}
    for number in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["go on", "copy", "save", "save"]))
        if step == "go on":
            world.go_on(data, most=3)
            # The dispatchers of this test add notes too, as another person's edit would.
            noted = {job: r.extra.get("note") for job, r in world.records.items() if job in noted}
            ranked = {job: r.priority for job, r in world.records.items() if job in ranked}
        elif step == "copy":
            copies.append(world.copy())
        elif copies:
            copy = json.loads(json.dumps(data.draw(st.sampled_from(copies))))
            if not copy:
                continue
            job = data.draw(st.sampled_from(sorted(copy)))
            copy[job]["note"] = noted[job] = f"note {number}"
            copy[job]["priority"] = ranked[job] = 100 + number
            before = world.transitions()
            world.take_in(copy)
            assert world.transitions() == before
        for job, note in noted.items():
            assert world.records[job].extra.get("note") == note
            assert world.records[job].priority == ranked[job]


@pytest.mark.parametrize("desired", [*REQUESTABLE, *MARKABLE])
@pytest.mark.parametrize("base", State)
@pytest.mark.parametrize("now", State)
@pytest.mark.parametrize("attempt", [1, 2], ids=["same attempt", "later attempt"])
def test_what_a_request_does_in_every_case(desired: State, base: State, now: State, attempt: int) -> None:
    old, record = Record(state=base, attempt=1), Record(state=now, attempt=attempt)
    decision = decide_state(desired, old, record)
    expected = expected_after(desired, old, record)
    assert bool(decision.refused) == (expected == "refused")
    if expected in ("refused", "nothing"):
        assert (decision.event, decision.change) == (None, Change())
    elif expected == "desired":
        assert decision.change == Change(desired=desired)
    else:
        assert decision.change.state is expected
        assert expected in STATES[now].next


@given(json_values, json_values)
def test_a_note_may_be_any_json_value(first: Any, second: Any) -> None:
    world = World()
    world.tx.change("a", Event.QUEUED, Change(state=State.QUEUED))
    for value in (first, second, second):
        copy = world.copy()
        copy["a"]["note"] = value
        world.take_in(copy)
        assert world.copy()["a"].get("note") == value
        assert world.merge(world.copy()) == []
        seq = world.fold.seq
    assert world.merge(copy) == []
    assert seq <= 3


def world_with(state: State, **fields: Any) -> World:
    world = World()
    world.tx.change("a", Event.QUEUED, Change(state=State.QUEUED))
    path = {
        State.QUEUED: [],
        State.RUNNING: [State.RUNNING],
        State.DONE: [State.RUNNING, State.DONE],
        State.FAILED: [State.RUNNING, State.FAILED],
        State.HELD: [State.HELD],
    }
    for step in path[state]:
        world.tx.change("a", Event.EDITED, Change(state=step, **fields))
    return world


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        ({"state": "quued"}, "did you mean 'queued'?"),
        ({"state": "done"}, "it is running (pod None on an unknown host, pid 4711): set it to abandoned to stop it"),
        ({"state": "running"}, None),
        ({"state": None}, "unknown state None"),
        ({"state": "cancelled"}, "unknown state 'cancelled' (did you mean 'abandoned'?)"),
        ({"state": "paused"}, "unknown state 'paused' (did you mean 'held'?)"),
        ({"state": ["queued"]}, "unknown state"),
        ({"pid": 7}, "pid was changed to 7"),
        ({"attempt": 4}, "attempt was changed"),
        ({"priority": "high"}, "priority 'high' is not a whole number"),
        ({"priority": True}, "priority True"),
        ({"time_limit": 8}, 'time_limit 8 is not a time such as "8h"'),
        ({"time_limit": "8"}, "time_limit '8': expected a time such as 90m"),
        ({"retry_at": 5}, "retry_at 5"),
        ({"retry_at": "tomorrow"}, "retry_at 'tomorrow' is not a time"),
        ({"retry_at": "2026-06-17T26:12:00Z"}, "is not a time"),
        ({"retry_at": "9999-12-31T23:00:00-05:00"}, "is not a time"),
        ({"rev": "new"}, "rev 'new' is not a line number"),
        ({"rev": -1}, "rev -1 is not a line number"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_line(edit: dict[str, Any], word: str | None) -> None:
    world = world_with(State.RUNNING, pid=4711)
    copy = world.copy()
    copy["a"].update(edit)
    before = world.records["a"]
    said = world.take_in(copy)
    assert world.records["a"] == before
    if word is None:
        assert said == []
        return
    assert [event_of(one) for one in said] == ["refused"]
    assert word in said[0].why
    assert json.loads("{" + said[0].line + "}") == {"a": copy["a"]}


def test_null_takes_a_request_a_priority_and_a_retry_back() -> None:
    world = world_with(State.RUNNING)
    world.tx.change("a", Event.REQUESTED, Change(desired=State.ABANDONED, priority=4, retry_at=AT))
    copy = world.copy()
    copy["a"].update({"desired": None, "priority": None, "retry_at": None})
    assert [event_of(one) for one in world.take_in(copy)] == ["edited"]
    record = world.records["a"]
    assert (record.desired, record.priority, record.retry_at) == (None, None, None)


@pytest.mark.parametrize("state", [State.QUEUED, State.HELD, State.FAILED])
def test_done_by_hand_says_that_a_person_set_it(state: State) -> None:
    world = world_with(state, error="boom", exit_code=0)
    copy = world.copy()
    copy["a"]["state"] = "done"
    assert [event_of(one) for one in world.take_in(copy)] == ["marked"]
    record = world.records["a"]
    assert (record.state, record.reason, record.error, record.exit_code) == (State.DONE, BY_HAND, None, None)
    assert world.merge(copy) == []


@pytest.mark.parametrize("name", ["started_at", "finished_at", "retry_at"])
def test_a_time_that_was_only_rounded_is_no_edit(name: str) -> None:
    world = world_with(State.FAILED, **{name: "2026-06-17T22:48:00.987Z"})
    copy = world.copy()
    assert copy["a"][name] == "2026-06-17T22:48:00Z"
    assert world.merge(copy) == []
    stale = world.copy()
    world.tx.change("a", Event.REQUEUED, Change(state=State.QUEUED))
    assert world.merge(stale) == []
    copy["a"]["state"] = "done"
    world.take_in(copy)
    kept = None if name == "retry_at" else "2026-06-17T22:48:00.987Z"
    assert (world.records["a"].state, getattr(world.records["a"], name)) == (State.DONE, kept)


def test_another_time_is_an_edit() -> None:
    world = world_with(State.QUEUED)
    world.tx.change("a", Event.AUTO_REQUEUED, Change(retry_at="2026-06-17T22:48:00.987Z"))
    copy = world.copy()
    copy["a"]["retry_at"] = "2026-06-17T22:48:01Z"
    world.take_in(copy)
    assert world.records["a"].retry_at == "2026-06-17T22:48:01.000Z"


def test_a_line_of_state_alone_requeues() -> None:
    world = world_with(State.FAILED, error="boom", pid=4711, attempt=1)
    world.take_in({"a": {"state": "queued"}})
    record = world.records["a"]
    assert (record.state, record.error, record.pid, record.attempt) == (State.QUEUED, None, None, 1)


def test_a_removed_line_is_refused_and_the_record_stays() -> None:
    world = world_with(State.FAILED)
    world.tx.change("b", Event.QUEUED, Change(state=State.QUEUED))
    copy = world.copy()
    del copy["a"]
    said = world.take_in(copy)
    assert [(one.job, event_of(one)) for one in said] == [("a", "refused")]
    assert "dispatcher delete" in said[0].why
    assert set(world.records) == {"a", "b"}


def test_an_empty_object_is_one_refusal_not_thousands() -> None:
    world = World()
    for number in range(50):
        world.tx.change(f"job{number}", Event.QUEUED, Change(state=State.QUEUED))
    copy = world.copy()
    kept = {"job49": copy["job49"]}
    said = world.take_in(kept)
    assert [(one.job, event_of(one)) for one in said] == [("", "refused")]
    assert "49 lines were removed" in said[0].why
    assert len(world.records) == 50


def test_an_old_copy_does_not_bring_a_deleted_job_back() -> None:
    world = world_with(State.FAILED)
    world.tx.change("b", Event.QUEUED, Change(state=State.QUEUED))
    copy = world.copy()
    world.tx.delete("a")
    assert world.merge(copy) == []
    copy["a"]["state"] = "queued"
    said = world.take_in(copy)
    assert [(one.job, event_of(one)) for one in said] == [("a", "refused")]
    assert "deleted" in said[0].why
    del copy["a"]["rev"]
    world.take_in(copy)
    assert world.records["a"].state is State.QUEUED


def test_a_new_line_makes_a_record_but_not_a_running_one() -> None:
    world = world_with(State.QUEUED)
    world.take_in({**world.copy(), "new": {"state": "held", "note": "later"}})
    assert world.records["new"].state is State.HELD
    said = world.take_in({**world.copy(), "newer": {"state": "running"}, "newest": {"note": 1}})
    assert [(one.job, event_of(one)) for one in said] == [("newer", "refused"), ("newest", "refused")]
    assert set(world.records) == {"a", "new"}


def test_a_line_that_makes_no_record_is_refused_and_its_job_held() -> None:
    lines = {"a": {"state": "done"}, "b": {"state": "running", "pid": "many"}}
    adopted, held, refused = of(adopt(lines))
    assert (adopted.fields(), held.fields()) == ({"state": "done"}, {"state": "held"})
    assert (refused.job, event_of(refused)) == ("b", "refused")
    assert "pid" in refused.why


@pytest.mark.parametrize("state", [state for state in REQUESTABLE if state is not State.QUEUED])
def test_a_requested_state_is_recorded_by_an_event_of_its_own(state: State) -> None:
    assert decide_at_rest(state).event == state.value
