"""What the journal's lines make of notices, and that a new generation goes on with it."""

from __future__ import annotations

import msgspec
import pytest

from dispatcher.errors import StorageError
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.gpu_idle import GpuIdle
from dispatcher.run_state.facets.notices import (
    Began,
    Incident,
    NoticeClaimed,
    NoticeEnded,
    Notices,
    NoticesCleared,
    Notifying,
)
from dispatcher.run_state.facets.pauses import Paused
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.journal import Line
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store, Transaction
from dispatcher.topics import Topic
from dispatcher.workspace import Layout

ALL = tuple(map(str, Topic))


@pytest.fixture
def store(layout: Layout) -> Store:
    return Store(layout, by="pod-0")


def note(store: Store, *notes: object, by: str | None = None) -> None:
    with store.transaction() as tx:
        for one in notes:
            tx.note(one, by=by)  # type: ignore[arg-type]


def fail(tx: Transaction, job: str, reason: str = "exit 1", error: str | None = None) -> None:
    tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1, pod="pod-0"))
    tx.change(job, Event.FAILED, Change(state=State.FAILED, reason=reason, error=error))


def failed(store: Store, *jobs: str, reason: str = "exit 1", error: str | None = None) -> None:
    with store.transaction() as tx:
        for job in jobs:
            fail(tx, job, reason, error)


def pending(store: Store, target: str = "t") -> dict[str, int]:
    """The number of what a target was not told yet, by its text."""
    return {cause.text: cause.count for cause in store.fold.notices.targets[target].pending.values()}


def claim(store: Store, target: str = "t", notice: int | None = None) -> int:
    with store.transaction() as tx:
        tx.note(NoticeClaimed(target=target, sender="h b 0 1 2", limit_s=30.0, notice=notice))
        return tx.lines[-1].seq if notice is None else notice


def read_anew(store: Store) -> Notices:
    """What a process knows that begins now."""
    other = Store(store.layout, by="pod-1")
    other.refresh(to_the_end=True)
    return other.fold.notices


def test_what_happened_before_anybody_was_to_be_told_is_old(store: Store) -> None:
    failed(store, "old")
    note(store, Paused(scope="fft", why="old"))
    assert store.fold.notices == Notices()
    note(store, Notifying(targets={"t": ALL}))
    assert pending(store) == {}
    failed(store, "new")
    assert pending(store) == {"exit 1": 1} and read_anew(store) == store.fold.notices


def test_causes_are_those_of_status(store: Store) -> None:
    note(store, Notifying(targets={"t": ALL}))
    failed(store, "a1", error="a1: step 17 of /data/x is NaN")
    failed(store, "a2", error="a2: step 18 of /data/y is NaN")
    failed(store, "a3", reason="out of memory")
    assert pending(store) == {"exit 1: a2: step 18 of /data/y is NaN": 2, "out of memory": 1}


def test_each_target_is_told_what_it_asked_for(store: Store) -> None:
    note(store, Notifying(targets={"mail": ("job_failed",), "chat": ("method_paused", "gpu_idle")}))
    failed(store, "a")
    note(store, Paused(scope="fft", why="five alike"))
    with store.transaction() as tx:
        tx.note(GpuIdle(attempt=1, since="2026-11-23T00:00:00.000Z", gpus=1), job="b")
    assert pending(store, "mail") == {"exit 1": 1}
    assert list(pending(store, "chat")) == [
        "fft is paused: five alike", "running, its GPUs idle since 2026-11-23T00:00:00.000Z"
    ]  # fmt: skip


def test_a_pause_by_a_person_is_not_told(store: Store) -> None:
    note(store, Notifying(targets={"t": ALL}))
    note(store, Paused(scope="fft", why="broken data (by ada@ws1)"), by="ada@ws1")
    assert pending(store) == {}


def test_an_incident_is_told_once_until_it_is_over(store: Store) -> None:
    note(store, Notifying(targets={"t": ALL}))
    began = Incident(topic="pod_dead", began={"pod_dead:p:7": Began("pod p is dead", "p")})
    note(store, began, began)
    assert pending(store) == {"pod p is dead": 1}
    claim(store)
    note(store, began)
    assert pending(store) == {}
    note(store, Incident(topic="pod_dead", over=("pod_dead:p:7",)), began)
    assert pending(store) == {"pod p is dead": 1}
    old = Incident(topic="pod_dead", began={"pod_dead:q:1": Began("pod q is dead", "q")}, is_old=True)
    note(store, old)
    assert pending(store) == {"pod p is dead": 1} and "pod_dead:q:1" in store.fold.notices.incidents


def test_a_claim_takes_all_that_is_pending_and_the_end_is_kept(store: Store) -> None:
    note(store, Notifying(targets={"t": ALL}))
    failed(store, "a", "b")
    number = claim(store)
    failed(store, "c")
    [notice] = store.fold.notices.sent
    assert (notice.number, notice.state, notice.tries, notice.is_open) == (number, "sending", 1, True)
    assert [cause.count for cause in notice.causes.values()] == [2] and pending(store) == {"exit 1": 1}
    note(store, NoticeEnded(notice=number, state="failed", why="no luck", retry_at="2026-11-23T00:00:00.000Z"))
    assert store.fold.notices.sent[0].is_open and not store.fold.notices.sent[0].wants_attention
    claim(store, notice=number)
    note(store, NoticeEnded(notice=number, state="doubtful", why="no answer"))
    [notice] = store.fold.notices.sent
    assert notice.tries == 2 and notice.wants_attention and not notice.is_open
    note(store, NoticesCleared(notices=(number,)))
    assert not store.fold.notices.sent[0].wants_attention
    assert read_anew(store) == store.fold.notices


def test_a_new_generation_goes_on_with_it(store: Store) -> None:
    note(store, Notifying(targets={"t": ALL, "u": ("matrix_done",)}))
    failed(store, "a")
    claim(store)
    failed(store, "b", "c", reason="exit 2")
    note(store, Paused(scope="fft", why="five alike"), Incident(topic="matrix_done", began={"k": Began("done", "")}))
    with store.transaction() as tx:
        tx.change("d", Event.QUEUED, Change(state=State.QUEUED))
        tx.change("d", Event.CLAIMED, Change(state=State.RUNNING, attempt=1, pod="pod-0"))
        tx.note(GpuIdle(attempt=1, since="2026-11-23T00:00:00.000Z", gpus=1), job="d")
    before = store.fold.notices
    assert store.rotate()
    # Nothing that the snapshot repeats is told again.
    assert store.fold.notices == before == read_anew(store)
    failed(store, "e", reason="exit 2")
    assert pending(store)["exit 2"] == 3 and read_anew(store) == store.fold.notices


def test_a_transaction_that_fails_has_told_nothing(store: Store) -> None:
    note(store, Notifying(targets={"t": ALL}))
    before = store.fold.notices
    with pytest.raises(StorageError), store.transaction() as tx:
        fail(tx, "a")
        assert store.fold.notices != before
        raise StorageError("the disk is full")
    assert store.fold.notices == before


def test_a_target_that_is_gone_is_told_nothing_and_a_new_one_only_what_follows(store: Store) -> None:
    note(store, Notifying(targets={"t": ALL}))
    failed(store, "a")
    number = claim(store)
    note(store, NoticeEnded(notice=number, state="failed", why="x", retry_at="2026-11-23T00:00:00.000Z"))
    failed(store, "b")
    note(store, Notifying(targets={"u": ALL}))
    failed(store, "c")
    assert store.fold.notices.targets.keys() == {"u"} and pending(store, "u") == {"exit 1": 1}
    [notice] = store.fold.notices.sent
    assert not notice.is_open and not notice.wants_attention
    note(store, Notifying(targets={}))
    failed(store, "d")
    assert store.fold.notices.targets == {} and read_anew(store) == store.fold.notices


def test_fewer_events_take_back_what_was_pending(store: Store) -> None:
    note(store, Notifying(targets={"t": ALL}))
    failed(store, "a")
    note(store, Incident(topic="matrix_done", began={"matrix_done:": Began("done", "")}))
    note(store, Notifying(targets={"t": ("matrix_done",)}))
    assert pending(store) == {"done": 1}


def test_what_is_kept_is_bounded(store: Store) -> None:
    note(store, Notifying(targets={"t": ALL}))
    with store.transaction() as tx:
        for number in range(300):
            fail(tx, f"a{number}", error="".join(chr(97 + int(digit)) for digit in str(number)))
    causes = store.fold.notices.targets["t"].pending
    assert len(causes) <= 101 and sum(cause.count for cause in causes.values()) == 300
    for _ in range(80):
        failed(store, "x")
        note(store, NoticeEnded(notice=claim(store), state="sent"))
    assert len(store.fold.notices.sent) == 50
    unsettled = [claim(store) for _ in range(3)]
    assert [one.number for one in store.fold.notices.sent if one.is_open] == unsettled


def test_states_are_counted_as_they_change(store: Store) -> None:
    failed(store, "a", "b")
    fold = store.fold
    assert fold.count(State.FAILED) == 2 and fold.count(State.QUEUED, State.RUNNING) == 0
    with store.transaction() as tx:
        tx.change("c", Event.QUEUED, Change(state=State.QUEUED))
        tx.change("a", Event.REQUEUED, Change(state=State.QUEUED))
        tx.delete("b")
    assert (fold.count(State.QUEUED), fold.count(State.FAILED)) == (2, 0)
    with pytest.raises(StorageError), store.transaction() as tx:
        tx.delete("c")
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, attempt=2, pod="pod-0"))
        tx.change("d", Event.QUEUED, Change(state=State.QUEUED))
        assert (fold.count(State.QUEUED), fold.count(State.RUNNING)) == (1, 1)
        raise StorageError("the disk is full")
    assert (fold.count(State.QUEUED), fold.count(State.RUNNING)) == (2, 0)
    counted = {state: fold.count(state) for state in State}
    bulk = Fold()
    assert bulk.count(*State) == 0
    bulk.extend_in_bulk(list(journal.history(store.layout)))
    assert {state: bulk.count(state) for state in State} == counted


def test_an_older_dispatcher_ignores_what_it_does_not_know(store: Store) -> None:
    """A line of an event that this version does not have changes nothing and stops nothing."""
    note(store, Notifying(targets={"t": ALL}))
    failed(store, "a")
    line = Line(seq=store.seq + 1, at="", by="newer", event=Event("notice_forwarded"), data={"notice": 1})
    before = store.fold.notices
    store.fold.extend([msgspec.json.decode(msgspec.json.encode(line), type=Line)])
    assert store.fold.notices == before
