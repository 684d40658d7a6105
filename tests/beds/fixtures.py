"""The beds that come up in a moment, for tests in any folder: each test has its own.

    def test_that_submits(slurm): ...                       # with its defaults
    def test_that_purges(start_slurm):
        slurm = start_slurm(min_job_age_s=5)
    def test_that_logs_in(ssh): ...                         # hosts h1 and h2
    def test_on_a_login_node(start_slurm, start_ssh):
        slurm = start_slurm()
        ssh = start_ssh(["login"], shared=[slurm.directory], env=slurm.env)
    def test_on_pbs(pbs): ...                               # stand-ins; start_pbs(NODES, history=False)

They mark their tests (`slurm`, `ssh`) and skip them where a component is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from .needs import why_not
from .pbs import PbsBed
from .slurm import SlurmBed, SlurmSettings
from .sshd import HostSettings, SshBed

MARKED_BY = {"start_slurm": "slurm", "start_ssh": "ssh"}


def mark_beds(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, marker in MARKED_BY.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


def skip_without(bed: str) -> None:
    if reason := why_not(bed):
        pytest.skip(reason)


@pytest.fixture
def start_slurm() -> Iterator[Callable[..., SlurmBed]]:
    """Makes a cluster from the fields of `SlurmSettings`."""
    with contextlib.ExitStack() as beds:

        def start(**settings: Any) -> SlurmBed:
            skip_without("slurm-accounting" if settings.get("accounting") else "slurm")
            return beds.enter_context(SlurmBed(SlurmSettings(**settings)))

        yield start


@pytest.fixture
def slurm(start_slurm: Callable[..., SlurmBed]) -> SlurmBed:
    """A cluster of two nodes with four CPUs and four GPUs each."""
    return start_slurm()


@pytest.fixture
def start_ssh() -> Iterator[Callable[..., SshBed]]:
    """Makes hosts with these names from the fields of `HostSettings`."""
    with contextlib.ExitStack() as beds:

        def start(names: Sequence[str] = ("h1", "h2"), **settings: Any) -> SshBed:
            skip_without("sshd")
            return beds.enter_context(SshBed(names, HostSettings(**settings)))

        yield start


@pytest.fixture
def ssh(start_ssh: Callable[..., SshBed]) -> SshBed:
    """Hosts h1 and h2, which see nothing of the test's directories."""
    return start_ssh()


@pytest.fixture
def start_pbs() -> Iterator[Callable[..., PbsBed]]:
    """Makes servers of PBS from the arguments of `PbsBed`."""
    with contextlib.ExitStack() as beds:
        yield lambda *words, **settings: beds.enter_context(PbsBed(*words, **settings))


@pytest.fixture
def pbs(start_pbs: Callable[..., PbsBed]) -> PbsBed:
    """A server with two nodes of four CPUs and four GPUs each."""
    return start_pbs()
