"""`env_file` of jobs of PBS: read on each node, and seen nowhere else."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from beds.pbs import PbsBed
from fleet import wait_until
from outlets.places import PbsPlace
from secrets_seen import command_lines_with, files_with

from dispatcher.outlets.base import Request


@pytest.fixture
def place(pbs: PbsBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsPlace]:
    for name, value in pbs.env.items():
        monkeypatch.setenv(name, value)
    made = PbsPlace(tmp_path / "a'; echo foo", pbs)
    yield made
    made.close()


def test_secrets_stay_in_their_file(place: PbsPlace, tmp_path: Path) -> None:
    """Also on two nodes, to which the environment of the first one is passed on by a file."""
    secret = secrets.token_hex(12)
    path = tmp_path / "secrets.env"
    path.write_text(f"TOKEN={secret}\n")
    path.chmod(0o600)
    script = f'[[ $TOKEN == "$(cut -d= -f2 {path})" ]] && echo same >>said; until [ -e go ]; do sleep 0.02; done'
    key = place.submit("a", script, request=Request(0, nodes=2), env_file=os.fspath(path))
    wait_until(lambda: place.outlet.poll([key]) and _said(place) == "same\nsame\n", "both nodes have read it")
    assert command_lines_with(secret) == []
    # The server keeps what `qstat -f` shows of the job, variables included.
    assert files_with(secret, [place.root, place.bed.directory], path) == []
    place.let_go()
    assert place.end(key).exit_code == 0
    assert files_with(secret, [place.root, place.bed.directory], path) == []


def test_a_file_that_others_may_read(place: PbsPlace, tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_text("TOKEN=s3cret\n")
    path.chmod(0o640)
    key = place.submit("a", "true", env_file=os.fspath(path))
    assert place.end(key).exit_reason == "setup"
    log = place.paths(key).log.read_text()
    assert "others can read or change it (mode 640): chmod 600 it" in log
    assert "s3cret" not in log


def _said(place: PbsPlace) -> str:
    path = place.there("said")
    return path.read_text() if path.exists() else ""
