"""Servers for the tests of the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crowded
import pytest
from cli.conftest import Lab
from web_requests import Web

from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.web.board import Board


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A small workspace: failures, running and waiting jobs."""
    for name in [name for name in os.environ if name.startswith("DISPATCHER_")]:
        monkeypatch.delenv(name)
    root = tmp_path / "a'; echo foo"
    root.mkdir()
    made = Lab(root, capsys)
    made.layout.templates_dir.mkdir()
    crowded.fill(made)
    return made


@pytest.fixture
def empty_lab(tmp_path: Path) -> Lab:
    """A workspace without jobs."""
    (tmp_path / "lab" / "templates").mkdir(parents=True)
    return Lab(tmp_path / "lab", None)


def record_all(lab: Lab, entries: list[dict[str, Any]]) -> Board:
    """Record that all these jobs have run once and are done; the board that shows them."""
    lab.write_manifest(entries)
    with lab.workspace.transaction() as tx:
        for entry in entries:
            tx.change(entry["job_id"], Event.QUEUED, Change(state=State.QUEUED))
            tx.change(entry["job_id"], Event.CLAIMED, Change(state=State.RUNNING, attempt=1, pod="gpu-a"))
            tx.change(entry["job_id"], Event.DONE, Change(state=State.DONE, exit_code=0))
    board = Board(lab.root, {})
    board.look()
    return board


@pytest.fixture
def serve(lab: Lab) -> Iterator[Callable[..., Web]]:
    """Starts servers of the workspace or of another one; all have ended after the test."""
    servers: list[Web] = []

    def start(*options: str, root: Path | None = None, **more: Any) -> Web:
        servers.append(Web(root or lab.root, *options, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.end()
