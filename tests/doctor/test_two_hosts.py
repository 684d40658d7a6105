"""What two doctors prove together, as one of them sees it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from dispatcher.base.mounts import mount_of
from dispatcher.doctor import two_host_files
from dispatcher.doctor.findings import OK, WRONG, Finding
from dispatcher.doctor.lock_test import LOCK_NAMES
from dispatcher.doctor.pair import Pair
from dispatcher.doctor.two_host_files import mkdir_race
from dispatcher.doctor.two_host_locks import exclusion
from dispatcher.workspace import Layout


class Alone:
    """A pair whose other doctor agrees with everything."""

    def __init__(self, directory: Path, *, leads: bool) -> None:
        self.directory = directory
        self.layout = Layout(directory)
        self.mount = mount_of(directory)
        self.wanted, self.here, self.leads = "auto", "node1", leads
        self.excluding: list[str] = []

    def agree(self, problem: str) -> str:
        return problem


def found_by(pair: Alone) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.verdict, finding.what) for finding in exclusion(cast(Pair, pair))}


def test_locks_that_exclude(tmp_path: Path) -> None:
    pair = Alone(tmp_path, leads=True)
    assert {verdict for verdict, _ in found_by(pair).values()} == {OK}
    assert pair.excluding == list(LOCK_NAMES)


def test_each_kind_of_lock_that_fails_is_a_finding() -> None:
    """For whatever reason: else the other doctor would wait for an answer that never comes."""
    pair = Alone(Path("/proc"), leads=True)
    found = found_by(pair)
    assert set(found) == {f"{name} between hosts" for name in LOCK_NAMES.values()}
    assert all("fails with" in what and "No such file" in what for _, what in found.values()), found
    assert pair.excluding == []


def test_a_lock_that_is_granted_to_both_is_named(tmp_path: Path) -> None:
    found = found_by(Alone(tmp_path, leads=False))
    assert all("granted on both hosts" in what for _, what in found.values())


def race(directory: Path, theirs: list[int]) -> Finding:
    """What is found when the other doctor says that it has made these of the hundred directories."""
    pair = Mock(directory=directory.parent, mount=mount_of(directory.parent))
    pair.meeting.swap.return_value = {"won": theirs}
    return next(mkdir_race(pair))


def test_each_directory_has_one_maker_at_most(tmp_path: Path) -> None:
    found = race(tmp_path / "race", [])
    assert (found.verdict, found.what) == (OK, "never did both hosts make one of 100 directories (0 and 100)")
    shutil.rmtree(tmp_path / "race")
    found = race(tmp_path / "race", [7, 8])
    assert found.verdict == WRONG and "2 of 100 directories were made by both hosts" in found.what


@pytest.mark.parametrize("is_there", [True, False])
def test_directories_that_neither_has_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    """GlusterFS tells both of them that the other one was faster, and may have made none."""
    real = os.mkdir

    def mkdir(path: str | Path, *mode: int) -> None:
        of_neither = Path(path).name in {"7", "8", "9"}
        if is_there or not of_neither:
            real(path, *mode)
        if of_neither:
            raise FileExistsError

    monkeypatch.setattr(two_host_files.os, "mkdir", mkdir)
    found = race(tmp_path / "race", [])
    assert (found.verdict, found.what.rpartition("; ")[2]) == (OK, "3 appeared to both as made by the other")


def test_directories_that_were_made_and_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.mkdir
    monkeypatch.setattr(two_host_files.os, "mkdir", lambda path, *mode: Path(path).name == "7" or real(path, *mode))
    found = race(tmp_path / "race", [])
    assert found.verdict == WRONG
    assert found.what.startswith("1 of 100 directories that one of two hosts has made are missing")
