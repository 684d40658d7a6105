"""The numbers of attempts where directories are there that the journal does not know."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from clocks import Clock
from fleet import Fleet, shell, wait_until

from dispatcher.pod.fence import Fence
from dispatcher.run_state.store import Store

GATED = "echo begun; until [ -e go ]; do sleep 0.02; done"


@pytest.fixture
def passing(fleet: Fleet) -> Callable[..., tuple[int | None, Fence, list[str]]]:
    """What a fence makes of the directories that are there: the number, the fence, and what it says."""
    store = Store(fleet.layout, by="pod")

    def claim(expected: int, *alive: str, looks: int = 1) -> tuple[int | None, Fence, list[str]]:
        said: list[str] = []
        made = Fence(fleet.layout, "pod", lambda name: name in alive, said.append)
        for _ in range(looks):
            with store.transaction() as tx:
                passed = made.pass_through(tx, "a", expected)
        return (passed[0] if passed else None), made, said

    return claim


def leave(fleet: Fleet, number: int, *, pod: str = "", over: bool = False) -> Path:
    """A directory of an attempt, as a claimant that died there leaves it, or one that was given up."""
    paths = fleet.attempt("a", number)
    paths.directory.mkdir(parents=True)
    if pod:
        paths.claimant.write_text(f"{pod}\n")
    if over:
        paths.exit.write_text("{}\n")
        paths.superseded.touch()
    return paths.directory


def test_numbers_go_on_beyond_all_that_were_ever_used(fleet: Fleet, passing) -> None:
    for number in (1, 2, 7, 4321):
        leave(fleet, number, over=True)
    (fleet.layout.job_dir("a") / "notes").mkdir()
    (fleet.layout.job_dir("a") / ("9" * 40)).mkdir()
    assert passing(1)[0] == 4322
    assert passing(3)[0] == 4323, "also where a smaller number is free"


@pytest.mark.parametrize("number", [3, 9])
def test_a_directory_of_a_live_pod_blocks_the_job(fleet: Fleet, passing, number: int) -> None:
    leave(fleet, 3, pod="dead")
    leave(fleet, 9, pod="dead")
    fleet.attempt("a", number).claimant.write_text("lives\n")
    assert passing(3)[0] == 10, "both pods are dead"
    shutil.rmtree(fleet.attempt("a", 10).directory)
    got, made, said = passing(3, "lives", looks=3)
    assert got is None
    assert len(said) == 1, "what goes on is said once"
    for text in (said[0], *made.notes()):
        assert f"{fleet.attempt('a', number).directory}: created by pod lives" in text
        assert "old" not in text, "nobody else can change a filesystem of this host"


def test_a_directory_without_a_name_is_given_time(fleet: Fleet) -> None:
    leave(fleet, 1)
    clock, said = Clock(), list[str]()
    fence = Fence(fleet.layout, "pod", lambda _: False, said.append, clock=clock)

    def number() -> int | None:
        with Store(fleet.layout, by="pod").transaction() as tx:
            passed = fence.pass_through(tx, "a", 1)
        return passed[0] if passed else None

    assert number() is None
    assert "names no claimant yet" in said[0]
    clock.now_s += 30
    assert number() is None
    clock.now_s += 1
    assert number() == 2


def test_a_job_that_was_forgotten_after_many_attempts_runs_again(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    for number in range(1, 151):
        leave(fleet, number, over=True)
    assert fleet.run_all().end() == 0
    assert (fleet.record("a").state, fleet.record("a").attempt) == ("done", 151)


def why(fleet: Fleet, job: str) -> str:
    """Why a job waits, as `status` says it."""
    jobs = json.loads(fleet.run("status", "--json"))["jobs"]
    return str(next(one["why"] for one in jobs if one["job"] == job))


def test_a_blocked_job_leaves_its_slot_to_the_others(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true"), *(shell(job, "true") for job in "bcd")])
    owner = fleet.start("owner", "--methods", "none").ready()
    blocking = leave(fleet, 1, pod="owner")
    pod = fleet.start("pod", "--until-empty")
    for job in "bcd":
        fleet.wait_for(job, "done")
    assert fleet.record("a").state == "queued"
    assert f"{blocking}: created by pod owner" in pod.said
    assert "a cannot be claimed" in fleet.run("pods")
    # Nor does it seem to wait for a slot: all of them are free.
    wait_until(lambda: f"cannot be claimed: {blocking}: created by pod owner" in why(fleet, "a"), "`status` says so")
    assert owner.stop() == 0
    assert pod.end() == 0, "the job is tried again by itself"
    assert (fleet.record("a").state, fleet.record("a").attempt) == ("done", 2)


@pytest.mark.parametrize(
    "spoil",
    [
        "touch a",
        "ln -s /nowhere/a a",
        "mkdir a; touch a/1",
        "mkdir a; ln -s 1 a/1",
        "mkdir -p a/1; touch a/2; rmdir a/1",
    ],
)
def test_what_is_wrong_below_one_jobs_directory_concerns_that_job(fleet: Fleet, spoil: str) -> None:
    fleet.write_manifest([shell("a", "true"), shell("b", "true")])
    fleet.layout.jobs_dir.mkdir(parents=True)
    subprocess.run(["bash", "-c", spoil], cwd=fleet.layout.jobs_dir, check=True)
    pod = fleet.start("pod", "--slots", "1")
    fleet.wait_for("b", "done")
    assert fleet.states()["a"] == "queued"
    assert "a cannot be claimed" in pod.said
    pod.stop()


def test_a_name_that_is_too_long_for_the_filesystem_concerns_that_job(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As eCryptfs, which takes 143 bytes."""
    job = "x" * 200
    fleet.write_manifest([shell(job, "true")])
    made: list[str] = []

    def refuse(path: str, *rest: object) -> None:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)

    with Store(fleet.layout, by="me").transaction() as tx:
        monkeypatch.setattr(os, "mkdir", refuse)
        assert Fence(fleet.layout, "me", lambda _: True, made.append).pass_through(tx, job, 1) is None
        monkeypatch.undo()
    assert "takes no name of 200 bytes: give the job a shorter job_id" in made[0]


def test_more_blocked_jobs_than_one_transaction_looks_at(fleet: Fleet) -> None:
    jobs = [f"blocked{number}" for number in range(45)]
    fleet.write_manifest([*(shell(job, "true") for job in jobs), shell("last", "true")])
    fleet.layout.jobs_dir.mkdir(parents=True)
    for job in jobs:
        fleet.layout.job_dir(job).touch()
    pod = fleet.start("pod")
    fleet.wait_for("last", "done")
    assert "must be a directory that this user can write to" in pod.said
    wait_until(lambda: "cannot be claimed" in why(fleet, jobs[-1]), "of each is told why it waits")
    wait_until(lambda: "42 more jobs cannot be claimed" in fleet.run("pods"), "all of them are counted")
    for job in jobs:
        fleet.layout.job_dir(job).unlink()
    for job in jobs:
        fleet.wait_for(job, "done")
    assert pod.stop() == 0


def test_an_attempt_that_was_killed_is_over_for_other_pods_too(fleet: Fleet) -> None:
    """It left no exit status, and the pod that made its directory runs on."""
    fleet.write_config("max_requeues: 0\n")
    fleet.write_manifest([shell("a", "kill -9 $PPID", lr=1)])
    first = fleet.start("first", "--where", "lr=1")
    fleet.wait_for("a", "failed")
    fleet.write_manifest([shell("a", "true", lr=2)])
    fleet.run("delete", "a", "--yes")
    second = fleet.start("second", "--until-empty")
    assert second.end() == 0, second.said
    assert (fleet.record("a").pod, fleet.record("a").attempt) == ("second", 2)
    assert first.is_running()
