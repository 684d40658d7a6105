"""Attempts that a test starts, which are killed when it has ended."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from node_trials import Node
from trials import Trial

from dispatcher.outlets.local import processes


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    """Makes attempts in a workspace whose name shells choke on. What loses its parent becomes this process's child."""
    made: list[Trial] = []

    def make(script: str, root: Path = tmp_path / "a'; echo foo", **rest: Any) -> Trial:
        made.append(Trial(root, script, **rest))
        return made[-1]

    processes.adopt_orphans()
    try:
        yield make
        for one in made:
            one.close()
    finally:
        no_subreaper = ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
        assert no_subreaper == 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node, of whose attempts nothing runs on when the test has ended."""
    made = Node(tmp_path)
    try:
        yield made
    finally:
        made.close()
