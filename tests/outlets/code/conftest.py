"""Workspaces in real git repositories."""

from __future__ import annotations

from pathlib import Path

import pytest
from repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository in a directory whose name shells choke on, with one commit."""
    made = Repository(tmp_path / "a'; echo foo")
    made.write("train.py", "print(1)\n")
    made.write(".gitignore", "run_state/\n*.pt\n")
    made.commit()
    return made
