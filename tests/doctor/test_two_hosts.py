"""What two doctors prove together, as one of them sees it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from dispatcher.base.mounts import mount_of
from dispatcher.doctor.findings import OK
from dispatcher.doctor.lock_test import LOCK_NAMES
from dispatcher.doctor.pair import Pair
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
