"""Whose jobs and changes these are: `--user`, `--mine`, `user=`, `history --by`."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from fleet import Fleet
from submitting import submit, written

from dispatcher import Workspace
from dispatcher.base.users import name_of
from dispatcher.errors import UsageError

ME = name_of(os.getuid())
JOBS = [
    {"job_id": "a1", "method": "fft", "user": "ada"},
    {"job_id": "a2", "method": "fft", "user": "ada"},
    {"job_id": "b1", "method": "lora", "user": "bob"},
    {"job_id": "me", "method": "lora"},
]


@pytest.fixture
def shared(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A workspace with jobs of three users, read by the one who owns its manifest."""
    monkeypatch.setenv("LOGNAME", ME)
    lab.write_manifest(JOBS)
    return lab


def jobs(outcome: Any) -> list[str]:
    assert outcome.code == 0, outcome.err
    return [row["job"] for row in outcome.json["jobs"]]


def test_status_selects_by_owner_and_shows_whose_jobs_they_are(shared: Any) -> None:
    assert jobs(shared.run("status", "--user", "ada", "--json")) == ["a1", "a2"]
    assert jobs(shared.run("status", "--user", "b*,ada", "--where", "method=lora", "--json")) == ["b1"]
    assert jobs(shared.run("status", "--mine", "--json")) == ["me"]
    assert jobs(shared.run("status", "--mine", "--user", "bob", "--json")) == ["b1", "me"]
    assert jobs(shared.run("status", "--where", "user!=ada", "--json")) == ["b1", "me"]
    table = shared.run("status", "--state", "queued").out
    assert [line.split()[:2] for line in table.splitlines()[2:]][:1] == [["job", "user"]]
    assert "user" not in shared.run("status", "--mine").out, "the column is for jobs of others"
    assert [row["user"] for row in shared.run("status", "--json").json["jobs"]] == ["ada", "ada", "bob", ME]
    by = shared.run("status", "--by", "user", "--json").json
    assert [(row["user"], row["queued"]) for row in by] == [("ada", 2), ("bob", 1), (ME, 1)]
    assert shared.run("show", "b1").out.splitlines()[1].split() == ["user", "bob"]


def test_a_misspelt_user_is_named_with_the_nearest(shared: Any) -> None:
    for words in (["status"], ["cancel", "--yes"], ["usage"], ["history"], ["matrix", "show"]):
        outcome = shared.run(*words, "--user", "bod")
        assert outcome.code == 2 and "no job is of user 'bod'" in outcome.err and "did you mean 'bob'?" in outcome.err
    # Somebody of this host who has no jobs yet is no mistake.
    assert jobs(shared.run("status", "--user", "daemon", "--json")) == []
    assert shared.run("status", "--user", ",").code == 2


def test_changes_of_ones_own_jobs(shared: Any) -> None:
    assert shared.run("hold", "--mine").out == "me: held\n"
    assert shared.run("cancel", "--user", "ada").code == 0
    assert (shared.state("a1"), shared.state("a2"), shared.state("me")) == ("abandoned", "abandoned", "held")
    workspace = Workspace(shared.root)
    assert workspace.requeue(user="ada", where={"job_id": "a1"}).changed == {"a1": "requeued"}
    assert workspace.status(user=["ada", "bob"]).total == 3
    with pytest.raises(UsageError, match="did you mean 'ada'"):
        workspace.hold(user="adda")


def test_what_ran_is_told_from_the_attempt(shared: Any) -> None:
    """Another owner in the manifest changes nothing of what ran, and does not count as other values."""
    shared.put("a1", "running", user="ada", ran_with=Workspace(shared.root).entries()["a1"].digest())
    shared.put("a2", "done", user="ada")
    shared.write_manifest([{**one, "user": "bob"} for one in JOBS])
    assert jobs(shared.run("status", "--user", "ada", "--json")) == ["a1", "a2"]
    row = shared.run("show", "a1", "--json").json
    assert (row["user"], row["changed"], row["entry"]["user"], row["ran_with"]["user"]) == ("ada", False, "bob", "ada")
    shared.run("requeue", "a2", "--state", "done")
    assert jobs(shared.run("status", "--user", "ada", "--json")) == ["a1"], "the next attempt is of the new owner"


def test_history_by_those_who_made_the_changes(shared: Any) -> None:
    Workspace(shared.root, by="ada@desk").hold("a1", "b1")
    Workspace(shared.root, by="bob@ws1").cancel("b1")
    shared.put("me", "running")

    def told(*words: str) -> list[tuple[str, str]]:
        return [(line["by"], line["job"]) for line in shared.run("history", *words, "--json").json]

    assert set(told("--by", "ada")) == {("ada@desk", "a1"), ("ada@desk", "b1")}
    assert set(told("--by", "bob@ws1")) == {("bob@ws1", "b1")}
    assert set(told("--by", "ada", "--user", "bob")) == {("ada@desk", "b1")}
    assert set(told("--by", "test,bob")) == {("bob@ws1", "b1"), ("test", "me")}
    outcome = shared.run("history", "--by", "adda")
    assert (
        outcome.code == 2 and "--by adda: the history has no change by that name (did you mean 'ada'?)" in outcome.err
    )


def test_submitted_and_made_jobs_are_of_who_called(empty: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    submit(empty, "--name", "hers", "--", "true")
    workspace = Workspace(empty.root, by="bob@ws1")
    workspace.submit("true", name="his")
    workspace.submit("true", name="eves", user="eve")
    assert [one["user"] for one in written(empty)] == ["ada", "bob", "eve"]
    sweep = empty.root / "sweep.yaml"
    sweep.write_text("{defaults: {method: m}, job_id: 's{n}', sweeps: [{grid: {n: [1]}}]}")
    empty.write_config("methods: {m: {command: 'true'}}")
    assert empty.try_("matrix", "make", str(sweep)).returncode == 0
    monkeypatch.setenv("LOGNAME", "bob")
    sweep.write_text(sweep.read_text().replace("[1]", "[1, 2]"))
    assert empty.try_("matrix", "make", str(sweep)).returncode == 0
    made = json.loads((empty.root / "matrix" / "matrix.json").read_text())
    assert [(one["job_id"], one["user"]) for one in made] == [("s1", "ada"), ("s2", "bob")]
    monkeypatch.setenv("LOGNAME", "eve")
    Workspace(empty.root).add([{"job_id": "s3", "method": "m"}])
    assert {job: entry.user for job, entry in Workspace(empty.root).entries().items()} == {
        "s1": "ada", "s2": "bob", "s3": "eve", "hers": "ada", "his": "bob", "eves": "eve",
    }  # fmt: skip
