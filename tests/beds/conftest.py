from __future__ import annotations

from collections.abc import Iterator

import pytest

from .gluster import GlusterBed
from .lockfs import LockfsBed
from .needs import NEEDS, why_not
from .nfs import NfsBed
from .sshfs import SshfsBed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for bed in NEEDS:
            if bed in getattr(item, "fixturenames", ()):
                item.add_marker(bed)


def _session_bed(kind):
    if reason := why_not(kind.name):
        pytest.skip(reason)
    with kind() as bed:
        yield bed


@pytest.fixture(scope="session")
def _nfs() -> Iterator[NfsBed]:
    yield from _session_bed(NfsBed)


@pytest.fixture(scope="session")
def _sshfs() -> Iterator[SshfsBed]:
    yield from _session_bed(SshfsBed)


@pytest.fixture(scope="session")
def _lockfs() -> Iterator[LockfsBed]:
    yield from _session_bed(LockfsBed)


@pytest.fixture(scope="session")
def _gluster() -> Iterator[GlusterBed]:
    yield from _session_bed(GlusterBed)


@pytest.fixture
def nfs(_nfs: NfsBed) -> Iterator[NfsBed]:
    """Real NFS between two client kernels, with a lease of 15 s."""
    yield _nfs
    _nfs.heal()


@pytest.fixture
def sshfs(_sshfs: SshfsBed) -> Iterator[SshfsBed]:
    yield _sshfs
    _sshfs.heal()


@pytest.fixture
def lockfs(_lockfs: LockfsBed) -> Iterator[LockfsBed]:
    yield _lockfs
    _lockfs.heal()


@pytest.fixture
def gluster(_gluster: GlusterBed) -> Iterator[GlusterBed]:
    yield _gluster
    _gluster.heal()
