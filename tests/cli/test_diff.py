"""`dispatcher diff`: what differs between two attempts, by what real pods have recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleet import RECORDING, Fleet
from repositories import Repository

from dispatcher.provenance.record import GitState, Interpreter, Provenance, Template
from dispatcher.query.differences import DIFFERENT, SAME, UNKNOWN, Side, difference
from dispatcher.workspace import Layout

TEMPLATE = """PARAMS = {"lr": 0.1}
from dispatcher.contract import report_result
report_result(loss=PARAMS["lr"] * 2, name="x")
"""


@pytest.fixture
def lab(fleet: Fleet) -> Repository:
    repository = Repository(fleet.root)
    repository.write(".gitignore", "run_state/\nsaid/\nmatrix/\n")
    repository.write("templates/train_m.py", TEMPLATE)
    repository.write("model.py", "x = 1\n")
    fleet.write_config("poll_interval: 1s\n")
    repository.commit(message="first")
    fleet.command = RECORDING
    return repository


def run(fleet: Fleet, *jobs: dict[str, Any]) -> None:
    fleet.write_manifest(list(jobs))
    assert fleet.run_all("--slots", "4").process.returncode == 0


def test_jobs_that_differ_in_a_parameter_and_those_that_do_not(fleet: Fleet, lab: Repository) -> None:
    run(fleet, {"job_id": "a", "lr": 0.1}, {"job_id": "b", "lr": 0.5}, {"job_id": "c", "lr": 0.1, "priority": 3})
    differs = fleet.try_("diff", "a", "b")
    assert differs.returncode == 1, differs.stderr
    assert "lr    0.1  0.5" in differs.stdout
    assert "code: the same" in differs.stdout
    assert "loss  0.2  1.0  +0.8   +400.0%" in differs.stdout
    equal = fleet.try_("diff", "a", "c")
    assert (equal.returncode, "nothing differs" in equal.stdout) == (0, True), equal.stdout + equal.stderr
    assert json.loads(fleet.run("diff", "--json", "a", "c"))["equal"] is True
    assert max(map(len, differs.stdout.splitlines())) <= 80


def test_attempts_of_one_job_with_other_code(fleet: Fleet, lab: Repository) -> None:
    run(fleet, {"job_id": "a"})
    lab.write("model.py", "x = 2\n")
    lab.write("note.txt", "new\n")
    fleet.run("requeue", "a")
    run(fleet, {"job_id": "a"})
    said = fleet.try_("diff", "a:1", "a")
    assert said.returncode == 1
    assert "code: different" in said.stdout
    assert "changes of model.py" in said.stdout and "untracked note.txt" in said.stdout
    lab.commit(message="better model")
    fleet.run("requeue", "a")
    run(fleet, {"job_id": "a"})
    said = fleet.try_("diff", "a:1", "a:3")
    assert "better model" in said.stdout and "2 files changed" in said.stdout
    back = fleet.try_("diff", "a:3", "a:1")
    assert "  - " in back.stdout and "  + " not in back.stdout


def test_jobs_with_a_snapshot_are_compared_by_their_archives(fleet: Fleet, lab: Repository) -> None:
    run(fleet, {"job_id": "a", "snapshot": True}, {"job_id": "b", "snapshot": True}, {"job_id": "c"})
    assert fleet.try_("diff", "a", "b").returncode == 0
    # The workspace had nothing else, so it was the same code.
    assert "code: the same" in fleet.try_("diff", "a", "c").stdout
    lab.write("model.py", "x = 2\n")
    fleet.run("requeue", "b")
    run(fleet, {"job_id": "a", "snapshot": True}, {"job_id": "b", "snapshot": True})
    assert "code: different" in fleet.try_("diff", "a", "b").stdout


@pytest.mark.parametrize("words", [("a", "zz"), ("a", "a:2"), ("a", "a:x"), ("a", "never"), ("a",)])
def test_trouble_is_told_apart_from_a_difference(fleet: Fleet, lab: Repository, words: tuple[str, ...]) -> None:
    run(fleet, {"job_id": "a"})
    fleet.write_manifest([{"job_id": "a"}, {"job_id": "never"}])
    done = fleet.try_("diff", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dispatcher: ")


A, B = Side("a", 1, "done"), Side("b", 1, "done")
CLEAN = GitState(commit="1" * 40)


def write(layout: Layout, side: Side, found: Provenance | None, result: object = None) -> None:
    paths = layout.attempt(side.job, side.attempt)
    paths.directory.mkdir(parents=True)
    paths.entry.write_text(json.dumps({"job_id": side.job, "method": "m"}))
    if found is not None:
        paths.provenance.write_bytes(msgspec.json.encode(found))
    if result is not None:
        paths.result.write_text(json.dumps(result))


def with_git(git: GitState | None, **rest: Any) -> Provenance:
    return Provenance(collected_at="2026-01-01T00:00:00.000Z", git=git, **rest)


@pytest.mark.parametrize(
    ("one", "other", "code"),
    [
        (with_git(CLEAN), with_git(CLEAN), SAME),
        (with_git(CLEAN), None, UNKNOWN),
        (with_git(CLEAN), with_git(None), UNKNOWN),
        (with_git(CLEAN), with_git(GitState(commit="2" * 40)), DIFFERENT),
        (with_git(CLEAN), with_git(GitState(commit="1" * 40, is_dirty=True, diff="d")), DIFFERENT),
        # What has changed is not known.
        (with_git(CLEAN), with_git(GitState(commit="1" * 40, is_dirty=True)), UNKNOWN),
        (with_git(CLEAN), with_git(GitState(commit="1" * 40, untracked_more=2)), UNKNOWN),
        (with_git(CLEAN), with_git(GitState(commit="1" * 40, untracked={"f": "abc"})), DIFFERENT),
        (with_git(GitState(commit="1" * 40, untracked={"f": ""})),) * 2 + (UNKNOWN,),
        (with_git(CLEAN), with_git(GitState(commit="1" * 40, shipped="a")), SAME),
        (with_git(GitState(commit="1" * 40, shipped="a")), with_git(GitState(commit="1" * 40, shipped="b")), DIFFERENT),
        (
            with_git(GitState(commit="1" * 40, shipped="a"), template=Template(path="t", sha256="1")),
            with_git(GitState(commit="1" * 40, shipped="a"), template=Template(path="t", sha256="2")),
            DIFFERENT,
        ),
        (
            with_git(GitState(commit="1" * 40, untracked={"f": "x"})),
            with_git(GitState(commit="1" * 40, shipped="b")),
            UNKNOWN,
        ),
        (with_git(CLEAN, template=Template(path="t", sha256="x")), with_git(CLEAN), DIFFERENT),
    ],
)
def test_code_is_the_same_only_where_all_of_it_is_known(
    tmp_path: Path, one: Provenance, other: Provenance | None, code: str
) -> None:
    layout = Layout(tmp_path)
    write(layout, A, one)
    write(layout, B, other)
    found = difference(layout, A, B)
    assert found.code == code
    assert difference(layout, B, A).code == code
    assert not (found.is_equal and code != SAME)


def test_environment_packages_and_results(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    python = Interpreter(executable="/usr/bin/python3", version="3.11.7")
    write(layout, A, with_git(CLEAN, python=python, host="h1", environment={"XLA_FLAGS": "-x"}), {"loss": 0, "n": 1})
    write(layout, B, with_git(CLEAN, host="h2"), {"loss": 2.5, "word": "w", "n": True})
    for side, lines in ((A, ["numpy==1.0", "old==2"]), (B, ["numpy==2.0", "new==1"])):
        place = layout.attempt(side.job, side.attempt).provenance_host
        place.write_text(json.dumps({"package_lines": lines}))
    found = difference(layout, A, B)
    assert [(row.what, row.a, row.b) for row in found.packages] == [
        ("new", None, "1"),
        ("numpy", "1.0", "2.0"),
        ("old", "2", None),
    ]
    assert [(row.what, row.a, row.b) for row in found.environment] == [
        ("python", "3.11.7 /usr/bin/python3", None),
        ("host", "h1", "h2"),
        ("XLA_FLAGS", "-x", None),
    ]
    assert [(row.what, row.a, row.b, row.difference, row.relative) for row in found.results] == [
        ("loss", 0, 2.5, 2.5, None),
        ("n", 1, True, None, None),
        ("word", None, "w", None, None),
    ]
    assert not found.unknown


def test_a_pipe_in_place_of_a_result_does_not_hold_up(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write(layout, A, with_git(CLEAN))
    write(layout, B, with_git(CLEAN))
    layout.attempt("a", 1).result.mkdir()
    assert difference(layout, A, B).results == []
    os.rmdir(layout.attempt("a", 1).result)
