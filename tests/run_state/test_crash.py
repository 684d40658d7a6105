"""A crash at every write: reopened, the records are those before the change or after it, never others."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from run_state.crashing import crash_after

from dispatcher.errors import DamagedJournalError, StaleViewError
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Blame, Event
from dispatcher.run_state.facets.pauses import Paused, Unpaused
from dispatcher.run_state.journal import history
from dispatcher.run_state.projection import Projector, restore
from dispatcher.run_state.repair import repair
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

pytestmark = pytest.mark.slow
NOON = 1_781_700_000.0
LAB = {
    "fft_spanish_cfgB_s42_main": {"state": "done", "pod": "shivam-0_tokfix", "finished_at": "2026-06-17T26:12:00Z"},
    "fft_hindi_cfgB_s42_main": {"state": "failed", "note": "check LR"},
}


def open_store(layout: Layout, by: str = "pod-0") -> Store:
    return Store(layout, by=by, wall_clock=lambda: NOON)


def shown(store: Store) -> dict[str, Any]:
    fold = store.fold
    return {
        "records": dict(fold.records),
        "pauses": dict(fold.pauses),
        "refusals": dict(fold.refusals),
        "streaks": dict(fold.pauses.streaks),
    }


def seen(layout: Layout) -> dict[str, Any]:
    """What the journal says to somebody who only looks."""
    store = open_store(layout)
    store.refresh(to_the_end=True)
    return shown(store)


def queue_three(layout: Layout) -> None:
    store = open_store(layout)
    with store.transaction() as tx:
        for job in "abc":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    with store.transaction() as tx:
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
        assert tx.make_attempt("a", 1) is not None
        tx.note(Paused(scope="lora", why="it failed five times"))
    Projector(store).write()
    store.close()


def save(layout: Layout, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the status file as a script without any lock does."""
    with open(layout.status_file, encoding="utf-8") as file:
        lines = json.load(file)
    change(lines)
    with open(layout.status_file, "w", encoding="utf-8") as file:
        json.dump(lines, file)


def claim(store: Store, job: str) -> int:
    """Claim as a dispatcher does: past the directories that dead claimants have left."""
    with store.transaction() as tx:
        record = tx.record(job)
        for attempt in itertools.count((record.attempt if record else 0) + 1):
            if tx.make_attempt(job, attempt) is not None:
                tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=attempt))
                return attempt
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class Case:
    """`prepare` makes a workspace, `act` is what dies in the middle."""

    prepare: Callable[[Layout], None]
    act: Callable[[Layout], None]
    # What a mere look at the reopened workspace takes in by itself.
    comes_anyway: bool = False
    unreadable_at_first: bool = False


def transaction(*changes: Callable[[Any], Any]) -> Callable[[Layout], None]:
    def act(layout: Layout) -> None:
        with open_store(layout).transaction() as tx:
            for change in changes:
                change(tx)

    return act


def nothing(layout: Layout) -> None:
    pass


def lab_file(layout: Layout) -> None:
    layout.run_state.mkdir()
    layout.status_file.write_text(json.dumps(LAB), encoding="utf-8")


def journal_removed(layout: Layout) -> None:
    stale_status(layout)
    project(layout)
    shutil.rmtree(layout.journal_dir)


def held_by_hand(layout: Layout) -> None:
    queue_three(layout)
    save(layout, lambda lines: lines["b"].update(state="held", note="später"))


def misspelt_by_hand(layout: Layout) -> None:
    queue_three(layout)
    save(layout, lambda lines: lines["b"].update(state="quued"))


def broken_by_hand(layout: Layout) -> None:
    queue_three(layout)
    layout.status_file.write_text('{"a": {"state": "queued"', encoding="utf-8")


def stale_status(layout: Layout) -> None:
    queue_three(layout)
    with open_store(layout).transaction() as tx:
        tx.change("b", Event.CLAIMED, Change(state=State.RUNNING, attempt=1))


def stale_status_and_edit(layout: Layout) -> None:
    stale_status(layout)
    save(layout, lambda lines: lines["c"].update(priority=5))


def hardlink_workspace(layout: Layout) -> None:
    store = Store(layout, by="pod-0", lock="hardlink", wall_clock=lambda: NOON)
    with store.transaction() as tx:
        for job in "abc":
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
    store.close()


def project(layout: Layout) -> None:
    projector = Projector(open_store(layout))
    projector.write()
    projector.close()


CASES = {
    "first start": Case(nothing, transaction(lambda tx: tx.change("a", Event.QUEUED, Change(state=State.QUEUED)))),
    "adoption": Case(lab_file, transaction(), comes_anyway=True),
    "rebuilding": Case(journal_removed, transaction(), comes_anyway=True),
    "queueing many": Case(
        queue_three,
        transaction(lambda tx: [tx.change(f"job{n}", Event.QUEUED, Change(state=State.QUEUED)) for n in range(500)]),
    ),
    "claim": Case(queue_three, lambda layout: claim(open_store(layout), "b") and None),
    "ending": Case(
        queue_three,
        transaction(
            lambda tx: tx.change("a", Event.FAILED, Change(state=State.FAILED, error="x"), data=Blame(method="fft"))
        ),
    ),
    "hand edit": Case(held_by_hand, transaction(), comes_anyway=True),
    "hand edit and a change": Case(
        held_by_hand, transaction(lambda tx: tx.change("c", Event.HELD, Change(state=State.HELD)))
    ),
    "refusal": Case(misspelt_by_hand, transaction(), comes_anyway=True),
    "pause": Case(queue_three, transaction(lambda tx: tx.note(Paused(scope="fft", why="five alike")))),
    "resume": Case(queue_three, transaction(lambda tx: tx.note(Unpaused(scope="lora")))),
    "forget": Case(queue_three, transaction(lambda tx: tx.delete("b"))),
    "projection": Case(stale_status, project),
    "projection over an edit": Case(stale_status_and_edit, project, comes_anyway=True),
    "restore": Case(broken_by_hand, lambda layout: restore(open_store(layout)) and None, unreadable_at_first=True),
    "new generation": Case(queue_three, lambda layout: open_store(layout).rotate() and None),
    "hard-link lock": Case(
        hardlink_workspace, transaction(lambda tx: tx.change("a", Event.HELD, Change(state=State.HELD)))
    ),
    "going over to the hard-link lock": Case(queue_three, lambda layout: open_store(layout).use_hardlink_lock()),
}


def act_of(name: str, layout: Layout) -> None:
    CASES[name].act(layout)


def outcome_of(case: Case, root: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What stands there before the change, and after it."""
    root.mkdir()
    layout = Layout(root)
    case.prepare(layout)
    before = seen(layout)
    case.act(layout)
    return before, seen(layout)


@pytest.mark.parametrize("partly", [False, True], ids=["whole writes", "half a write"])
@pytest.mark.parametrize("name", CASES)
def test_a_crash_at_every_write(name: str, partly: bool, quick_dir: Path) -> None:
    case = CASES[name]
    before, after = outcome_of(case, quick_dir / "whole")
    pristine = quick_dir / "pristine"
    pristine.mkdir()
    case.prepare(Layout(pristine))
    for calls in itertools.count(1):
        root = quick_dir / "crashed"
        shutil.copytree(pristine, root)
        layout = Layout(root)
        # A dispatcher that was there before, and lives on.
        elder = open_store(layout, "elder")
        elder.refresh()
        finished = crash_after(calls, act_of, name, layout, partly=partly)
        check_reopened(layout, case, before, after, elder)
        shutil.rmtree(root)
        if finished:
            assert calls > 3, "nothing was counted"
            return


def check_reopened(layout: Layout, case: Case, before: dict[str, Any], after: dict[str, Any], elder: Store) -> None:
    check_status_file(layout, case)
    found = seen(layout)
    assert found in (before, after)
    store = open_store(layout)
    with store.transaction():
        pass
    if case.comes_anyway:
        assert shown(store)["records"] == after["records"]
        assert shown(store)["refusals"].keys() == after["refusals"].keys()
    elif case.act is not CASES["hand edit and a change"].act:
        assert shown(store) == found
    # Both go on: nothing is in the way of the next change, claims included.
    with elder.transaction() as tx:
        tx.change("later", Event.QUEUED, Change(state=State.QUEUED))
    assert claim(elder, "later") == 1
    free = [job for job, record in elder.records.items() if record.state is State.QUEUED]
    for job in free:
        assert claim(elder, job) <= 2
    store.refresh()
    assert shown(store) == shown(elder)
    assert shown(store) == seen(layout)
    seqs = [line.seq for line in history(layout) if line.event != "snapshot"]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    if not case.unreadable_at_first:
        project(layout)
        assert set(json.loads(layout.status_file.read_bytes())) == set(store.records)
    for used in (store, elder):
        used.close()


def check_status_file(layout: Layout, case: Case) -> None:
    with contextlib.suppress(FileNotFoundError):
        data = layout.status_file.read_bytes()
        if not case.unreadable_at_first or data[-2:] == b"}\n":
            assert isinstance(json.loads(data), dict)


def repair_it(layout: Layout) -> None:
    repair(open_store(layout))


def test_a_crash_at_every_write_of_a_repair(quick_dir: Path) -> None:
    def prepare(layout: Layout) -> None:
        queue_three(layout)
        whole = layout.journal(1).read_bytes()
        lines = whole.splitlines(keepends=True)
        lines[2] = lines[2][: len(lines[2]) // 2] + b"\x00\x00\n"
        layout.journal(1).write_bytes(b"".join(lines))

    whole = Layout(quick_dir / "whole")
    whole.root.mkdir()
    prepare(whole)
    with pytest.raises(DamagedJournalError):
        seen(whole)
    repair_it(whole)
    after = seen(whole)
    assert set(after["records"]) == {"a", "b", "c"}
    for calls in itertools.count(1):
        layout = Layout(quick_dir / "crashed")
        layout.root.mkdir()
        prepare(layout)
        finished = crash_after(calls, repair_it, layout, partly=False)
        with contextlib.suppress(DamagedJournalError, StaleViewError):
            assert seen(layout)["records"] == after["records"]
        repair_it(layout)
        assert seen(layout)["records"] == after["records"]
        with open_store(layout).transaction() as tx:
            tx.change("c", Event.HELD, Change(state=State.HELD))
        shutil.rmtree(layout.root)
        if finished:
            assert calls > 3, "nothing was counted"
            return
