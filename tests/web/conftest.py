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
def serve(lab: Lab) -> Iterator[Callable[..., Web]]:
    """Starts servers of the workspace or of another one; all have ended after the test."""
    servers: list[Web] = []

    def start(*options: str, root: Path | None = None, **more: Any) -> Web:
        servers.append(Web(root or lab.root, *options, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.end()
