"""Pipes in place of files, which would wait for a writer for ever, and what jobs have damaged or closed."""

from __future__ import annotations

import json
import os
import shutil

import commands
import pytest

from dispatcher.api import Workspace
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State

ENTRY = {"job_id": "a", "method": "m"}


def dispatcher(root, *words, before=()):
    command = [*before, *commands.COMMAND, "--root", str(root), *words]
    return commands.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "matrix.json").write_text(json.dumps([ENTRY]))
    (tmp_path / "dispatcher.yaml").write_text("methods: {m: {command: 'true'}}\n")
    assert dispatcher(tmp_path, "submit", "--", "true").returncode == 0
    return tmp_path


@pytest.mark.parametrize(
    "name", ["matrix/matrix.json", "matrix/submitted.jsonl", "dispatcher.yaml", "run_state/matrix_status.json"]
)
def test_status_names_a_pipe_and_does_not_wait_for_its_writer(root, name):
    (root / name).unlink()
    os.mkfifo(root / name)
    found = dispatcher(root, "status")
    assert "no plain file" in found.stdout + found.stderr
    assert os.path.basename(name) in found.stdout + found.stderr


def test_a_sweep_file_that_is_a_pipe_is_named(root):
    os.mkfifo(root / "sweep.yaml")
    found = dispatcher(root, "matrix", "make", str(root / "sweep.yaml"))
    assert f"{root}/sweep.yaml" in found.stderr and "cannot be read: no plain file" in found.stderr


def test_diff_says_that_files_are_there_and_cannot_be_read(root):
    workspace = Workspace(root, by="test")
    for job in "ab":
        with workspace.transaction() as tx:
            tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
            tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
            tx.change(job, Event.DONE, Change(state=State.DONE))
        paths = workspace.layout.attempt(job, 1)
        paths.directory.mkdir(parents=True)
        paths.entry.write_text("overwritten")
    os.mkfifo(paths.result)
    found = dispatcher(root, "diff", "a", "b").stderr
    assert "entry.json cannot be read: it is damaged" in " ".join(found.split())
    assert "result.json: no plain file" in " ".join(found.split())


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root reads every directory")
def test_a_directory_that_a_job_has_closed_is_shown(root):
    workspace = Workspace(root, by="test")
    with workspace.transaction() as tx:
        tx.change("a", Event.QUEUED, Change(state=State.QUEUED))
        tx.change("a", Event.CLAIMED, Change(state=State.RUNNING, attempt=1))
        tx.change("a", Event.DONE, Change(state=State.DONE))
    directory = workspace.layout.attempt("a", 1).directory
    directory.mkdir(parents=True)
    directory.chmod(0)
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"] if os.geteuid() == 0 else []
    try:
        for words in (("show", "a"), ("results",)):
            found = dispatcher(root, *words, before=drop)
            assert (found.returncode, "Traceback" in found.stderr) == (0, False), found.stderr
        assert "a: Permission denied" in found.stderr
    finally:
        directory.chmod(0o755)
