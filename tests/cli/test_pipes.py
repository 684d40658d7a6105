"""Pipes in place of the files that people write: opening one would wait for a writer, for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

ENTRY = {"job_id": "a", "method": "m"}


def dispatcher(root, *words):
    command = [sys.executable, "-m", "dispatcher", "--root", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


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
