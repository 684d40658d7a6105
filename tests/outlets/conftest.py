"""Attempts that a test starts, which are killed when it has ended."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from beds.fixtures import skip_without
from node_trials import Node
from podman_here import Podman
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


@pytest.fixture
def podman() -> Iterator[Podman]:
    """The real podman, with the image podman_here.IMAGE."""
    skip_without("podman")
    # A socket of its monitor has a path of 108 bytes at most: with a longer one podman waits 20 s for each end.
    with tempfile.TemporaryDirectory(prefix="pod-") as folder:
        made = Podman(Path(folder) / "p")
        try:
            yield made
        finally:
            made.close()
