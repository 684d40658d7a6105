"""A lab's own script goes on claiming entries in the status file: what it writes is a claim, and never run twice."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.base.host import host_name
from dispatcher.run_state.change import Change
from dispatcher.run_state.edits.adopting import adopt
from dispatcher.run_state.events import Event
from dispatcher.run_state.external import Presence, external_gpus, presence
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.states import Record, State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

CLAIM = {"state": "running", "pod": "shivam-0", "pid": 3328333, "gpu": 2, "started_at": "2026-06-17T22:48:00Z"}
DONE = {"state": "done", "finished_at": "2026-06-17T23:48:00Z", "exit_code": 0}


@pytest.fixture
def store(layout: Layout) -> Store:
    made = Store(layout, by="pod-0")
    with made.transaction() as tx:
        for job in "abc":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    Projector(made).write()
    return made


def load(layout: Layout) -> dict[str, dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = json.loads(layout.status_file.read_bytes())
    return lines


def save(store: Store, lines: dict[str, dict[str, Any]]) -> None:
    """As the script does it, and the next transaction of a dispatcher."""
    with open(store.layout.status_file, "w") as file:
        json.dump(lines, file)
    with store.transaction():
        pass


def write(store: Store, job: str, **fields: Any) -> Record:
    lines = load(store.layout)
    lines[job].update(fields)
    save(store, lines)
    return store.records[job]


def test_a_claim_is_honoured_once(store: Store) -> None:
    record = write(store, "a", **CLAIM)
    assert (record.state, record.external, record.attempt) == (State.RUNNING, True, 1)
    assert (record.pod, record.pid, record.gpu, record.started_at) == tuple(list(CLAIM.values())[1:])
    assert store.fold.refusals == {}
    seq = store.seq
    save(store, load(store.layout))
    assert store.seq == seq
    Projector(store).write()
    assert load(store.layout)["a"] == {**CLAIM, "attempt": 1, "external": True, "rev": record.rev}
    save(store, load(store.layout))
    assert store.seq == seq


@pytest.mark.parametrize("projected", [True, False], ids=["shown meanwhile", "not shown meanwhile"])
def test_how_it_ended_is_the_scripts_to_say(store: Store, projected: bool) -> None:
    write(store, "a", **CLAIM)
    if projected:
        Projector(store).write()
    record = write(store, "a", **DONE)
    assert (record.state, record.exit_code, record.finished_at) == (State.DONE, 0, DONE["finished_at"])
    assert (record.external, record.reason, record.attempt) == (True, None, 1)
    assert store.fold.refusals == {}
    seq = store.seq
    save(store, load(store.layout))
    assert store.seq == seq
    # It may run once more, here or there.
    Projector(store).write()
    assert write(store, "a", state="queued").external is False


def test_claimed_and_ended_between_two_looks(store: Store) -> None:
    record = write(store, "a", **{**CLAIM, "state": "failed", "reason": "exit 1"})
    assert (record.state, record.external, record.reason, record.pid) == (State.FAILED, True, "exit 1", CLAIM["pid"])
    assert store.fold.refusals == {}


def test_of_two_who_claim_at_once_the_dispatcher_gives_way(store: Store) -> None:
    lines = load(store.layout)
    with store.transaction() as tx:
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, pod="pod-0", pid=5, attempt=1, host="here"))
    lines["a"].update(CLAIM)
    save(store, lines)
    record = store.records["a"]
    assert (record.pod, record.pid, record.host, record.external) == ("shivam-0", 3328333, None, True)
    # The attempt that runs sees that it is not the entry's any more.
    assert record.attempt == 2


def test_what_was_done_meanwhile_is_not_claimed(store: Store) -> None:
    lines = load(store.layout)
    with store.transaction() as tx:
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, pod="pod-0", attempt=1))
        tx.change("a", Event.DONE, Change(state=State.DONE))
    lines["a"].update(CLAIM)
    save(store, lines)
    assert store.records["a"].state is State.DONE
    assert "has become done in the meantime" in store.fold.refusals["a"].why


def test_a_second_script_is_refused(store: Store) -> None:
    lines = load(store.layout)
    write(store, "a", **CLAIM)
    lines["a"].update({**CLAIM, "pod": "shivam-1", "pid": 77})
    save(store, lines)
    assert store.records["a"].pid == CLAIM["pid"]
    assert "pid 3328333, runs it already" in store.fold.refusals["a"].why


def test_a_script_that_puts_an_entry_back(store: Store) -> None:
    with store.transaction() as tx:
        tx.change("a", Event.CODE_KEPT, Change(snapshot="1234 5678"))
    Projector(store).write()
    write(store, "a", **CLAIM)
    Projector(store).write()
    # Nobody knows whether it has ended: a dispatcher looks for the process first.
    record = write(store, "a", state="queued")
    assert (record.state, record.desired) == (State.RUNNING, State.QUEUED)
    Projector(store).write()
    record = write(store, "a", state="queued", pid=None)
    assert (record.state, record.desired, record.pid, record.external) == (State.QUEUED, None, None, False)
    # As of any job that somebody queues again, a new copy of the code is taken.
    assert record.snapshot is None


@pytest.mark.parametrize("pid", ["3328333", True, 0, -1, None])
def test_a_claim_names_its_process(store: Store, pid: Any) -> None:
    assert write(store, "a", **{**CLAIM, "pid": pid}).state is State.QUEUED
    assert "a" in store.fold.refusals
    assert write(store, "b", **{**CLAIM, "gpu": "two"}).state is State.QUEUED
    assert "gpu" in store.fold.refusals["b"].why


def test_a_claim_of_a_job_that_nobody_has_queued_yet(store: Store) -> None:
    lines = load(store.layout)
    save(store, {**lines, "new": dict(CLAIM)})
    assert (store.records["new"].state, store.records["new"].external) == (State.RUNNING, True)


def test_what_runs_in_an_adopted_file_runs_outside(layout: Layout) -> None:
    ours = {"state": "running", "pod": "pod-0", "attempt": 3, "rev": 9}
    adopted = {edit.job: edit.fields() for edit in adopt({"a": CLAIM, "b": DONE, "c": ours}).edits}
    assert [fields.get("external") for fields in adopted.values()] == [True, None, None]
    assert adopt({"c": ours}, is_foreign=True).edits[0].change.external is True


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def running(pid: int | None, seconds: float, **fields: Any) -> Record:
    started_at = now_text(seconds)
    return Record(
        **{"state": State.RUNNING, "external": True, "pid": pid, "started_at": started_at, "gpu": 1, **fields}
    )


def test_whether_it_lives_here(sleeper: subprocess.Popen[bytes]) -> None:
    now = time.time()
    here = host_name()
    assert presence(running(sleeper.pid, now)) is Presence.HERE
    assert presence(running(sleeper.pid, now, host=here)) is Presence.HERE
    # A pool process that the script had long before is the one as well.
    assert presence(running(os.getpid(), now + 3600)) is Presence.HERE
    assert presence(running(sleeper.pid, now, started_at="2026-06-17T26:12:00Z")) is Presence.HERE
    # Another process has that number now.
    assert presence(running(sleeper.pid, now - 3600)) is Presence.NOT_HERE
    assert presence(running(sleeper.pid, now - 3600, host=here)) is Presence.GONE
    assert presence(running(sleeper.pid, now, host="elsewhere")) is Presence.ELSEWHERE
    assert presence(running(None, now)) is Presence.UNKNOWN
    records = {
        "a": running(sleeper.pid, now),
        "b": running(sleeper.pid, now, gpu=(2, 3)),
        "c": running(sleeper.pid, now - 3600, gpu=4),
        "d": running(sleeper.pid, now, gpu=5, state=State.DONE),
    }
    taken = external_gpus(records.items())
    assert set(taken) == {f"gpu:{here}:{index}" for index in (1, 2, 3)}
    assert f"a of an unknown pod runs there, pid {sleeper.pid}" in taken[f"gpu:{here}:1"]
    sleeper.kill()
    sleeper.wait()
    assert presence(running(sleeper.pid, now)) is Presence.NOT_HERE
