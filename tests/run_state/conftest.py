"""Workspaces for the tests of the run state."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.workspace import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty workspace whose path is awkward."""
    root = tmp_path / "a'; echo foo $(x)"
    root.mkdir()
    return Layout(root)


@pytest.fixture
def quick_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: for tests that copy and sync hundreds of times."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(dir=memory))
    yield made
    shutil.rmtree(made)
