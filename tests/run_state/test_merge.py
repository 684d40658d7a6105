"""A status file as a whole: one mistake is one refusal, and no record comes from a mistake."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

JOBS = [f"fft_{lang}_cfg{config}_s42" for lang in ("spanish", "hindi", "thai") for config in "AB"]
Lines = dict[str, dict[str, Any]]


@pytest.fixture
def manifest() -> set[str]:
    return set(JOBS)


@pytest.fixture
def store(layout: Layout, manifest: set[str]) -> Store:
    return new_store(layout, manifest)


def test_manifests_are_looked_at_once_for_a_whole_file(layout: Layout) -> None:
    """Under the lock, and only when a line has a job that no record has."""
    looks: list[int] = []
    store = Store(layout, by="pod-0", manifest_jobs=lambda: looks.append(1) or {"known499"})
    with store.transaction() as tx:
        tx.change("a", Event.QUEUED, Change(state=State.QUEUED))
    Projector(store).write()
    save(layout, store, {**loaded(layout), "a": {"state": "held"}})
    assert not looks
    lines = {f"{'known' if number == 499 else 'other'}{number}": {"state": "held"} for number in range(500)}
    save(layout, store, {**loaded(layout), **lines})
    assert looks == [1]
    assert set(store.records) == {"a", "known499"}


def new_store(layout: Layout, manifest: set[str], jobs: list[str] | None = None) -> Store:
    made = Store(layout, by="pod-0", manifest_jobs=lambda: manifest)
    with made.transaction() as tx:
        for job in jobs or JOBS:
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
            tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
            tx.change(job, Event.FAILED, Change(state=State.FAILED))
    Projector(made).write()
    return made


def loaded(layout: Layout) -> Lines:
    lines: Lines = json.loads(layout.status_file.read_bytes())
    return lines


def save(layout: Layout, store: Store, lines: Lines) -> dict[str, str]:
    """Write the file, let a transaction take it in; what stands refused then."""
    layout.status_file.write_text(json.dumps(lines), encoding="utf-8")
    with store.transaction():
        pass
    return {job: refusal.why for job, refusal in store.fold.refusals.items()}


def renamed(lines: Lines, old: str, new: str) -> Lines:
    return {new if job == old else job: line for job, line in lines.items()}


@pytest.mark.parametrize("new", ["fft_spansih_cfgB_s42", "altogether different"])
@pytest.mark.parametrize("rev", ["now", "before", "none"])
def test_a_renamed_job_is_one_refusal_and_makes_no_record(layout: Layout, store: Store, new: str, rev: str) -> None:
    old = "fft_spanish_cfgB_s42"
    lines = renamed(loaded(layout), old, new)
    if rev == "before":
        with store.transaction() as tx:
            tx.change(old, Event.REQUEUED, Change(state=State.QUEUED))
    elif rev == "none":
        del lines[new]["rev"]
    record = store.records[old]
    refused = save(layout, store, lines)
    assert set(store.records) == set(JOBS)
    assert store.records[old] == record
    if rev == "none" and new == "altogether different":
        # Nothing says that these two lines have to do with each other.
        assert set(refused) == {new, old}
        return
    assert list(refused) == [old]
    assert f"unknown job '{new}': the line was that of {old}" in refused[old]
    Projector(store).write()
    assert list(loaded(layout)) == JOBS
    # Said once, and kept once.
    with store.transaction():
        pass
    assert len(list(layout.rejected_dir.iterdir())) == 1


def test_a_line_of_a_job_that_no_manifest_has_is_refused_with_what_to_do(layout: Layout, store: Store) -> None:
    for new, words in (
        (
            "fft_thia_cfgB_s42",
            "unknown job: no manifest has it (did you mean 'fft_thai_cfgB_s42'?); add it to the manifest",
        ),
        ("qqq", "unknown job: no manifest has it; add it to the manifest"),
        ("", "unknown job"),
    ):
        for line in ({"state": "queued"}, {"state": "queued", "rev": 3}, {"note": 1}):
            refused = save(layout, store, {**loaded(layout), new: line})
            assert words in refused[new]
            assert set(store.records) == set(JOBS)


def test_a_line_of_a_job_that_a_manifest_has_makes_its_record(layout: Layout, store: Store, manifest: set[str]) -> None:
    manifest.add("new")
    assert save(layout, store, {**loaded(layout), "new": {"state": "held", "note": "later"}}) == {}
    assert store.records["new"].state is State.HELD


def test_the_other_edits_of_a_file_with_a_renamed_job_apply(layout: Layout, store: Store) -> None:
    lines = renamed(loaded(layout), JOBS[0], "x")
    lines[JOBS[1]]["state"] = "queued"
    assert list(save(layout, store, lines)) == [JOBS[0]]
    assert store.records[JOBS[1]].state is State.QUEUED


def test_a_file_of_another_workspace_is_one_refusal(layout: Layout, store: Store) -> None:
    others = {f"other{number}": {"state": "queued"} for number in range(3_000)}
    refused = save(layout, store, {**loaded(layout), **others})
    assert list(refused) == [""]
    assert "3000 lines are of unknown jobs (other0, other1, other2, ...)" in refused[""]
    assert set(store.records) == set(JOBS)


def test_a_copy_that_is_older_than_the_journal_is_one_refusal(layout: Layout) -> None:
    jobs = [f"job{number}" for number in range(10_000)]
    store = new_store(layout, set(jobs), jobs)
    copy = loaded(layout)
    with store.transaction() as tx:
        for job in jobs:
            tx.change(job, Event.REQUEUED, Change(state=State.QUEUED))
    # As years of rotations and a disk that was tidied up leave it.
    assert store.rotate()
    for generation in journal.generations(layout)[:-1]:
        journal.compressed(layout.journal(generation)).unlink()
    newcomer = Store(layout, by="pod-1", manifest_jobs=lambda: set(jobs))
    with newcomer.transaction() as tx:
        tx.change("job7", Event.HELD, Change(state=State.HELD))
    # This line is of now, and counts.
    copy["job9"] = {**newcomer.records["job9"].fields(), "state": "held"}
    begun_s = time.process_time()
    Store(layout, by="reader").refresh(to_the_end=True)
    reading_s = time.process_time() - begun_s
    begun_s = time.process_time()
    refused = save(layout, newcomer, copy)
    # Line by line it would be ten thousand readings of the journal.
    assert time.process_time() - begun_s < 100 * reading_s
    assert list(refused) == [""]
    assert "9999 lines are older than the journal" in refused[""]
    assert newcomer.records["job9"].state is State.HELD
    assert {newcomer.records[job].state for job in jobs if job not in ("job7", "job9")} == {State.QUEUED}
    (kept,) = layout.rejected_dir.iterdir()
    assert kept.read_bytes() == layout.status_file.read_bytes()


def test_an_old_line_that_says_what_the_record_says_is_no_edit(layout: Layout, store: Store) -> None:
    copy = loaded(layout)
    with store.transaction() as tx:
        for job in JOBS:
            tx.change(job, Event.EDITED, Change(priority=1))
            tx.change(job, Event.EDITED, Change(priority=None))
    assert store.rotate()
    for generation in journal.generations(layout)[:-1]:
        os.unlink(journal.compressed(layout.journal(generation)))
    newcomer = Store(layout, by="pod-1")
    copy[JOBS[0]]["state"] = "queued"
    refused = save(layout, newcomer, copy)
    assert list(refused) == [JOBS[0]]
    assert "older than the journal" in refused[JOBS[0]]


def test_several_mistakes_with_many_lines_are_said_together(layout: Layout) -> None:
    jobs = [f"job{number}" for number in range(100)]
    store = new_store(layout, set(jobs), jobs)
    lines = {"job99": loaded(layout)["job99"], **{f"other{number}": {"state": "queued"} for number in range(50)}}
    refused = save(layout, store, lines)
    assert list(refused) == [""]
    assert "50 lines are of unknown jobs" in refused[""]
    assert "99 lines were removed" in refused[""]
    assert len(list(layout.rejected_dir.iterdir())) == 1
