"""A journal that goes back while jobs run: nothing runs twice, and what has ended is recorded."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet import Fleet, shell

from dispatcher.base.host import host_name
from dispatcher.outlets.lost_claims import LostClaim
from dispatcher.pod.fence import Fence
from dispatcher.pod.recording import claim_again
from dispatcher.run_state import liveness
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store

# Tells which attempts have begun, and ends with the status in the file `go`.
GATED = "echo $DISPATCHER_JOB_ID >>ran; echo begun; until [ -e go ]; do sleep 0.02; done; exit $(<go)"


def begun(fleet: Fleet) -> Counter[str]:
    """How often each job has begun to run."""
    return Counter((fleet.root / "ran").read_text().split())


def queue(fleet: Fleet, *jobs: str) -> Path:
    """Queue the jobs, which wait for a file `go` each, and copy the run state as it is then; the copy."""
    fleet.write_manifest([shell(job, GATED) for job in jobs])
    assert fleet.start("first", "--methods", "none").ready().stop() == 0
    copy = fleet.root / "backup"
    copy.mkdir()
    shutil.copytree(fleet.layout.journal_dir, copy / "journal")
    for path in (fleet.layout.status_file, fleet.layout.lock_file):
        shutil.copy2(path, copy)
    return copy


def restore(fleet: Fleet, copy: Path, *, with_lock: bool) -> None:
    """Copy a backup over the run state, as people do."""
    shutil.copytree(copy / "journal", fleet.layout.journal_dir, dirs_exist_ok=True)
    shutil.copy2(copy / fleet.layout.status_file.name, fleet.layout.status_file)
    if with_lock:
        shutil.copy2(copy / fleet.layout.lock_file.name, fleet.layout.lock_file)


@pytest.mark.parametrize("with_lock", [False, True])
def test_running_jobs_of_a_restored_run_state_do_not_run_again(fleet: Fleet, with_lock: bool) -> None:
    copy = queue(fleet, "a", "b")
    dead = fleet.start("pod", "--slots", "2")
    pids = {job: fleet.wait_running(job) for job in "ab"}
    dead.kill()
    restore(fleet, copy, with_lock=with_lock)
    # Without the lock file, which says how long the journal was, nothing starts before the repair.
    said = fleet.try_("doctor", "--repair").stdout
    for job in "ab":
        assert f"{fleet.attempt(job).directory} (pod pod, host {host_name()}, " in said
        assert f"pid {pids[job]}, running); record: queued, attempt 0" in said
    assert "start a pod: before it runs a queued job again, it records such an attempt" in said
    pod = fleet.start("pod", "--slots", "2", "--until-empty", poll="0.2")
    for job in "ab":
        assert fleet.wait_for(job, "running").attempt == 1
        pod.says(f"warning: {fleet.attempt(job).directory} (pod pod, host")
        assert fleet.record(job).pid == pids[job]
    (fleet.root / "go").write_text("0")
    assert pod.end() == 0
    assert fleet.states() == {"a": "done", "b": "done"}
    assert begun(fleet) == {"a": 1, "b": 1}
    assert fleet.events("a")[-2:] == ["claimed", "done"]
    assert fleet.record("a").started_at <= fleet.record("a").finished_at


def test_gpus_of_running_jobs_stay_theirs(fleet: Fleet) -> None:
    fleet.write_manifest([shell(job, GATED, gpus=1) for job in "abc"])
    first = fleet.start("pod", "--gpus", "0,1")
    for job in "ab":
        fleet.wait_running(job)
    first.kill()
    fleet.wait_for("c", "queued")
    path = fleet.layout.journal(1)
    header, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + b"".join(line for line in lines if b'"queued"' in line))
    fleet.layout.status_file.unlink()
    fleet.try_("doctor", "--repair")
    pod = fleet.start("pod", "--gpus", "0,1", "--until-empty", poll="0.2")
    pod.says("found a (attempt 1) again")
    pod.says("found b (attempt 1) again")
    assert [fleet.record(job).gpu for job in "ab"] == [0, 1]
    assert fleet.record("c").state == "queued", "no GPU is free"
    (fleet.root / "go").write_text("0")
    assert pod.end() == 0
    assert begun(fleet) == {"a": 1, "b": 1, "c": 1}


def test_ends_that_a_restored_run_state_does_not_know_are_recorded(fleet: Fleet) -> None:
    copy = queue(fleet, "good", "bad", "killed")
    first = fleet.start("pod", "--slots", "3")
    for job in ("good", "bad", "killed"):
        fleet.wait_running(job)
    first.kill()
    os.killpg(fleet.record("killed").pid, 9)
    (fleet.root / "go").write_text("0")
    fleet.wait_gone("good")
    fleet.wait_gone("killed")
    fleet.wait_gone("bad")
    # As it would be had it failed.
    fleet.attempt("bad").exit.write_text(json.dumps({**fleet.exit_file("bad"), "exit_code": 7}) + "\n")
    restore(fleet, copy, with_lock=True)
    said = fleet.try_("doctor").stdout
    assert "3 attempts not in the journal, over or submitted" in said
    assert "ended with exit status 7); record: queued, attempt 0" in said
    assert "ended without an exit status); record: queued, attempt 0" in said
    other = fleet.start("other", "--until-empty", poll="0.2")
    assert other.end() == 1
    records = fleet.records()
    assert {job: (str(one.state), one.attempt) for job, one in records.items()} == {
        "good": ("done", 1),
        "bad": ("failed", 1),
        "killed": ("done", 2),
    }
    assert records["bad"].exit_code == 7
    assert begun(fleet) == {"good": 1, "bad": 1, "killed": 2}, "only what was lost runs again"


def test_a_live_pod_keeps_what_a_repaired_journal_does_not_have(fleet: Fleet) -> None:
    queue(fleet, "a", "b")
    pod = fleet.start("pod", "--slots", "2", "--until-empty", poll="0.2")
    for job in "ab":
        fleet.wait_running(job)
    first = next(iter(sorted(fleet.layout.journal_dir.glob("*.jsonl"))))
    lines = first.read_bytes().splitlines(keepends=True)
    queued = next(number for number, line in enumerate(lines) if b'"claimed"' in line)
    fleet.layout.status_file.unlink()
    os.truncate(first, len(b"".join(lines[:queued])))
    pod.says("doctor --repair")
    fleet.try_("doctor", "--repair")
    for job in "ab":
        assert fleet.wait_for(job, "running").attempt == 1
    (fleet.root / "go").write_text("0")
    assert pod.end() == 0
    assert "killing it" not in pod.said
    assert fleet.states() == {"a": "done", "b": "done"}
    assert begun(fleet) == {"a": 1, "b": 1}


def test_a_requeue_takes_over_the_attempt_that_its_record_does_not_know(fleet: Fleet) -> None:
    """The journal has gone back to the failure before: the job was queued again, and that attempt has succeeded."""
    fleet.write_manifest([shell("a", "[ -e good ]")])
    assert fleet.run_all().end() == 1
    copy = fleet.root / "backup"
    copy.mkdir()
    shutil.copytree(fleet.layout.journal_dir, copy / "journal")
    for path in (fleet.layout.status_file, fleet.layout.lock_file):
        shutil.copy2(path, copy)
    (fleet.root / "good").touch()
    fleet.run("requeue", "a")
    assert fleet.run_all().end() == 0
    restore(fleet, copy, with_lock=True)
    said = fleet.try_("doctor").stdout
    assert "ended with exit status 0); record: failed, attempt 1" in said
    assert "Not queued: `dispatcher requeue a` has the pod do so" in said
    fleet.run("requeue", "a")
    assert fleet.run_all(poll="0.2").end() == 0
    assert (fleet.record("a").state, fleet.record("a").attempt) == ("done", 2)
    assert not fleet.attempt("a", 3).directory.exists()
    assert "the journal has all that have begun" in fleet.try_("doctor").stdout


@pytest.fixture
def passing(fleet: Fleet) -> Callable[..., tuple[int, Path] | LostClaim | None]:
    """What the fence of pod `pod` makes of a job `a` whose record knows `known` attempts; `said` is told the rest."""
    store = Store(fleet.layout, by="pod")

    def claim(known: int, *alive: str, said: list[str] | None = None) -> object:
        fence = Fence(fleet.layout, "pod", lambda name: name in alive, [].append if said is None else said.append)
        with store.transaction() as tx:
            return fence.pass_through(tx, "a", known + 1)

    return claim


def leave(fleet: Fleet, number: int, *names: str, pod: str = "dead") -> None:
    """The directory of an attempt with these files."""
    paths = fleet.attempt("a", number)
    paths.directory.mkdir(parents=True)
    paths.claimant.write_text(f"{pod}\nthere 1234-boot f00\n")
    for name in names:
        (paths.directory / name).write_text("there 4711\n" if name == "taken" else "{}\n")


def test_an_attempt_beyond_a_free_number_is_found(fleet: Fleet, passing) -> None:
    leave(fleet, 1, "taken", "exit.json")
    leave(fleet, 3, "taken")
    found = passing(1)
    assert isinstance(found, LostClaim)
    assert (found.number, found.pod, found.host, found.pid) == (3, "dead", "there", 4711)
    assert not fleet.attempt("a", 2).directory.exists(), "nothing is left of what was not claimed"
    assert passing(3)[0] == 4, "the journal has it"


def test_what_never_began_is_passed_over(fleet: Fleet, passing) -> None:
    leave(fleet, 1, "taken", "exit.json")
    leave(fleet, 2, "taken")
    leave(fleet, 3)
    leave(fleet, 4, "entry.json", "job.sh")
    assert passing(2)[0] == 5
    shutil.rmtree(fleet.attempt("a", 5).directory)
    assert passing(1).number == 2, "the newest that has begun"
    (fleet.attempt("a", 2).superseded).touch()
    assert passing(1)[0] == 5, "that one was given up, and the ones before"


def test_one_that_a_live_pod_runs_blocks_its_job_until_the_pod_records_it(fleet: Fleet, passing) -> None:
    leave(fleet, 1, "taken", pod="lives")
    fd = liveness.take(fleet.attempt("a").alive)
    assert fd is not None
    try:
        said: list[str] = []
        assert passing(0, "lives", said=said) is None
        assert (
            f"{fleet.attempt('a').directory} (pod lives, host there, pid 4711, running): that pod is running" in said[0]
        )
        assert passing(0).runs, "its pod is dead"
    finally:
        os.close(fd)
    assert not passing(0, "lives").runs, "it is over"


def test_one_that_was_submitted_is_recorded_as_that(fleet: Fleet, passing) -> None:
    leave(fleet, 1)
    told = {"outlet": "cluster", "name": "d-1", "index": 0, "directory": "/x"}
    fleet.attempt("a").submission.write_text(json.dumps(told) + "\n")
    lost = passing(0)
    assert lost.text() == f"{fleet.attempt('a').directory} (pod dead, outlet cluster, submitted)"
    with Store(fleet.layout, by="pod").transaction() as tx:
        claim_again(tx, lost)
    record = fleet.record("a")
    assert (record.state, record.pod, record.outlet, record.attempt) == (State.SUBMITTED, "dead", "cluster", 1)


def test_nothing_is_listed_for_the_first_attempt_of_a_job(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(fleet.layout, by="pod")
    with store.transaction():
        pass
    store.prepare_claims(["a"], 1)
    # Another pod has prepared it, too.
    other = Store(fleet.layout, by="other")
    other.prepare_claims(["b", "a"], 2)
    listed, real = list[str](), os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (listed.append(os.fspath(path)), real(path))[1])
    for each, job in ((store, "c"), (other, "a"), (other, "b")):
        with each.transaction() as tx:
            assert tx.make_attempt(job, 1) is not None
    assert not [path for path in listed if str(fleet.layout.jobs_dir) in path]
