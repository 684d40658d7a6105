"""The compilation cache of the tests: what one run compiles, the next one finds."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from jax._src.compilation_cache import compress_executable
from kept_programs import kept

PROGRAM = compress_executable(os.urandom(1000))


def no_link(*paths: Path) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.mark.parametrize("link", [os.link, no_link], ids=["one filesystem", "two"])
def test_complete_programs_are_kept_for_the_next_run_and_the_oldest_are_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Any
) -> None:
    monkeypatch.setattr(os, "link", link)
    store = tmp_path / "kept" / "here"
    with kept(tmp_path / "first", store, 2500) as run:
        (run / "old-cache").write_bytes(PROGRAM)
        os.utime(run / "old-cache", (1, 1))
        (run / "new-cache").write_bytes(PROGRAM)
        # A process that was killed left half of one.
        (run / "half-cache").write_bytes(PROGRAM[:500])
    with kept(tmp_path / "second", store, 2500) as run:
        assert sorted(os.listdir(run)) == ["new-cache", "old-cache"]
        (run / "newer-cache").write_bytes(PROGRAM)
        # Another run has kept the same.
        (store / "newer-cache").write_bytes(PROGRAM)
    with kept(tmp_path / "third", store, 2500) as run:
        assert sorted(os.listdir(run)) == ["new-cache", "newer-cache"]
