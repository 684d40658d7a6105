from __future__ import annotations

from collections.abc import Iterator

import pytest

from .bed import BedError, one_line
from .fixtures import skip_without
from .gluster import GlusterBed
from .lockfs import LockfsBed
from .needs import NEEDS
from .nfs import NfsBed
from .sshfs import SshfsBed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for bed, needs in NEEDS.items():
            if needs.is_shared and bed in getattr(item, "fixturenames", ()):
                item.add_marker(bed)


def _session_bed(kind):
    skip_without(kind.name)
    try:
        bed = kind()
    except BedError as error:
        # Each of its tests says it again.
        pytest.fail(f"bed {kind.name}: did not boot: {one_line(error)} (try scripts/install-beds)", pytrace=False)
    with bed:
        yield bed


def _one_test(request: pytest.FixtureRequest, bed):
    marked = request.node.get_closest_marker(bed.name)
    assert marked, f"a test that asks for a bed at run time needs its marker ({bed.name}): see tests/groups.py"
    yield bed
    bed.heal()


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
def nfs(request: pytest.FixtureRequest, _nfs: NfsBed) -> Iterator[NfsBed]:
    """Real NFS between two client kernels, with a lease of 10 s, the shortest that there is."""
    yield from _one_test(request, _nfs)


@pytest.fixture
def sshfs(request: pytest.FixtureRequest, _sshfs: SshfsBed) -> Iterator[SshfsBed]:
    yield from _one_test(request, _sshfs)


@pytest.fixture
def lockfs(request: pytest.FixtureRequest, _lockfs: LockfsBed) -> Iterator[LockfsBed]:
    yield from _one_test(request, _lockfs)


@pytest.fixture
def gluster(request: pytest.FixtureRequest, _gluster: GlusterBed) -> Iterator[GlusterBed]:
    yield from _one_test(request, _gluster)
