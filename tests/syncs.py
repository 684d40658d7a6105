"""What is put on the disk, and in which order: what a power cut leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def noted_syncs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The name of each file that is synced from now on; with a directory, the names that it has then."""
    syncs: list[tuple[str, list[str]]] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        syncs.append((path.name, sorted(os.listdir(path)) if path.is_dir() else []))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    return syncs
