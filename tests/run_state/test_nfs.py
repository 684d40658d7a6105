"""What the kernel's statistics say of an NFS server."""

from __future__ import annotations

import pytest

from dispatcher.run_state import nfs
from dispatcher.run_state.nfs import Server

V4 = """device {source} mounted on {point} with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=262144,hard,proto=tcp,timeo=600,sec=sys,local_lock=none
\tage:\t118
\tcaps:\tcaps=0xfffbc0bf,wtmult=512,dtsize=262144,bsize=0,namlen=255
\tnfsv4:\tbm0=0xfdffbfff,bm1=0xf9be3e,acl=0x3,sessions,pnfs=not configured,lease_time=15,lease_expired=0
\tevents:\t1 2 3
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 913 1 {connections} 0 11 40 40 0 40 0 2 0 0
\tper-op statistics
"""
V3 = """device {source} mounted on {point} with fstype nfs statvers=1.1
\topts:\trw,vers=3,proto=tcp
\txprt:\ttcp 0 0 {connections} 0 0 24 24 0 24 0 2 0 0
\txprt:\ttcp 0 0 4 0 0 24 24 0 24 0 2 0 0
"""
OTHERS = "device proc mounted on /proc with fstype proc\ndevice /dev/vda1 mounted on / with fstype ext4\n"


def fill(text: str, point: str, connections: int) -> str:
    return text.format(source="10.99.0.10:/", point=point, connections=connections)


def test_connections_and_lease() -> None:
    text = OTHERS + fill(V4, "/mnt/lab", 3) + fill(V3, "/mnt/old", 2)
    assert nfs.parse(text, "/mnt/lab") == Server(3, 15)
    assert nfs.parse(text, "/mnt/old") == Server(6, nfs.USUAL_LEASE_S), "the sum of all connections"


@pytest.mark.parametrize("point", ["/", "/proc", "/mnt", "/mnt/la"])
def test_what_is_no_nfs_has_no_server(point: str) -> None:
    assert nfs.parse(OTHERS + fill(V4, "/mnt/lab", 3), point) is None


def test_the_last_of_two_mounts_on_one_point_counts() -> None:
    assert nfs.parse(fill(V4, "/mnt/a b", 3) + fill(V4, r"/mnt/a\040b", 7), "/mnt/a b") == Server(7, 15)


def test_this_hosts_own_statistics_can_be_read() -> None:
    assert nfs.server_of("/proc") is None
